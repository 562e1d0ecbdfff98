"""Promotion as a transaction: compare-and-set on the ledger, then the registry's alias follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from components.core.errors import IntegrityError, PolicyRefusal
from components.core.home import safe_name
from components.core.ledger import Entry, Ledger
from components.core.publish import verify
from components.core.records import ModelVersionRef, PromotionRef, RolloutReport
from components.registry.aliases import drop_challenger, sync_aliases
from components.registry.champions import CANDIDATE, INCONCLUSIVE, PROMOTED, PROMOTION, REFUSED, ROLLED_BACK, top
from components.registry.gate import INFO, PASS
from components.registry.ports import ModelRegistry


class AlreadyChampionError(Exception):
    """Raised inside the ledger's transaction where there is nothing left to do."""


def promote(
    version: ModelVersionRef,
    report: RolloutReport,
    ledger: Ledger,
    tracking: ModelRegistry,
    run_id: str,
    reason: str = "",
) -> PromotionRef:
    """Make the candidate champion where gate and rollout passed and the champion is the one it was judged against.

    A candidate that the rollout stopped is noted in the ledger with its reason and loses alias `challenger`.
    Run again after a kill anywhere: one entry, aliases in place. A promotion that was rolled back later stays so.

    Args:
        version: the registered candidate with the champion it was judged against.
        report: how it met traffic.
        ledger: where the promotion is decided.
        tracking: registry whose aliases follow.
        run_id: the run that asks; with the version it names the promotion.
        reason: why, for the record; default the report's reason.

    Raises:
        IntegrityError: version and report are about different models.
        PolicyRefusal: the gate did not pass, the rollout has no evidence, or another version won meanwhile.
        TransientError: the ledger or the registry does not answer; run again.
    """
    safe_name(version.name, "model name")
    safe_name(run_id, "run id")
    _same_candidate(version, report)
    if report.outcome != "passed":
        return _stopped(version, report, ledger, tracking, run_id)
    payload = _payload(version, reason or report.reason, run_id)
    key = f"promotion:{run_id}:{version.name}:{version.version}:{version.digest}"
    try:
        if ledger.find(key) is None:
            _check(version, report)
        entry = ledger.append(PROMOTION, key, payload, guard=_unchanged(version))
    except AlreadyChampionError:
        sync_aliases(version.name, ledger, tracking)
        return _promotion(version, PROMOTED, "it is champion already")
    except PolicyRefusal as refused:
        _note(version, REFUSED, str(refused), ledger, run_id)
        drop_challenger(version.name, version.version, tracking)
        raise
    sync_aliases(version.name, ledger, tracking)
    return _promotion(version, PROMOTED, str(entry.payload["reason"]), entry.seq)


def read_inputs(version: Path, report: Path) -> tuple[ModelVersionRef, RolloutReport]:
    """The records of two published folders, verified."""
    verify(version)
    verify(report)
    return ModelVersionRef.read(version), RolloutReport.read(report)


def _same_candidate(version: ModelVersionRef, report: RolloutReport) -> None:
    """The report is about this version and these bytes."""
    rolled = (report.candidate_version, report.candidate_digest)
    if rolled != (version.version, version.digest):
        raise IntegrityError(
            f"the rollout was of version {rolled[0]} ({rolled[1][:12]}), not of {version.version} "
            f"({version.digest[:12]}); roll out this version"
        )


def _check(version: ModelVersionRef, report: RolloutReport) -> None:
    """A pass needs a gate that passed, requests that were answered, rules that all hold, and the same comparator."""
    if not version.gate_passed:
        raise PolicyRefusal(f"{_title(version)}: the gate did not pass: {version.reason}")
    open_rules = [rule.rule for rule in report.rules if rule.outcome not in (PASS, INFO)]
    if open_rules or report.requests <= 0 or not any(rule.outcome == PASS for rule in report.rules):
        lacking = f"rule {open_rules[0]} does not hold" if open_rules else "it holds no evidence"
        raise PolicyRefusal(f"{_title(version)}: the rollout says passed but {lacking}; roll out again")
    if (report.stable_version, report.stable_digest) != (version.champion_version, version.champion_digest):
        raise PolicyRefusal(
            f"{_title(version)}: rolled out beside version {report.stable_version or 'none'}, judged against "
            f"{version.champion_version or 'none'}; judge again"
        )


def _unchanged(version: ModelVersionRef) -> Callable[[list[Entry]], None]:
    """A guard: the champion in this very transaction is the one the candidate was judged against."""

    def guard(entries: list[Entry]) -> None:
        now = top(version.name, entries)
        if now is not None and (now.version, now.digest) == (version.version, version.digest):
            raise AlreadyChampionError
        current = (now.version, now.digest) if now else ("", "")
        if current != (version.champion_version, version.champion_digest):
            won = f"version {now.version} won at {now.since}" if now else "that one was taken back"
            raise PolicyRefusal(
                f"{_title(version)}: judged against champion {version.champion_version or 'none'}, "
                f"but {won}; judge again against it"
            )

    return guard


def _stopped(
    version: ModelVersionRef, report: RolloutReport, ledger: Ledger, tracking: ModelRegistry, run_id: str
) -> PromotionRef:
    outcome = report.outcome if report.outcome in (ROLLED_BACK, INCONCLUSIVE) else INCONCLUSIVE
    entry = _note(version, outcome, report.reason, ledger, run_id)
    drop_challenger(version.name, version.version, tracking)
    return _promotion(version, outcome, report.reason, entry.seq)


def _note(version: ModelVersionRef, event: str, reason: str, ledger: Ledger, run_id: str) -> Entry:
    key = f"stopped:{run_id}:{version.name}:{version.version}:{version.digest}"
    return ledger.append(CANDIDATE, key, _payload(version, reason, run_id) | {"event": event})


def _payload(version: ModelVersionRef, reason: str, run_id: str) -> dict[str, str]:
    return {
        "event": PROMOTED,
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "previous_version": version.champion_version,
        "previous_digest": version.champion_digest,
        "evidence_digest": version.evidence_digest,
        "reason": reason,
        "run_id": run_id,
    }


def _promotion(version: ModelVersionRef, outcome: str, reason: str, ledger_seq: int = 0) -> PromotionRef:
    return PromotionRef(
        outcome=outcome,
        reason=reason,
        name=version.name,
        version=version.version,
        digest=version.digest,
        previous_version=version.champion_version,
        ledger_seq=ledger_seq,
    )


def _title(version: ModelVersionRef) -> str:
    return f"model {version.name} version {version.version}"
