"""History tables: a project's SQL, run in DuckDB, says what became known about an entity and when.

A SQL file is one SELECT over `rows`, and can read nothing else (see history_sql.py). Its columns: row_id,
event_timestamp (TIMESTAMP, UTC), known_timestamp (when the row's outcome counts as known: event_timestamp +
label_delay_days, never at the moment of the event itself, and not before the row reached us), superseded_timestamp
(when a correction replaced it, NULL where it holds: a corrected row stands twice, see known.py), label (0 or 1), and
every clean column as text (a column named like one of these is left out). The variables
`getvariable('label_delay_days')` and `getvariable('time_formats')` hold the recipe's values. It returns the join keys
(text), event_timestamp (when the values became known), created_timestamp (when this record of them was made; the same
where there is no such thing as a late record) and the features (numbers).

SQL can look into the future by mistake. So every table is made again as it would have been made at several moments
of the past, with outcomes not yet known hidden (the label, its column, and those that the contract declares to be
available after the outcome), and a row that differs is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.core.errors import UserError, one_line
from components.features.history_sql import ROWS, check_sql
from components.features.repository import View

MOMENTS = ("event_timestamp", "created_timestamp")
OWN_COLUMNS = ("row_id", "event_timestamp", "known_timestamp", "superseded_timestamp", "label")
RECORDED = "pilotline_recorded"


@dataclass(frozen=True)
class Rows:
    """What SQL sees: the clean text rows, their typed columns, the label's source column and the recipe's values.

    after_outcome: source columns beside the label's that are known with the outcome.
    recorded, superseded: between which moments (UTC) each row was what was known (see known.py); absent: it always was.
    """

    clean: pd.DataFrame
    typed: pd.DataFrame
    label_column: str
    label_delay_days: int
    time_formats: Sequence[str]
    recorded: pd.Series | None = None
    superseded: pd.Series | None = None
    after_outcome: tuple[str, ...] = ()

    @property
    def as_of(self) -> pd.Timestamp:
        """The moment at which everything in these rows counts as known: the last event's day plus the delay."""
        last: pd.Timestamp = self.typed["event_timestamp"].max()
        return last.normalize() + pd.Timedelta(days=self.label_delay_days)


def write_history(repo: Path, views: Sequence[View], rows: Rows, out: Path, cuts: Sequence[pd.Timestamp]) -> None:
    """Write `<table>.parquet` for each view's table into `out`, as known at `rows.as_of`, sorted by key and time.

    Args:
        cuts: moments of the past at which each table is checked for values that were not yet known.

    Raises:
        UserError: a SQL file is missing, fails, lacks a column, has two rows for one key and moment, looks ahead, or
            has values of the future only. What becomes known later (a window that ends) is left out.
    """
    out.mkdir(parents=True, exist_ok=True)
    with closing(_connect(rows)) as connection:
        for table in dict.fromkeys(view.table for view in views):
            of_table = [view for view in views if view.table == table]
            keys = tuple(dict.fromkeys(key for view in of_table for key in view.join_keys))
            features = tuple(dict.fromkeys(name for view in of_table for name in view.features))
            query = _Query(_sql(repo, table), f"{table}.sql", keys, features)
            check_sql(query.sql, query.where)
            whole = query.run(connection, rows, None)
            for cut in cuts:
                _refuse_foresight(query, connection, rows, whole, cut)
            known = _until(whole, _end_of_known(rows))
            if whole.num_rows and not known.num_rows:
                _refuse_future(query, whole, _end_of_known(rows))
            pq.write_table(known, out / f"{table}.parquet")


@dataclass(frozen=True)
class _Query:
    sql: str
    where: str
    keys: tuple[str, ...]
    features: tuple[str, ...]

    def run(self, connection: duckdb.DuckDBPyConnection, rows: Rows, cut: pd.Timestamp | None) -> pa.Table:
        """The table as it would be made at `cut` (None: with all rows)."""
        seen = connection.execute(_select(rows, cut)).to_arrow_table()
        with closing(_sandbox(rows, seen)) as alone:
            try:
                found = alone.execute(self.sql).to_arrow_table()
            except duckdb.Error as error:
                raise UserError(f"{self.where}: {one_line(error)[:300]}") from error
        return self._checked(found)

    def _checked(self, found: pa.Table) -> pa.Table:
        wanted = {key: pa.string() for key in self.keys}
        wanted |= {moment: pa.timestamp("us", tz="UTC") for moment in MOMENTS}
        wanted |= {name: pa.float64() for name in self.features}
        if missing := [name for name in wanted if name not in found.column_names]:
            raise UserError(f"{self.where}: returns no column {missing[0]!r}; it has {', '.join(found.column_names)}")
        for key in self.keys:
            if not (pa.types.is_string(found[key].type) or pa.types.is_large_string(found[key].type)):
                raise UserError(f"{self.where}: join key {key!r} is {found[key].type}, not text; cast it to VARCHAR")
        try:
            table = pa.table({name: found[name].cast(kind) for name, kind in wanted.items()})
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UserError(
                f"{self.where}: times must be timestamps and features numbers ({one_line(error)})"
            ) from error
        for name in (*self.keys, *MOMENTS):
            if table[name].null_count:
                raise UserError(f"{self.where}: {table[name].null_count} rows have no {name}; leave them out")
        unique = table.group_by([*self.keys, *MOMENTS]).aggregate([]).num_rows
        if unique != table.num_rows:
            raise UserError(
                f"{self.where}: {table.num_rows - unique} rows repeat a key and moment, so chance decides which "
                "value holds; aggregate them into one"
            )
        return table.sort_by([(name, "ascending") for name in (*self.keys, *MOMENTS)])


def _sql(repo: Path, table: str) -> str:
    path = repo / f"{table}.sql"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read; the history table {table!r} of features.py needs it") from error


def _connect(rows: Rows) -> duckdb.DuckDBPyConnection:
    """A connection that holds all rows, for queries of ours."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("pilotline_clean", pa.Table.from_pandas(_all_columns(rows), preserve_index=False))
    return connection


def _sandbox(rows: Rows, seen: pa.Table) -> duckdb.DuckDBPyConnection:
    """A connection for SQL of a project: it holds the rows that are seen, and reaches nothing else."""
    # Rows from Arrow are estimated as one, for which DuckDB would join ASOF by nested loops.
    connection = duckdb.connect(":memory:", config={"asof_loop_join_threshold": 0})
    connection.execute("SET TimeZone = 'UTC'")
    connection.register(ROWS, seen)
    connection.execute("SET VARIABLE label_delay_days = CAST(? AS INTEGER)", [rows.label_delay_days])
    connection.execute("SET VARIABLE time_formats = ?", [list(rows.time_formats)])
    for setting in ("python_enable_replacements", "autoinstall_known_extensions", "autoload_known_extensions"):
        connection.execute(f"SET {setting} = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _all_columns(rows: Rows) -> pd.DataFrame:
    event = rows.typed["event_timestamp"].dt.tz_localize(None)
    # With no delay an outcome would be known at its own event; a row must never see itself.
    delay = pd.Timedelta(days=rows.label_delay_days) or pd.Timedelta(microseconds=1)
    never = pd.Series(pd.NaT, index=event.index, dtype=event.dtype)
    recorded = event if rows.recorded is None else rows.recorded.dt.tz_localize(None)
    own = pd.DataFrame(
        {
            "row_id": rows.typed["row_id"],
            "event_timestamp": event,
            "known_timestamp": np.maximum(event + delay, recorded),
            "superseded_timestamp": never if rows.superseded is None else rows.superseded.dt.tz_localize(None),
            "label": rows.typed["label"],
            RECORDED: recorded,
        }
    )
    taken = {*OWN_COLUMNS, RECORDED}
    others = []
    for column in rows.clean.columns:
        if column.lower() not in taken:
            taken.add(column.lower())
            others.append(column)
    return pd.concat([own, rows.clean[others]], axis=1)


def _select(rows: Rows, cut: pd.Timestamp | None) -> str:
    """What SQL sees of the rows at a moment; None: all."""
    if cut is None:
        return f"SELECT * EXCLUDE ({RECORDED}) FROM pilotline_clean"  # noqa: S608
    moment = f"TIMESTAMP '{cut.tz_convert('UTC').tz_localize(None).isoformat(sep=' ')}'"
    hidden = ["label"]
    late = [rows.label_column, *rows.after_outcome]
    hidden += [c for c in rows.clean.columns if c in late and c.lower() not in OWN_COLUMNS]
    masks = ", ".join(f"CASE WHEN known_timestamp <= {moment} THEN {_quoted(c)} END AS {_quoted(c)}" for c in hidden)
    masks += f", CASE WHEN superseded_timestamp <= {moment} THEN superseded_timestamp END AS superseded_timestamp"
    # The moment is a timestamp of ours, and the column names are quoted.
    return f"""
        SELECT * EXCLUDE ({RECORDED}) REPLACE ({masks}) FROM pilotline_clean
        WHERE event_timestamp <= {moment} AND {RECORDED} <= {moment}
    """  # noqa: S608


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _end_of_known(rows: Rows) -> pd.Timestamp:
    """End of the day `as_of`: the last events' outcomes, whatever their time of day."""
    return rows.as_of + pd.Timedelta(days=1) - pd.Timedelta(microseconds=1)


def _until(table: pa.Table, moment: pd.Timestamp) -> pa.Table:
    limit = pa.scalar(moment.to_pydatetime(), pa.timestamp("us", tz="UTC"))
    for name in MOMENTS:
        table = table.filter(pc.less_equal(table[name], limit))
    return table


def _refuse_future(query: _Query, whole: pa.Table, end: pd.Timestamp) -> None:
    """Of which nothing is left though it has rows; records that were only made later are no mistake."""
    first = pc.min(whole["event_timestamp"]).as_py()
    if first > end:
        raise UserError(
            f"{query.where}: all {whole.num_rows} rows are of the future: the first event_timestamp is "
            f"{first:%Y-%m-%d %H:%M}, but what these rows tell is known until {end:%Y-%m-%d}; use known_timestamp"
        )


def _refuse_foresight(
    query: _Query, connection: duckdb.DuckDBPyConnection, rows: Rows, whole: pa.Table, cut: pd.Timestamp
) -> None:
    now, then = _until(whole, cut), _until(query.run(connection, rows, cut), cut)
    if now.equals(then):
        return
    about = _first_difference(now, then)
    raise UserError(
        f"{query.where}: looks ahead: {about} as known at {cut:%Y-%m-%d} changes when later rows are added; "
        "use known_timestamp as event_timestamp and window functions that end at the current row"
    )


def _first_difference(now: pa.Table, then: pa.Table) -> str:
    if now.num_rows != then.num_rows:
        return f"the number of rows ({then.num_rows} then, {now.num_rows} with later rows)"
    names: list[Any] = [name for name in now.column_names if not now[name].equals(then[name])]
    return repr(names[0])
