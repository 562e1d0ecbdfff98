"""Point-in-time truth by search through everything, from the words of asof_sql and nothing else: plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True)
class Fact:
    """One row of a history: its key, when it happened, when it was written (None: not said), and its values."""

    keys: tuple[Any, ...]
    event: datetime | None
    created: datetime | None
    values: tuple[Any, ...]


def fact_at(
    history: Sequence[Fact],
    keys: tuple[Any, ...],
    moment: datetime | None,
    ttl: timedelta | None,
    known_only: bool,
    has_created: bool = True,
) -> Fact | None:
    """The fact that counts at `moment`; of facts alike in time the one written last, which is last in the list."""
    best: tuple[int, Fact] | None = None
    for place, fact in enumerate(history):
        if moment is None or fact.event is None or None in keys or fact.keys != keys:
            continue
        if fact.event > moment:
            continue
        if ttl and fact.event + ttl < moment:
            continue
        if known_only and has_created and (fact.created is None or fact.created > moment):
            continue
        if best is None or not _is_older(fact, best[1], has_created):
            best = place, fact
    return best[1] if best else None


def _is_older(one: Fact, other: Fact, has_created: bool) -> bool:
    assert one.event is not None
    assert other.event is not None
    if one.event != other.event:
        return one.event < other.event
    if not has_created or one.created == other.created:
        return False
    if one.created is None or other.created is None:
        return one.created is None
    return one.created < other.created
