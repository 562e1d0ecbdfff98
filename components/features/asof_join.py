"""Runs the point-in-time join of asof_sql.py: Arrow entity rows in, the same rows with features out, in their order.

Only a narrow (row, position) pair goes through DuckDB's ASOF JOIN; feature values are then picked by position. Entity
rows pass in chunks, so neither they nor the histories need to fit into memory: a history's values are kept where they
fit into a quarter of the limit, else each chunk reads the rows it matched.
"""

# ruff: noqa: S608  - names are quoted by asof_sql; SQL for entity rows is the caller's own code
from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.core.errors import TransientError, UserError, one_line
from components.features import asof_sql
from components.features.asof_keys import entity_key, entity_moments
from components.features.asof_sql import History
from components.features.repository import nearest

BATCH = 100_000
_GIB, _SAMPLE = 2**30, 2_000
_CHUNK = (20_000, 1_000_000)  # entity rows at a time: fewest, most


@dataclass(frozen=True)
class Limits:
    """What a join may use.

    Attributes:
        memory_gib: about, beside Python: half for DuckDB (which spills beyond it), a quarter for kept histories, the
            rest for the chunk.
        threads: DuckDB's threads; None: one a core.
        scratch: folder for spilled data; None: the system's.
        repo: folder that relative paths in SQL begin at.
        filesystems: fsspec file systems for remote paths.
    """

    memory_gib: float = 4.0
    threads: int | None = None
    scratch: str | None = None
    repo: str | None = None
    filesystems: tuple[Any, ...] = ()


@contextmanager
def engine(limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    """A private DuckDB within the limits: UTC, no extension is fetched, spilled data is removed at the end."""
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotline-asof-", dir=limits.scratch))
        config: dict[str, Any] = {
            "autoinstall_known_extensions": False,
            "memory_limit": f"{int(limits.memory_gib * 512 * 1024)}KiB",
            "temp_directory": scratch,
            "asof_loop_join_threshold": 0,  # rows from Arrow are estimated as one: nested loops would be chosen
        }
        if limits.threads:
            config["threads"] = limits.threads
        if limits.repo:
            config["file_search_path"] = limits.repo
        connection = stack.enter_context(duckdb.connect(":memory:", config=config))
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        for filesystem in limits.filesystems:
            connection.register_filesystem(filesystem)
        yield connection


def join_features(
    histories: Sequence[History],
    rows: pa.Table | str,
    moment: str,
    known_only: bool = False,
    limits: Limits | None = None,
) -> Iterator[pa.Table]:
    """The entity rows with the histories' features, in their order, chunk by chunk; at least one chunk.

    Args:
        rows: entity rows, or a SELECT that DuckDB runs.
        moment: their column of the event time.
        known_only: see asof_sql.

    Returns:
        tables of shape (chunk, entity columns + features); entity columns are handed through untouched.

    Raises:
        UserError: a column is absent, two results have one name, or keys or times have types that do not compare.
    """
    limits, stamps = limits or Limits(), _stamps(histories)
    with engine(limits) as connection:
        views = [_View(connection, f"steps{at}", one, known_only, limits) for at, one in enumerate(histories)]
        names = schema_of(connection, rows).names
        check_names(names, moment, histories)
        width = sum(view.row_bytes for view in views) + 8 * len(names)
        size = int(np.clip(limits.memory_gib * _GIB / 8 / width, *_CHUNK))
        for chunk in _chunks(connection, rows, size):
            moments = entity_moments(chunk[moment], moment)
            for view in views:
                chunk = view.add_to(chunk, moments)  # noqa: PLW2901 - the chunk grows by one view after the other
            if stamps != _stamps(histories):
                raise TransientError("a feature source was written to while it was read; run it again")
            yield chunk


def schema_of(connection: duckdb.DuckDBPyConnection, rows: pa.Table | str) -> pa.Schema:
    """The entity rows' schema, without running the SQL."""
    if isinstance(rows, pa.Table):
        return rows.schema
    try:
        return connection.execute(f"SELECT * FROM ({rows}) LIMIT 0").to_arrow_table().schema
    except duckdb.Error as error:
        raise UserError(f"entity rows: DuckDB cannot run the SQL ({one_line(error)[:300]})") from error


def check_names(columns: Sequence[str], moment: str, histories: Sequence[History]) -> None:
    """UserError where the entity rows lack a column, or two columns of the result would have one name."""
    for history in histories:
        for key, _ in history.keys:
            if key not in columns:
                raise UserError(f"entity rows: no column {key!r}, a join key of {history.name}{nearest(key, columns)}")
    if moment not in columns:
        raise UserError(f"entity rows: no column {moment!r} with the event time{nearest(moment, columns)}")
    taken: dict[str, str] = {}
    named = [(column, "the entity rows") for column in columns]
    named += [(feature, f"feature view {one.name}") for one in histories for feature, _ in one.features]
    for name, owner in named:
        if name in taken:
            raise UserError(
                f"two columns of the result would be called {name!r}: of {taken[name]} and of {owner}; "
                "rename one, or ask for full_feature_names"
            )
        taken[name] = owner


def describe(connection: duckdb.DuckDBPyConnection, history: History) -> dict[str, str]:
    """Columns of a history's source and their DuckDB types.

    Raises:
        UserError: the source cannot be read, lacks a column, or its times are not times.
    """
    try:
        rows = connection.execute(f"DESCRIBE SELECT * FROM {asof_sql.scan(history.files)}").fetchall()
    except duckdb.Error as error:
        raise UserError(f"{history.name}: its source cannot be read ({one_line(error)[:300]})") from error
    types = {name: kind for name, kind, *_ in rows}
    for column in history.columns:
        if column not in types:  # DuckDB would take a column whose name differs in case only
            raise UserError(f"{history.name}: its source has no column {column!r}{nearest(column, [*types])}")
    if clash := [name for name in types if name.lower() in asof_sql.VIRTUAL]:
        raise UserError(f"{history.name}: DuckDB reserves the name {clash[0]!r} in Parquet files; rename the column")
    for column in filter(None, (history.event, history.created)):
        if not types[column].startswith(("TIMESTAMP", "DATE")):
            raise UserError(f"{history.name}: {column!r} is {types[column]}, not a time; write it as a timestamp")
    return types


class _View:
    """A history within one join: its steps as a table, its values kept or read on demand."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, table: str, history: History, known_only: bool, limits: Limits
    ) -> None:
        describe(connection, history)
        self._connection, self._table, self._history = connection, table, history
        connection.execute(f"CREATE TABLE {table} AS {asof_sql.steps(history, known_only)}")
        keys = ", ".join(f"key{at}" for at in range(len(history.keys))) or "since"
        self._key_types = connection.execute(f"SELECT {keys} FROM {table} LIMIT 0").to_arrow_table().schema.types
        self._kept = _Values.within(connection, history, int(limits.memory_gib * _GIB / 4))
        sample = self._kept or _Values.of_first(connection, history, _SAMPLE)
        self.row_bytes = sample.row_bytes

    def add_to(self, chunk: pa.Table, moments: pa.ChunkedArray) -> pa.Table:
        """Append the features as they were at `moments` (int64 microseconds) to the chunk of entity rows."""
        places = self._match(chunk, moments)
        found = places >= 0
        values = self._kept or _Values.of(self._connection, self._history, np.unique(places[found]))
        taken = pa.array(values.index(places), mask=~found)
        for at, (name, _) in enumerate(self._history.features):
            chunk = chunk.append_column(name, pc.take(values.column(at), taken, boundscheck=False))
        return chunk

    def _match(self, chunk: pa.Table, moments: pa.ChunkedArray) -> np.ndarray:
        """The matched position of each row, -1 for none."""
        columns = {"row": pa.array(np.arange(len(chunk), dtype=np.int32)), "moment": moments}
        for at, (key, _) in enumerate(self._history.keys):
            columns[f"key{at}"] = entity_key(chunk[key], self._key_types[at], f"{self._history.name}: join key {key!r}")
        self._connection.register("asked", pa.table(columns))
        try:
            query = asof_sql.match(self._history, "asked", self._table)
            found = self._connection.execute(query).to_arrow_table()
        finally:
            self._connection.unregister("asked")
        places = np.full(len(chunk), -1, dtype=np.int64)
        places[found["row"].to_numpy()] = pc.fill_null(found["position"], -1).to_numpy()
        return places


class _Values:
    """Feature values of source rows, found by position."""

    def __init__(self, table: pa.Table) -> None:
        table = table.combine_chunks()
        positions = table["position"].to_numpy()
        if (np.diff(positions) <= 0).any():  # DuckDB gives the order of the files, but need not
            order = np.argsort(positions)
            table, positions = table.take(pa.array(order)).combine_chunks(), positions[order]
        self._columns, self._positions = table.columns[1:], positions
        self.row_bytes = 16 + table.nbytes // max(1, len(positions))
        self._whole = len(positions) == 0 or int(positions[-1]) == len(positions) - 1

    @classmethod
    def within(cls, connection: duckdb.DuckDBPyConnection, history: History, limit: int) -> _Values | None:
        """All values of a history, None where they take more than `limit` bytes."""
        reader = connection.execute(asof_sql.values(history, None)).to_arrow_reader(BATCH)
        batches, size = [], 0
        for batch in reader:
            size += batch.nbytes
            if size > limit:
                return None
            batches.append(batch)
        return cls(pa.Table.from_batches(batches, reader.schema))

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, history: History, positions: np.ndarray) -> _Values:
        """The values at these positions."""
        connection.register("wanted", pa.table({"position": positions}))
        try:
            return cls(connection.execute(asof_sql.values(history, "wanted")).to_arrow_table())
        finally:
            connection.unregister("wanted")

    @classmethod
    def of_first(cls, connection: duckdb.DuckDBPyConnection, history: History, count: int) -> _Values:
        """The values of the first rows."""
        return cls(connection.execute(f"{asof_sql.values(history, None)} LIMIT {count}").to_arrow_table())

    def index(self, positions: np.ndarray) -> np.ndarray:
        """Where each position is; of no meaning for negative ones."""
        return positions if self._whole else np.searchsorted(self._positions, positions)

    def column(self, at: int) -> pa.Array | pa.ChunkedArray:
        """Values of one feature, in the order of position."""
        column = self._columns[at]
        return column.chunk(0) if column.num_chunks == 1 else column


def _stamps(histories: Sequence[History]) -> list[tuple[int, int] | None]:
    """Size and time of change of each local file."""
    stamps: list[tuple[int, int] | None] = []
    for file in (file for history in histories for file in history.files):
        try:
            known = Path(asof_sql.unescaped(file)).stat()
        except OSError:  # remote, or gone: DuckDB says so
            stamps.append(None)
        else:
            stamps.append((known.st_size, known.st_mtime_ns))
    return stamps


def _chunks(connection: duckdb.DuckDBPyConnection, rows: pa.Table | str, size: int) -> Iterator[pa.Table]:
    """The entity rows, `size` at a time; one empty chunk where there is no row."""
    if isinstance(rows, pa.Table):
        yield from (rows.slice(at, size) for at in range(0, max(1, len(rows)), size))
        return
    with connection.cursor() as own:  # its result is read while the connection runs other queries
        try:
            reader = own.execute(rows).to_arrow_reader(size)
            empty = True
            for batch in reader:
                empty = False
                yield pa.Table.from_batches([batch])
            if empty:
                yield pa.Table.from_batches([], reader.schema)
        except duckdb.Error as error:
            raise UserError(f"entity rows: DuckDB cannot run the SQL ({one_line(error)[:300]})") from error
