"""Approval by people: a request in the ledger with all that is judged again when the last word that it needs is given.

Entries of kind `approval`: `requested` holds the candidate, its rollout and the policy; `approved`, `rejected` and
`lapsed` name the request by its entry. A request ends by a promotion, a rejection, or by lapsing: its time ran out, or
another version won. An entry of kind `policy` (see policies.py) puts other people in charge, of open requests too: only
words of people whom it names count from then on, also those that were given before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from components.core.errors import PolicyRefusal, UserError
from components.core.home import safe_name
from components.core.ledger import Entry, Lease, Ledger
from components.core.people import Person, Policy, given_reason
from components.core.records import ModelVersionRef, PromotionRef, RolloutReport
from components.registry.aliases import follow
from components.registry.champions import PROMOTED, PROMOTION, REFUSED, top
from components.registry.ports import ModelRegistry
from components.registry.transaction import (
    AlreadyChampionError,
    Candidate,
    check,
    lease_name,
    outcome_of,
    payload_of,
    stop,
    transact,
    unchanged,
)
from components.registry.whole import check_registered, check_whole

APPROVAL, POLICY, AWAITING = "approval", "policy", "awaiting_approval"
REQUESTED, APPROVED, REJECTED, LAPSED = "requested", "approved", "rejected", "lapsed"


@dataclass(frozen=True)
class Request:
    """A request, the approvals given so far, and the entry that ended it without a promotion.

    changed: the policy that the ledger's owner put in force while it was open.
    """

    entry: Entry
    votes: tuple[Entry, ...] = ()
    end: Entry | None = None
    changed: Policy | None = None

    @property
    def candidate(self) -> Candidate:
        """What it is about, as it was when it was asked."""
        said = self.entry.payload
        return Candidate(
            ModelVersionRef.from_dict(said["record"]),
            RolloutReport.from_dict(said["report"]),
            said["run_id"],
            self.policy,
            tuple(said["requesters"]),
            self.changed or Policy.from_dict(said.get("declared", said["policy"])),
        )

    @property
    def policy(self) -> Policy:
        """Which governs it."""
        return self.changed or Policy.from_dict(self.entry.payload["policy"])

    @property
    def counted(self) -> tuple[Entry, ...]:
        """The words that count: of people who may approve by the policy that governs it now."""
        named = self.policy.may_approve
        return tuple(vote for vote in self.votes if named is None or vote.payload["by"]["name"] in named)

    @property
    def expires(self) -> datetime:
        """When it lapses."""
        return datetime.fromisoformat(self.entry.time) + timedelta(hours=self.policy.expires_hours)

    @property
    def granted(self) -> bool:
        """Whether as many people approved as were asked for."""
        return len(self.counted) >= self.policy.required

    @property
    def said(self) -> str:
        """Where it stands, in words."""
        policy = self.candidate.policy
        named = policy.may_approve
        who = f" of {', '.join(named)}" if named is not None else ""
        given = ", ".join(vote.payload["by"]["name"] for vote in self.counted) or "none"
        until = self.expires.isoformat(timespec="minutes")
        other = "" if self.candidate.declared in (None, policy) else "; its recipe changes who decides from then on"
        words = f"{policy.required} approval{'s' * (policy.required != 1)}"
        return f"needs {words}{who} until {until}; so far: {given}{other}"


def requests(ledger: Ledger) -> list[Request]:
    """All requests of the ledger, oldest first."""
    found: dict[int, Request] = {}
    for entry in sorted([*ledger.entries(APPROVAL), *ledger.entries(POLICY)], key=lambda entry: entry.seq):
        if entry.kind == POLICY:
            changed = Policy.from_dict(entry.payload["policy"])
            about = entry.payload["name"]
            found |= {
                at: replace(asked, changed=changed)
                for at, asked in found.items()
                if asked.entry.payload["name"] == about and asked.end is None
            }
            continue
        event, seq = entry.payload["event"], int(entry.payload.get("request", 0))
        if event == REQUESTED:
            found[entry.seq] = Request(entry)
        elif event == APPROVED:
            found[seq] = replace(found[seq], votes=(*found[seq].votes, entry))
        elif found[seq].end is None:
            found[seq] = replace(found[seq], end=entry)
    return list(found.values())


def ask(candidate: Candidate, ledger: Ledger, tracking: ModelRegistry, lease: Lease, reason: str) -> Request:
    """Ask for approval, or find the request that this run made before.

    Raises:
        PolicyRefusal: another version won meanwhile; noted as in the promotion itself.
    """
    if (entry := ledger.find(candidate.request_key)) is None:
        try:
            unchanged(candidate)(ledger.entries(PROMOTION))
        except AlreadyChampionError:
            pass  # asked all the same: `proceed` says that there is nothing to decide
        except PolicyRefusal as refused:
            stop(candidate, REFUSED, str(refused), ledger, tracking, lease)
            raise
        payload = payload_of(candidate, REQUESTED, reason) | {
            "record": candidate.version.to_dict(),
            "report": replace(candidate.report, timeline=()).to_dict(),
            "report_digest": candidate.report.record_digest,
            "policy": candidate.policy.to_dict(),
            "declared": (candidate.declared or candidate.policy).to_dict(),
            "requesters": list(candidate.requesters),
        }
        entry = ledger.append(APPROVAL, candidate.request_key, payload, fence=lease)
    return _of(ledger, entry.seq)


def proceed(
    request: Request, ledger: Ledger, tracking: ModelRegistry, lease: Lease, models_root: Path | None = None
) -> PromotionRef:
    """Promote where enough people approved, else say what is awaited; the promotion judges everything again.

    Raises:
        PolicyRefusal: it was rejected, its time ran out, or another version won. IntegrityError: record, files or
            signature are not as they were registered.
    """
    candidate = request.candidate
    if (done := ledger.find(candidate.key)) is not None:
        follow(candidate.version.name, ledger, tracking)
        return outcome_of(candidate.version, PROMOTED, str(done.payload["reason"]), done)
    if request.end is not None:
        stop(candidate, REFUSED, _ended(request), ledger, tracking, lease)  # a kill may have left this out
        raise PolicyRefusal(_ended(request))
    try:
        _judge_again(request, ledger)
    except AlreadyChampionError:
        follow(candidate.version.name, ledger, tracking)
        return outcome_of(candidate.version, PROMOTED, "it is champion already")
    except PolicyRefusal as refused:
        _end(request, LAPSED, str(refused), ledger, lease)
        stop(candidate, REFUSED, str(refused), ledger, tracking, lease)
        raise
    if not request.granted:
        return outcome_of(candidate.version, AWAITING, request.said, request.entry)
    last_look(candidate, ledger, models_root, known=False)
    approvals = [vote.payload["by"] | {"reason": vote.payload["reason"], "seq": vote.seq} for vote in request.counted]
    return transact(candidate, ledger, tracking, lease, str(request.entry.payload["reason"]), approvals)


def approve(
    name: str,
    version: str,
    who: Person,
    reason: str,
    ledger: Ledger,
    tracking: ModelRegistry,
    models_root: Path | None = None,
) -> tuple[PromotionRef, str]:
    """A person approves; the word that was still missing promotes, where everything still holds.

    The same person twice counts once. Returns how it stands now, and the run that asked.

    Raises:
        UserError: no reason, or nothing is asked for this version. PolicyRefusal: this person may not, it was
            rejected, its time ran out, or another version won. IntegrityError: the version's files are damaged.
    """
    reason = given_reason(reason)
    with ledger.hold(lease_name(safe_name(name, "model name"))) as lease:
        request = _asked(name, version, ledger)
        candidate = request.candidate
        if _is_open(request, ledger):
            candidate.policy.allow_approval(who.name, candidate.requesters)
            last_look(candidate, ledger, models_root, known=False)  # it asked, so it was known then
            key = f"approval:{request.entry.seq}:{APPROVED}:{who.name.casefold()}"
            ledger.append(APPROVAL, key, _word(request, APPROVED, reason, who), fence=lease)
        elif request.end is None:
            candidate.policy.allow_approval(who.name, candidate.requesters)
            now = top(candidate.version.name, ledger.entries(PROMOTION))
            if now is None or now.version != version:
                said = f"version {now.version} is champion now" if now else "none is champion now"
                raise PolicyRefusal(f"{candidate.title}: was promoted and is over; {said}; let a run bring it up again")
        return proceed(_of(ledger, request.entry.seq), ledger, tracking, lease, models_root), candidate.run_id


def reject(
    name: str, version: str, who: Person, reason: str, ledger: Ledger, tracking: ModelRegistry
) -> tuple[PromotionRef, str]:
    """A person rejects: these bytes are refused for good, also for other runs. Returns the end and the run that asked.

    Raises:
        UserError: no reason, or nothing is asked for this version. PolicyRefusal: this person may not, or it has ended
            already.
    """
    reason = given_reason(reason)
    with ledger.hold(lease_name(safe_name(name, "model name"))) as lease:
        request = _asked(name, version, ledger)
        candidate = request.candidate
        if not _is_open(request, ledger):
            promoted = ledger.find(candidate.key) is not None
            why = "was promoted already; `pilotline models rollback` takes it back" if promoted else _ended(request)
            raise PolicyRefusal(f"{candidate.title}: {why}" if promoted else why)
        candidate.policy.allow_approval(who.name, ())  # one who started the run may well take it back
        entry = _end(request, REJECTED, reason, ledger, lease, who)
        said = _ended(replace(request, end=entry))
        stop(candidate, REFUSED, said, ledger, tracking, lease)
        return outcome_of(candidate.version, REFUSED, said, entry), candidate.run_id


def follow_up(seq: int, ledger: Ledger, tracking: ModelRegistry, models_root: Path | None = None) -> PromotionRef:
    """How the request of this entry stands or ended, without anybody's word; a lapsed one is ended.

    Raises:
        UserError: there is no such request. IntegrityError: it would be promoted now, but its files are damaged.
    """
    request = _of(ledger, seq)
    candidate = request.candidate
    with ledger.hold(lease_name(candidate.version.name)) as lease:
        try:
            return proceed(_of(ledger, seq), ledger, tracking, lease, models_root)
        except PolicyRefusal as refused:
            return outcome_of(candidate.version, REFUSED, str(refused), request.entry)


def last_look(candidate: Candidate, ledger: Ledger, models_root: Path | None, known: bool) -> None:
    """What every road to a promotion passes right before its entry: record, files and signature as registered.

    Args:
        candidate: what would be promoted.
        ledger: what registration noted.
        models_root: the kept models; None looks at no files.
        known: whether a version that the ledger knows nothing of is refused.

    Raises:
        IntegrityError: they are not. PolicyRefusal: the gate refused it.
    """
    version = candidate.version
    check_registered(version, ledger, known)
    if models_root is not None:
        check_whole(version.name, version.version, version.digest, models_root, ledger)


def refuse_rejected(candidate: Candidate, ledger: Ledger) -> None:
    """PolicyRefusal where a person rejected these very bytes before, in whatever run."""
    for request in requests(ledger):
        said, end = request.entry.payload, request.end
        same = (said["name"], said["digest"]) == (candidate.version.name, candidate.version.digest)
        if same and end is not None and end.payload["event"] == REJECTED:
            raise PolicyRefusal(_ended(request))


def _judge_again(request: Request, ledger: Ledger) -> None:
    """Time, rollout evidence and champion, as they are now; AlreadyChampionError where nothing is left to do."""
    candidate = request.candidate
    if ledger.now() >= request.expires:
        hours = candidate.policy.expires_hours
        raise PolicyRefusal(f"{candidate.title}: no approval within {hours:g} hours; it has to be judged again")
    check(candidate)
    refuse_rejected(candidate, ledger)
    unchanged(candidate)(ledger.entries(PROMOTION))


def _asked(name: str, version: str, ledger: Ledger) -> Request:
    """The latest request for a version."""
    found = [
        request
        for request in requests(ledger)
        if (request.entry.payload["name"], request.entry.payload["version"]) == (name, version)
    ]
    if not found:
        raise UserError(
            f"model {name} version {version}: nobody asked for an approval; `pilotline models history {name}` tells"
        )
    return found[-1]


def _is_open(request: Request, ledger: Ledger) -> bool:
    return request.end is None and ledger.find(request.candidate.key) is None


def _of(ledger: Ledger, seq: int) -> Request:
    for request in requests(ledger):
        if request.entry.seq == seq:
            return request
    raise UserError(f"ledger entry {seq}: is no request for approval")


def _end(request: Request, event: str, reason: str, ledger: Ledger, lease: Lease, who: Person | None = None) -> Entry:
    return ledger.append(APPROVAL, f"approval:{request.entry.seq}:end", _word(request, event, reason, who), fence=lease)


def _word(request: Request, event: str, reason: str, who: Person | None) -> dict[str, Any]:
    said = request.entry.payload
    about = {name: said[name] for name in ("name", "version", "digest", "run_id")}
    by = {"by": who.to_dict()} if who else {}
    return about | {"event": event, "request": request.entry.seq, "reason": reason} | by


def _ended(request: Request) -> str:
    """Why it ended, in words."""
    assert request.end is not None
    payload = request.end.payload
    if payload["event"] == LAPSED:
        return str(payload["reason"])
    return f"{request.candidate.title}: rejected by {payload['by']['name']}: {payload['reason']}"
