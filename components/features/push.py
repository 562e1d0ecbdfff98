"""Push: rows of streaming events into the online store, by the same path on which the newest event wins.

A row is a JSON object on a line of its own: the view's join keys (text), `event_timestamp` and, where the record was
made later, `created_timestamp` (ISO 8601; UTC without a zone), every feature of the view (a number, or null), and
`view`, which may be left out where there is one only. Rows are read and checked in batches; a batch with a bad row is
not written at all, unless bad rows are to be skipped. The same rows again change nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from components.core.errors import UserError
from components.features.latest.entries import LatestStore, Written, key_of, pack_numbers
from components.features.materialise import CLOCKS
from components.features.on_demand import utc
from components.features.online import EPOCH, table_of
from components.features.repository import Service, View, nearest

VIEW, EVENT, CREATED = "view", "event_timestamp", "created_timestamp"
LONGEST_LINE = 1_000_000  # characters


class Rejected(NamedTuple):
    """A row that cannot be taken: its line, and why. Never its values, which may be personal."""

    line: int
    error: str


@dataclass(frozen=True)
class Pushed:
    """Rows that were written, those that were not, and how many of an older event or record than what is kept."""

    rows: int
    rejected: tuple[Rejected, ...]
    older: int = 0


def push(
    store: LatestStore,
    project: str,
    service: Service,
    lines: Iterable[str | bytes],
    *,
    batch: int = 0,
    skip_bad: bool = False,
    default_view: str = "",
) -> Iterator[Pushed]:
    """Write rows into the store; what became of each batch.

    Args:
        store: where to.
        project: the feature project's name.
        service: holds the views.
        lines: JSON objects; empty lines are passed over.
        batch: rows that are checked and written at once; 0: all. An endless stream needs some.
        skip_bad: write a batch's good rows though it has bad ones; else such a batch ends the reading.
        default_view: of rows that name none; "": the service's only one.

    Raises:
        UserError: there is no such view.
        TransientError: the store does not answer; push the rows again.
    """
    views = {view.name: view for view in service.views}
    if default_view and default_view not in views:
        raise UserError(
            f"--view: feature service {service.name} has no view {default_view!r}{nearest(default_view, [*views])}"
        )
    if len(views) == 1:
        default_view = default_view or next(iter(views))
    numbered = ((at, line) for at, line in enumerate(lines, start=1) if line.strip())
    while part := list(islice(numbered, batch or None)):
        good, bad = _checked(part, views, default_view)
        if bad and not skip_bad:
            yield Pushed(0, tuple(bad))
            return
        written = sum(store.write(table_of(project, view), rows) for view, rows in good.items())
        yield Pushed(written, tuple(bad), sum(map(len, good.values())) - written)


def _checked(
    part: Sequence[tuple[int, str | bytes]], views: Mapping[str, View], default: str
) -> tuple[dict[str, list[Written]], list[Rejected]]:
    good: dict[str, list[Written]] = {}
    bad = []
    latest = datetime.now(UTC) + CLOCKS
    for at, line in part:
        try:
            view, written = _row(line, views, default, latest)
        except UserError as error:
            bad.append(Rejected(at, str(error)))
        else:
            good.setdefault(view, []).append(written)
    return good, bad


def _row(line: str | bytes, views: Mapping[str, View], default: str, latest: datetime) -> tuple[str, Written]:
    """One line as an entry of its view; UserError says what is wrong with it."""
    row = _object(line)
    name = row.pop(VIEW, default)
    if not isinstance(name, str) or name not in views:
        raise UserError(f"{VIEW!r} names none of {', '.join(views)}")
    view = views[name]
    wanted = (*view.join_keys, EVENT, *view.features)
    if absent := [column for column in wanted if column not in row]:
        raise UserError(
            f"{absent[0]!r} is missing; {name} takes {', '.join(wanted)} (null where a feature has no value)"
        )
    if unknown := [column for column in row if column not in (*wanted, CREATED)]:
        raise UserError(f"{name} has no {unknown[0][:80]!r}{nearest(unknown[0], wanted)}")
    event = _moment(row[EVENT], EVENT, latest)
    created = _moment(row[CREATED], CREATED, latest) if CREATED in row else event
    if created < event:
        raise UserError(f"{CREATED} lies before {EVENT}: a record cannot be made before its event")
    numbers = [_number(row[feature], feature) for feature in view.features]
    key = key_of([_key(row[column], column) for column in sorted(view.join_keys)])
    return name, Written(key, event, created, pack_numbers(view.features, np.array([numbers]))[0])


def _object(line: str | bytes) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise UserError(f"the line is longer than {LONGEST_LINE} characters")
    try:
        row = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UserError("is no JSON object") from error
    if not isinstance(row, dict):
        raise UserError("is no JSON object")
    return row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{twice[:80]!r} stands there twice")
    return row


def _key(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"join key {column!r} is no text")
    if not value or "\0" in value:
        raise UserError(f"join key {column!r} is empty or holds a NUL, as no entity of a history does")
    return value


def _number(value: Any, feature: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"feature {feature!r} is no number (null where it has no value)")
    try:
        number = float(value)
    except OverflowError as error:
        raise UserError(f"feature {feature!r} is too large") from error
    if not math.isfinite(number):
        raise UserError(f"feature {feature!r} is not finite (null where it has no value)")
    return number


def _moment(value: Any, column: str, latest: datetime) -> int:
    """Microseconds since 1970."""
    try:
        moment = utc(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{column!r} is no time; write YYYY-MM-DDTHH:MM:SS+00:00") from error
    if moment > latest:
        raise UserError(f"{column!r} lies in the future, whose values nobody knows")
    return (moment - EPOCH) // timedelta(microseconds=1)
