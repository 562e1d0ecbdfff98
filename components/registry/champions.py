"""Who is champion and who was: read from the ledger, which is the source of truth.

Entries of kind `promotion` put a version in front of users (event `promoted`) or take the last one back (event
`rollback`). Entries of kind `candidate` say how candidates ended that did not get there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from components.core.errors import UserError
from components.core.ledger import Entry, Ledger

PROMOTION, CANDIDATE = "promotion", "candidate"
PROMOTED, ROLLBACK = "promoted", "rollback"
REGISTERED, REFUSED, ROLLED_BACK, INCONCLUSIVE = "registered", "refused", "rolled_back", "inconclusive"


@dataclass(frozen=True)
class Live:
    """A version in front of users: since when (ISO 8601 UTC), by which ledger entry."""

    version: str
    digest: str
    since: str
    seq: int


def champion(name: str, ledger: Ledger) -> Live | None:
    """The version that is champion now."""
    return top(name, ledger.entries(PROMOTION))


def top(name: str, entries: Sequence[Entry]) -> Live | None:
    """The champion after these promotion entries."""
    standing = stack(name, entries)
    return standing[-1] if standing else None


def stack(name: str, entries: Sequence[Entry]) -> list[Live]:
    """The versions that a chain of roll-backs would go through, the champion last."""
    standing: list[Live] = []
    for entry in entries:
        if entry.payload["name"] != name:
            continue
        if entry.payload["event"] == ROLLBACK:
            standing = standing[:-1]
        else:
            standing = [*standing, Live(entry.payload["version"], entry.payload["digest"], entry.time, entry.seq)]
    return standing


def live_at(name: str, entries: Sequence[Entry], at: str) -> dict[str, Any]:
    """The one version that was in front of users at a moment (ISO 8601; without a zone UTC).

    A version is in front from the very microsecond of its entry until just before the next entry's; the last one for
    as long as nothing follows it.

    Raises:
        UserError: not a time, or no version was there yet.
    """
    moment = parse_time(at)
    own = [entry for entry in entries if entry.payload["name"] == name]
    until = [entry for entry in own if datetime.fromisoformat(entry.time) <= moment]
    if not until:
        first = f"; the first promotion was at {own[0].time}" if own else ""
        raise UserError(f"model {name}: no version was champion at {moment.isoformat()}{first}")
    last = until[-1]
    return {
        "name": name,
        "version": last.payload["version"],
        "digest": last.payload["digest"],
        "since": last.time,
        "at": moment.isoformat(),
        "event": last.payload["event"],
        "reason": last.payload["reason"],
    }


def parse_time(text: str) -> datetime:
    """An ISO 8601 time, taken as UTC where it names no zone; UserError where it is none."""
    try:
        moment = datetime.fromisoformat(text.strip() if text.isprintable() else "")
    except ValueError as error:
        raise UserError(f"time {text!r}: write it as 2026-11-30T12:00:00+00:00 or 2026-11-30") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
