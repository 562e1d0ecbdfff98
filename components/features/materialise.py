"""Materialise: the newest known values of history tables into an online store. Incremental, restartable, idempotent.

A history table is a Parquet file with text join keys, event_timestamp, created_timestamp and features as doubles
(see history.py). One DuckDB pass takes each entity's newest row; the store keeps the newest whatever comes when, so
an interval that is written twice, or in part, does no harm. How far a table is written is kept together with the
history's digest: of another history, which may say more of the same past, all is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from components.core.digest import file_digest
from components.core.errors import UserError, one_line
from components.features.latest.entries import LatestStore, Written, key_of, pack_numbers

ROWS = 50_000
CLOCKS = timedelta(minutes=5)  # by which the clocks of two machines may differ
EVENT, CREATED = "pilotline:event", "pilotline:created"  # beside the project's own names


@dataclass(frozen=True)
class Materialised:
    """What was written of one view: the entities whose newest row lies in the interval, and where the interval ends.

    older: entities that were not, since the store holds a newer row of them.
    """

    view: str
    rows: int
    until: str
    older: int = 0


def materialise(
    store: LatestStore,
    table: str,
    history: Path,
    join_keys: Sequence[str],
    features: Sequence[str],
    until: datetime,
    whole: bool = False,
    rebuild: bool = False,
) -> Materialised:
    """Write what became known of a view up to `until`, from where the last call with the same history ended.

    Args:
        store: where to.
        table: the view's name in the store.
        history: its Parquet file.
        join_keys: text columns, in any order.
        features: double columns.
        until: the last moment (UTC) that is taken, of created_timestamp; not in the future.
        whole: from the beginning, not from the mark of the last call.
        rebuild: forget first what the store holds, also newer values; until the end some entities are missing there.

    Raises:
        UserError: the file is no such history.
        TransientError: the store does not answer; run again, and the rest is written.
    """
    if until > datetime.now(UTC) + CLOCKS:
        raise UserError(
            f"until {until.isoformat()}: lies in the future, whose values nobody knows; give a time up to now"
        )
    try:
        mark = {"history": file_digest(history), "until": until.astimezone(UTC).isoformat(timespec="microseconds")}
    except OSError as error:
        raise UserError(f"{history}: cannot be materialized ({error.strerror})") from error
    if rebuild:
        store.drop(table)
    kept = json.loads(store.mark(table) or "{}")
    since = kept["until"] if kept.get("history") == mark["history"] and not whole else ""
    given = 0

    def counted() -> Iterator[Written]:
        nonlocal given
        for entry in _newest(history, sorted(join_keys), features, since, until):
            given += 1
            yield entry

    rows = store.write(table, counted())
    mark["until"] = max(since, mark["until"])
    store.set_mark(table, json.dumps(mark))
    return Materialised(table, rows, mark["until"], given - rows)


def _newest(
    history: Path, join_keys: Sequence[str], features: Sequence[str], since: str, until: datetime
) -> Iterator[Written]:
    keys = ", ".join(_quoted(key) for key in join_keys)
    wanted = ", ".join(_quoted(name) for name in ("event_timestamp", "created_timestamp", *features))
    with closing(duckdb.connect(config={"threads": 2})) as connection:
        newest = f"""
            SELECT {keys}, epoch_us(event_timestamp) AS "{EVENT}", epoch_us(created_timestamp) AS "{CREATED}",
                   {", ".join(f"CAST({_quoted(name)} AS DOUBLE) AS {_quoted(name)}" for name in features)}
            FROM (SELECT {keys}, {wanted} FROM read_parquet(?)
                  WHERE epoch_us(created_timestamp) BETWEEN ? AND ?)
            QUALIFY row_number() OVER (
                PARTITION BY {keys} ORDER BY event_timestamp DESC, created_timestamp DESC) = 1
            ORDER BY {keys}
        """  # noqa: S608 - quoted names of the project's own columns
        try:
            interval = [_microseconds(since) + 1 if since else -(2**62), _microseconds(until.isoformat())]
            reader = connection.execute(newest, [str(history), *interval]).to_arrow_reader(ROWS)
            for batch in reader:
                yield from _written(batch, join_keys, features)
        except duckdb.Error as error:
            raise UserError(f"{history}: cannot be materialized ({one_line(error)[:300]})") from error


def _written(batch: pa.RecordBatch, join_keys: Sequence[str], features: Sequence[str]) -> Iterator[Written]:
    columns = [batch.column(name).to_pylist() for name in join_keys]
    numbers = [batch.column(name).to_numpy(zero_copy_only=False) for name in features]
    bodies = pack_numbers(features, np.column_stack(numbers) if numbers else np.empty((batch.num_rows, 0)))
    events, made = (batch.column(name).to_pylist() for name in (EVENT, CREATED))
    keys = map(key_of, zip(*columns, strict=True))
    return map(Written, keys, events, made, bodies)


def _microseconds(moment: str) -> int:
    return (datetime.fromisoformat(moment) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
