"""The promotion's transaction: compare-and-set on the champion in the ledger, under a lease; then aliases follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.core.errors import IntegrityError, PolicyRefusal
from components.core.ledger import Entry, Lease, Ledger
from components.core.people import Policy
from components.core.records import ModelVersionRef, PromotionRef, RolloutReport
from components.registry.aliases import drop_challenger, follow
from components.registry.champions import CANDIDATE, PROMOTED, PROMOTION, REFUSED, top
from components.registry.ports import ModelRegistry

PASS, INFO = "pass", "info"  # outcomes of a RuleResult


class AlreadyChampionError(Exception):
    """Raised inside the ledger's transaction where there is nothing left to do."""


@dataclass(frozen=True)
class Candidate:
    """What a promotion is decided on: version, rollout, the run that asks, who started it, and the policy."""

    version: ModelVersionRef
    report: RolloutReport
    run_id: str
    policy: Policy = field(default_factory=Policy)
    requesters: tuple[str, ...] = ()
    declared: Policy | None = None  # what the run's recipe says; in force once this is promoted; default `policy`

    @property
    def key(self) -> str:
        """The promotion's idempotency key."""
        return f"promotion:{self._named}"

    @property
    def stop_key(self) -> str:
        """The key of the note that it was stopped."""
        return f"stopped:{self._named}"

    @property
    def request_key(self) -> str:
        """The key of the request for approval."""
        return f"approval:{self._named}"

    @property
    def title(self) -> str:
        """For words to people."""
        return f"model {self.version.name} version {self.version.version}"

    @property
    def _named(self) -> str:
        return f"{self.run_id}:{self.version.name}:{self.version.version}:{self.version.digest}"


def lease_name(name: str) -> str:
    """What is held while somebody decides about a model's champion."""
    return f"promotion of {name}"


def check(candidate: Candidate) -> None:
    """A pass needs a gate that passed, requests that were answered, rules that all hold, and the same comparator.

    Raises:
        IntegrityError: version and report are about different models. PolicyRefusal: it does not pass.
    """
    version, report = candidate.version, candidate.report
    same_candidate(version, report)
    if not version.gate_passed:
        raise PolicyRefusal(f"{candidate.title}: the gate did not pass: {version.reason}")
    open_rules = [rule.rule for rule in report.rules if rule.outcome not in (PASS, INFO)]
    proven = any(rule.outcome == PASS for rule in report.rules)
    if report.outcome != "passed" or open_rules or report.requests <= 0 or not proven:
        lacking = f"rule {open_rules[0]} does not hold" if open_rules else "it holds no evidence"
        raise PolicyRefusal(f"{candidate.title}: the rollout says {report.outcome} but {lacking}; roll out again")
    if (report.stable_version, report.stable_digest) != (version.champion_version, version.champion_digest):
        raise PolicyRefusal(
            f"{candidate.title}: rolled out beside version {report.stable_version or 'none'}, judged against "
            f"{version.champion_version or 'none'}; judge again"
        )


def same_candidate(version: ModelVersionRef, report: RolloutReport) -> None:
    """IntegrityError where the report is about another version or other bytes."""
    rolled = (report.candidate_version, report.candidate_digest)
    if rolled != (version.version, version.digest):
        raise IntegrityError(
            f"the rollout was of version {rolled[0]} ({rolled[1][:12]}), not of {version.version} "
            f"({version.digest[:12]}); roll out this version"
        )


def unchanged(candidate: Candidate) -> Callable[[list[Entry]], None]:
    """A guard: the champion in this very transaction is the one the candidate was judged against."""
    version = candidate.version

    def guard(entries: list[Entry]) -> None:
        now = top(version.name, entries)
        if now is not None and (now.version, now.digest) == (version.version, version.digest):
            raise AlreadyChampionError
        current = (now.version, now.digest) if now else ("", "")
        if current != (version.champion_version, version.champion_digest):
            won = f"version {now.version} won at {now.since}" if now else "that one was taken back"
            raise PolicyRefusal(
                f"{candidate.title}: judged against champion {version.champion_version or 'none'}, "
                f"but {won}; judge again against it"
            )

    return guard


def transact(
    candidate: Candidate,
    ledger: Ledger,
    tracking: ModelRegistry,
    lease: Lease,
    reason: str,
    approvals: Sequence[dict[str, Any]] = (),
) -> PromotionRef:
    """Append the promotion where the champion is still the one judged against; aliases and anchor follow.

    Raises:
        PolicyRefusal: another version won meanwhile; the candidate is noted as refused and is no challenger any more.
    """
    version = candidate.version
    payload = payload_of(candidate, PROMOTED, reason)
    payload |= {"approvals": list(approvals), "policy": (candidate.declared or candidate.policy).to_dict()}
    try:
        entry = ledger.append(PROMOTION, candidate.key, payload, guard=unchanged(candidate), fence=lease)
    except AlreadyChampionError:
        follow(version.name, ledger, tracking)
        return outcome_of(version, PROMOTED, "it is champion already")
    except PolicyRefusal as refused:
        stop(candidate, REFUSED, str(refused), ledger, tracking, lease)
        raise
    follow(version.name, ledger, tracking)
    return outcome_of(version, PROMOTED, str(entry.payload["reason"]), entry)


def stop(candidate: Candidate, event: str, reason: str, ledger: Ledger, tracking: ModelRegistry, lease: Lease) -> Entry:
    """Note why a candidate goes no further; it is no challenger any more."""
    payload = payload_of(candidate, event, reason)
    entry = ledger.append(CANDIDATE, candidate.stop_key, payload, fence=lease)
    drop_challenger(candidate.version.name, candidate.version.version, tracking)
    return entry


def payload_of(candidate: Candidate, event: str, reason: str) -> dict[str, Any]:
    """What every entry about a candidate says."""
    version = candidate.version
    return {
        "event": event,
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "previous_version": version.champion_version,
        "previous_digest": version.champion_digest,
        "evidence_digest": version.evidence_digest,
        "reason": reason,
        "run_id": candidate.run_id,
    }


def outcome_of(version: ModelVersionRef, outcome: str, reason: str, entry: Entry | None = None) -> PromotionRef:
    """The record of how it ended; the entry's hash anchors the ledger in the run's own files."""
    return PromotionRef(
        outcome=outcome,
        reason=reason,
        name=version.name,
        version=version.version,
        digest=version.digest,
        previous_version=version.champion_version,
        ledger_seq=entry.seq if entry else 0,
        ledger_hash=entry.hash if entry else "",
    )
