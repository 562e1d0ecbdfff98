"""What a person decides: put a version in front of users without a rollout, or take the last one back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.core.errors import PolicyRefusal, TransientError, UserError
from components.core.home import safe_name
from components.core.ledger import Entry, Ledger
from components.core.people import PROMOTE, ROLL_BACK, Person, given_reason, identify
from components.core.records import PromotionRef
from components.registry.aliases import follow, is_followed
from components.registry.champions import (
    CANDIDATE,
    PROMOTED,
    PROMOTION,
    REFUSED,
    ROLLBACK,
    ROLLED_BACK,
    Live,
    stack,
    top,
)
from components.registry.decision_signature import check_decision
from components.registry.policies import declared_for, policy_for, policy_in_force
from components.registry.ports import ModelRegistry
from components.registry.transaction import lease_name
from components.registry.whole import check_whole

BY_HAND = "by hand"


def rollback(
    name: str,
    ledger: Ledger,
    tracking: ModelRegistry,
    reason: str,
    models_root: Path | None = None,
    who: Person | None = None,
    taken_back: str = "",
) -> PromotionRef:
    """Take the champion back: the version that was champion before it is champion again.

    A roll-back whose aliases and anchor did not follow is finished first; asked again with its reason it is not
    repeated. An alias that was moved by hand is put right and the roll-back is done.

    Args:
        name: model name.
        ledger: source of truth.
        tracking: registry whose aliases follow.
        reason: why, for the record.
        models_root: where given, the target's files are checked first.
        who: who decides; default whoever runs this.
        taken_back: the version to take back; where it was taken back last, nothing is done again.

    Raises:
        UserError: no reason, or the model has no champion. PolicyRefusal: this person may not, there is no earlier
            version, or another version than `taken_back` is champion. IntegrityError: the target's files are damaged.
            TransientError: somebody else is deciding, or the registry does not follow.
    """
    safe_name(name, "model name")
    reason, who = given_reason(reason), who or identify()
    policy_in_force(name, ledger).allow(who.name, ROLL_BACK)
    seen = [entry.seq for entry in _own(name, ledger)]
    with ledger.hold(lease_name(name)) as lease:
        entries = _own(name, ledger)
        if not (standing := stack(name, entries)):
            raise UserError(f"model {name}: has no champion; `pilotline models list` shows what there is")
        if _is_repeated(entries[-1], reason, taken_back, tracking):
            follow(name, ledger, tracking)
            return _outcome(name, standing[-1], entries[-1])
        if taken_back and taken_back != standing[-1].version:
            raise PolicyRefusal(
                f"model {name}: version {standing[-1].version} is champion, not {taken_back}; look again"
            )
        _same_as(name, seen, entries)
        if len(standing) == 1:
            raise PolicyRefusal(
                f"model {name}: version {standing[0].version} is the first; there is none to go back to"
            )
        current, target = standing[-1], standing[-2]
        if models_root is not None:
            check_whole(name, target.version, target.digest, models_root, ledger)
        payload = _payload(name, ROLLBACK, target.version, target.digest, current, reason, who)
        key = f"rollback:{name}:{current.seq}:{len(entries)}"
        entry = ledger.append(PROMOTION, key, payload, _still(name, current), fence=lease)
        try:
            follow(name, ledger, tracking)
        except TransientError as error:
            raise TransientError(
                f"model {name}: version {target.version} is champion again (entry {entry.seq}), but the registry does "
                f"not follow: {error}; then `pilotline models repair {name}`"
            ) from error
        return _outcome(name, target, entry)


def promote_by_hand(
    name: str,
    version: str,
    ledger: Ledger,
    tracking: ModelRegistry,
    reason: str,
    models_root: Path | None = None,
    who: Person | None = None,
) -> PromotionRef:
    """Make a registered version champion without a rollout, or an earlier champion again.

    Raises:
        UserError: no reason, or no such version. PolicyRefusal: this person may not, the gate or the canary stopped
            this version, or it never was champion and the policy asks for approvals. IntegrityError: the version's
            files are damaged, or the gate's decision is not as it was signed. TransientError: somebody else decides.
    """
    safe_name(name, "model name")
    reason, who = given_reason(reason), who or identify()
    policy = policy_for(name, declared_for(name, version, ledger), ledger)
    policy.allow(who.name, PROMOTE)
    seen = [entry.seq for entry in _own(name, ledger)]
    with ledger.hold(lease_name(name)) as lease:
        entries = _own(name, ledger)
        now = top(name, entries)
        digest = _eligible(name, version, ledger)
        check_decision(name, version, ledger)
        if now is not None and now.version == version:
            follow(name, ledger, tracking)
            return _outcome(name, now, next(entry for entry in entries if entry.seq == now.seq))
        _same_as(name, seen, entries)
        if policy.required and not any(entry.payload["version"] == version for entry in entries):
            raise PolicyRefusal(
                f"model {name} version {version}: never was champion and the recipe asks for {policy.required} "
                "approvals; let a run bring it up for `pilotline models approve`"
            )
        if models_root is not None:
            check_whole(name, version, digest, models_root, ledger)
        payload = _payload(name, PROMOTED, version, digest, now, reason, who) | {"policy": policy.to_dict()}
        key = f"{BY_HAND}:{name}:{version}:{digest}:{len(entries)}"
        entry = ledger.append(PROMOTION, key, payload, _still(name, now), fence=lease)
        follow(name, ledger, tracking)
        return _outcome(name, Live(version, digest, entry.time, entry.seq), entry)


def _own(name: str, ledger: Ledger) -> list[Entry]:
    return [entry for entry in ledger.entries(PROMOTION) if entry.payload["name"] == name]


def _is_repeated(last: Entry, reason: str, taken_back: str, tracking: ModelRegistry) -> bool:
    """Whether the last roll-back is asked for again: by the version it took back, or before it was followed.

    A roll-back that was followed and whose alias somebody moved later is over: asked then, a new one is meant.
    """
    if last.payload["event"] != ROLLBACK:
        return False
    if taken_back:
        return bool(last.payload["previous_version"] == taken_back)
    return last.payload["reason"] == reason and not is_followed(last, tracking)


def _same_as(name: str, seen: list[int], entries: list[Entry]) -> None:
    """What the person looked at is what is there now that nobody else decides."""
    if seen != [entry.seq for entry in entries]:
        now = top(name, entries)
        who = f"version {now.version}" if now else "none"
        raise PolicyRefusal(f"model {name}: the champion changed meanwhile to {who}; look again and decide anew")


def _eligible(name: str, version: str, ledger: Ledger) -> str:
    """The digest of a version that passed the gate and was not stopped by the canary."""
    own = [
        entry
        for entry in ledger.entries(CANDIDATE)
        if (entry.payload["name"], entry.payload["version"]) == (name, version)
    ]
    if not own:
        raise UserError(f"model {name}: version {version!r} is not registered; `pilotline models list` shows them")
    if stopped := [entry for entry in own if entry.payload["event"] in (REFUSED, ROLLED_BACK)]:
        raise PolicyRefusal(f"model {name} version {version}: was stopped: {stopped[-1].payload['reason']}; train anew")
    return str(own[-1].payload["digest"])


def _still(name: str, seen: Live | None) -> Callable[[list[Entry]], None]:
    """A guard: the champion is still the one that was seen when the decision was taken."""

    def guard(entries: list[Entry]) -> None:
        now = top(name, entries)
        if now != seen:
            who = f"version {now.version}" if now else "none"
            raise PolicyRefusal(f"model {name}: the champion changed meanwhile to {who}; look again and decide anew")

    return guard


def _payload(
    name: str, event: str, version: str, digest: str, previous: Live | None, reason: str, who: Person
) -> dict[str, Any]:
    return {
        "event": event,
        "name": name,
        "version": version,
        "digest": digest,
        "previous_version": previous.version if previous else "",
        "previous_digest": previous.digest if previous else "",
        "reason": reason,
        "run_id": BY_HAND,
        "by": who.to_dict(),
    }


def _outcome(name: str, live: Live, entry: Entry) -> PromotionRef:
    return PromotionRef(
        outcome=str(entry.payload["event"]),
        reason=str(entry.payload["reason"]),
        name=name,
        version=live.version,
        digest=live.digest,
        previous_version=str(entry.payload["previous_version"]),
        ledger_seq=entry.seq,
        ledger_hash=entry.hash,
    )
