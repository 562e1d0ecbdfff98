"""SQL for a point-in-time join on DuckDB's ASOF JOIN: text only, no engine and no Feast.

A view's history is reduced to narrow *steps*: per key, from which moment on (`since`, microseconds since 1970, UTC)
which source row (`position`) is the newest one, by event time, then by created time, then by place in the source (of
two rows that tie in everything the one written last counts). An entity row at moment t takes the last step with
since <= t, provided that its time to live reaches t, its last moment included. Null keys and null event times match
nothing. Two meanings of "newest":

- latest created wins (Feast's default): since = event time; of several versions of an event the last created counts,
  whenever it was created.
- as known then (`known_only`): a row counts from greatest(event time, created time) on, so a version that arrived
  later is not seen by earlier moments; a null created time is never known. A step is a row that is newer than all
  rows known before it.

Times with a zone are instants, times without one are UTC, both read to the microsecond.
"""

# ruff: noqa: S608  - this module is SQL text; names and files in it are quoted
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

FILE_BITS = 40  # position = file's place in the list << 40 | row of the file
VIRTUAL = ("file_index", "file_row_number")  # what DuckDB adds to the rows of Parquet files
POSITION = f"((h.file_index::BIGINT << {FILE_BITS}) | h.file_row_number)"  # grows in the order of writing
ROW = "asof row"
_LONGEST = 2**61  # microseconds: 73,000 years, so that time + ttl cannot leave 64 bits


@dataclass(frozen=True)
class History:
    """One feature view as the join sees it.

    Attributes:
        name: for messages.
        files: Parquet files in the order of writing, special characters of globs escaped.
        keys: (column of the entity rows, column of the source) for each join key; none: one history for all rows.
        event: the source's column of the event time.
        created: the source's column of the time of writing, or None.
        features: (name in the result, column of the source), in order.
        ttl: how long a value lives after its event; None or not above zero: for ever.
    """

    name: str
    files: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]
    event: str
    created: str | None
    features: tuple[tuple[str, str], ...]
    ttl: timedelta | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the source that the join reads."""
        created = [self.created] if self.created else []
        named = [*(key for _, key in self.keys), self.event, *created, *(column for _, column in self.features)]
        return tuple(dict.fromkeys(named))

    @property
    def ttl_microseconds(self) -> int | None:
        """The time to live, None where values live for ever."""
        if not self.ttl or self.ttl <= timedelta(0):
            return None
        return min(self.ttl // timedelta(microseconds=1), _LONGEST)


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def escaped(path: str) -> str:
    """A path in which DuckDB sees no glob."""
    return re.sub(r"[*?[]", lambda found: f"[{found[0]}]", path)


def unescaped(path: str) -> str:
    """The path that was escaped."""
    return re.sub(r"\[([*?[])\]", r"\1", path)


def scan(files: Sequence[str]) -> str:
    """The rows of Parquet files as `h`; a column that a file lacks is null there. Files must have no column VIRTUAL."""
    several = ", union_by_name=true" if len(files) > 1 else ""
    return f"read_parquet([{', '.join(literal(file) for file in files)}]{several}) AS h"


def steps(history: History, known_only: bool) -> str:
    """SELECT key0, key1, ..., since, position, and with a ttl until: at most one row a key and since."""
    keys = [f"key{at}" for at in range(len(history.keys))]
    until = [f"event + {history.ttl_microseconds} AS until"] if history.ttl_microseconds is not None else []
    out = ", ".join([*keys, "since", "position", *until])
    per_key = f"PARTITION BY {', '.join(keys)}" if keys else ""
    per_step = f"PARTITION BY {', '.join([*keys, 'since'])}"
    newest_first = "event DESC, created DESC NULLS LAST, position DESC"
    if not (known_only and history.created):
        return (
            f"SELECT {out} FROM ({_rows(history, 'event')}) "
            f"QUALIFY row_number() OVER ({per_step} ORDER BY {newest_first}) = 1"
        )
    known = (
        f"SELECT * FROM ({_rows(history, 'greatest(event, created)')}) WHERE created IS NOT NULL "
        f"QUALIFY row_number() OVER ({per_step} ORDER BY {newest_first}) = 1"
    )
    # Of equal event times the one known later was created later, so it is the newer version.
    return (
        f"SELECT {out} FROM ({known}) "
        f"QUALIFY event = max(event) OVER ({per_key} ORDER BY since ROWS UNBOUNDED PRECEDING)"
    )


def match(history: History, asked: str, steps_table: str) -> str:
    """SELECT the asked row's number and the matched position (absent or null: nothing is known).

    Args:
        asked: relation with `row`, `moment` (microseconds) and key0, key1, ...
        steps_table: relation made by `steps`.
    """
    on = " AND ".join([*(f"a.key{at} = s.key{at}" for at in range(len(history.keys))), "a.moment >= s.since"])
    alive = "CASE WHEN a.moment <= s.until THEN s.position END"
    found = alive if history.ttl_microseconds is not None else "s.position"
    # DuckDB's ASOF JOIN would sort a null moment behind all others and let it match.
    timed = f"(SELECT * FROM {asked} WHERE moment IS NOT NULL)"
    return f"SELECT a.row AS row, {found} AS position FROM {timed} a ASOF JOIN {steps_table} s ON {on}"


def values(history: History, wanted: str | None) -> str:
    """SELECT position, value0, value1, ...: the features of all rows, or of the positions in relation `wanted`."""
    named = [f"h.{quoted(column)} AS value{at}" for at, (_, column) in enumerate(history.features)]
    where = f" WHERE {POSITION} IN (SELECT position FROM {wanted})" if wanted else ""
    return f"SELECT {', '.join([f'{POSITION} AS position', *named])} FROM {scan(history.files)}{where}"


def every(files: Sequence[str], columns: Sequence[str], inside: str) -> str:
    """SELECT `columns` of the rows for which `inside` (on `h`) holds, in the order of writing."""
    return f"SELECT {_selected(columns)} FROM {scan(files)} WHERE {inside}"


def newest(
    files: Sequence[str], columns: Sequence[str], inside: str, keys: Sequence[str], event: str, created: str | None
) -> str:
    """SELECT `columns` of each key's newest row (as in `steps`) among those for which `inside` (on `h`) holds."""
    per_key = f"PARTITION BY {', '.join(f'h.{quoted(key)}' for key in keys)} " if keys else ""
    order = [f"epoch_us(h.{quoted(name)}) DESC NULLS LAST" for name in (event, created) if name]
    present = "".join(f" AND h.{quoted(key)} IS NOT NULL" for key in keys)
    positions = (
        f"SELECT {POSITION} AS position FROM {scan(files)} WHERE {inside}{present} "
        f"QUALIFY row_number() OVER ({per_key}ORDER BY {', '.join([*order, f'{POSITION} DESC'])}) = 1"
    )
    return f"SELECT {_selected(columns)} FROM {scan(files)} WHERE {POSITION} IN ({positions})"


def whole_statement(rows: str, columns: Sequence[str], moment: str, histories: Sequence[History], known: bool) -> str:
    """The whole join as one statement, for a reader or another tool; its rows come in the order of the entity rows.

    Args:
        rows: SELECT of the entity rows.
        columns: their columns.
        moment: their column of the event time.
        known: see `steps`.
    """
    row = quoted(ROW)
    parts = [f"asked AS (SELECT row_number() OVER () - 1 AS {row}, * FROM ({rows}))"]
    select, joins = [f"asked.{quoted(column)}" for column in columns], []
    for at, history in enumerate(histories):
        keys = [f"{quoted(key)} AS key{place}" for place, (key, _) in enumerate(history.keys)]
        narrow = ", ".join([f"{row} AS row", f"epoch_us({quoted(moment)}) AS moment", *keys])
        matched = match(history, f"(SELECT {narrow} FROM asked)", f"steps{at}")
        parts += [f"steps{at} AS ({steps(history, known)})", f"matched{at} AS ({matched})"]
        parts.append(f"history{at} AS ({values(history, None)})")
        joins.append(
            f"LEFT JOIN matched{at} ON matched{at}.row = asked.{row} "
            f"LEFT JOIN history{at} ON history{at}.position = matched{at}.position"
        )
        select += [f"history{at}.value{place} AS {quoted(name)}" for place, (name, _) in enumerate(history.features)]
    return f"WITH {', '.join(parts)} SELECT {', '.join(select)} FROM asked {' '.join(joins)} ORDER BY asked.{row}"


def _selected(columns: Sequence[str]) -> str:
    return ", ".join(f"h.{quoted(column)}" for column in columns)


def _rows(history: History, since: str) -> str:
    """SELECT key0, ..., event, created, position, since: rows that can match at all."""
    names = [f"key{at}" for at in range(len(history.keys))]
    keys = [f"h.{quoted(column)} AS {name}" for name, (_, column) in zip(names, history.keys, strict=True)]
    created = f"epoch_us(h.{quoted(history.created)})" if history.created else "NULL::BIGINT"
    narrow = [
        *keys,
        f"epoch_us(h.{quoted(history.event)}) AS event",
        f"{created} AS created",
        f"{POSITION} AS position",
    ]
    present = " AND ".join(f"{name} IS NOT NULL" for name in [*names, "event"])
    return f"SELECT *, {since} AS since FROM (SELECT {', '.join(narrow)} FROM {scan(history.files)}) WHERE {present}"
