"""Walk the chain and name the first entry that is altered, missing or out of order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from components.core.errors import IntegrityError
from components.core.ledger.entries import GENESIS, entry_hash, shown


@dataclass(frozen=True)
class Anchor:
    """What somebody outside of the ledger saw: entry `seq` had this hash; `where` it is written down."""

    seq: int
    hash: str
    where: str


def walk(rows: Iterable[Sequence[Any]], anchors: Sequence[Anchor] = ()) -> tuple[int, str]:
    """Check rows (seq, time, kind, key, payload, previous, hash) in the order of seq; returns count and last hash.

    Raises:
        IntegrityError: names the first entry that is altered, missing or out of order, or the first that an anchor
            knows otherwise. Anchors also show that the end was cut off or all of it written anew.
    """
    seen: dict[int, list[Anchor]] = {}
    for anchor in sorted(anchors, key=lambda anchor: (anchor.seq, anchor.where)):
        seen.setdefault(anchor.seq, []).append(anchor)
    expected, last = 1, GENESIS
    for seq, time, kind, key, payload, previous, sealed in rows:
        if seq != expected:
            raise IntegrityError(f"ledger: entry {expected} is missing (found {seq})")
        if previous != last:
            raise IntegrityError(f"ledger: entry {seq} does not follow entry {seq - 1}: altered or out of order")
        try:
            intact = entry_hash(seq, time, kind, key, payload, previous) == sealed
        except (TypeError, ValueError):  # no text, or bytes that are none
            intact = False
        if not intact:
            raise IntegrityError(f"ledger: entry {seq} ({shown(kind)} {shown(key)}) was altered")
        for anchor in seen.pop(seq, ()):
            if anchor.hash != sealed:
                raise IntegrityError(
                    f"ledger: entry {seq} ({shown(kind)} {shown(key)}) is not the one that {anchor.where} saw"
                )
        expected, last = seq + 1, sealed
    if seen:
        first = seen[min(seen)][0]
        raise IntegrityError(
            f"ledger: entry {expected} is missing: the end was cut off ({first.where} saw entry {first.seq})"
        )
    return expected - 1, last
