"""The DuckDB adapter of the profile: one scan for all rows, then a small table of distinct values a column."""
# ruff: noqa: S608 - no name or value of a batch stands in the SQL: columns are numbered, texts and paths are quoted

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from components.contract.engines.batch import Batch
from components.contract.engines.duckdb_connection import connected
from components.contract.meaning.profile import (
    CATEGORIES,
    NUMBER,
    PLACEHOLDERS,
    QUANTILES,
    SINGLES,
    Category,
    ColumnProfile,
)
from components.contract.meaning.profile_dates import (
    COMPACT,
    DAY_NAMED,
    NAMED_DAY,
    TWO_PARTS,
    YEAR_FIRST,
    DateTally,
    date_formats,
)

KEPT_CHARACTERS = 120
SHAPE_CHARACTERS = 24
DATE = "n BETWEEN 6 AND 40"  # characters
EMPTY: dict[str, Any] = dict.fromkeys(("looked_at", "distinct", "placeholders", "numbers", "nonzero"), 0) | {
    "categories": (),
    "formats": (),
}
Database = duckdb.DuckDBPyConnection


class Shape(NamedTuple):
    """How a date can be written: its expression and the numbers of the expression's groups, 0 where it has none."""

    kind: str
    expression: str
    first: int
    second: int
    separator: int
    year: int
    time: int  # the first of three: the gap before the time, AM or PM, the zone


SHAPES = (
    Shape("parts", TWO_PARTS, 1, 3, 2, 4, 5),
    Shape("year", YEAR_FIRST, 3, 4, 2, 1, 5),
    Shape("compact", COMPACT, 2, 3, 0, 1, 4),
    Shape("day_named", DAY_NAMED, 1, 1, 2, 3, 4),
    Shape("named_day", NAMED_DAY, 1, 1, 0, 2, 3),
)


def measure(
    data: pa.Table | Batch,
    masked: Sequence[bool],
    missing: Sequence[tuple[str, ...]],
    first_row: int,
    sample_rows: int,
    scratch: Path | None,
) -> tuple[int, int, tuple[ColumnProfile, ...]]:
    """Rows, rows in the sample, and the columns.

    Args:
        data: the batch.
        masked: a column, whether no value of it may be kept.
        missing: a column, the texts that count as null.
        first_row: rows before it are left out.
        sample_rows: how many rows are looked at value by value.
        scratch: folder for what does not fit into memory.
    """
    names = data.column_names if isinstance(data, pa.Table) else data.names
    with connected(scratch) as database:
        _open(database, data, first_row)
        rows, counts = _scan(database, missing)
        sampled = _sample(database, len(names), rows, sample_rows)
        _see(database, masked, missing)
        parts = (_totals(database), _categories(database), _dates(database), _quantiles(database))
        columns = []
        for number, (name, hidden) in enumerate(zip(names, masked, strict=True)):
            about = counts[number] | {key: value for part in parts for key, value in part.get(number, {}).items()}
            columns.append(ColumnProfile(**EMPTY | {"name": name, "masked": hidden, "rows": rows} | about))
    return rows, sampled, tuple(columns)


def _open(database: Database, data: pa.Table | Batch, first_row: int) -> None:
    """The view `batch`: text columns c0, c1, ..., as names may differ in case only, and a row's number."""
    if isinstance(data, pa.Table):
        names = [f"c{number}" for number in range(data.num_columns)]
        plain = data.rename_columns(names).append_column("row", pa.array(range(data.num_rows), pa.int64()))
        database.register("given", plain)
        rows = "given"
    else:
        rows = data.relation
    database.execute(f"CREATE VIEW batch AS SELECT * FROM {rows} WHERE row >= {first_row}")


def _scan(database: Database, missing: Sequence[tuple[str, ...]]) -> tuple[int, list[dict[str, Any]]]:
    """What is counted over all rows."""
    cells, parts = [], []
    for k, texts in enumerate(missing):
        cells.append(f"c{k}, CASE WHEN {_present(f'c{k}', texts)} THEN c{k} END AS p{k}")
        parts.append(
            f"count(c{k}), count(p{k}), coalesce(min(length(p{k})), 0), coalesce(max(length(p{k})), 0), "
            f"coalesce(min(p{k}) = max(p{k}), false)"
        )
    query = f"SELECT {', '.join(['count(*)', *parts])} FROM (SELECT {', '.join(cells)} FROM batch)"
    row = database.execute(query).fetchone()
    assert row is not None
    rows, counts = int(row[0]), []
    for number in range(len(missing)):
        filled, present, shortest, longest, constant = row[1 + 5 * number : 6 + 5 * number]
        about = {"shortest": shortest, "longest": longest, "constant": bool(constant)}
        counts.append({"nulls": rows - filled, "missing": rows - present, **about})
    return rows, counts


def _sample(database: Database, width: int, rows: int, sample_rows: int) -> int:
    """The table `sample`: every k-th row, the beginning t0, t1, ... and the length n0, n1, ... of its texts."""
    step = max(1, math.ceil(rows / sample_rows))
    texts = [
        f"left(c{number}, {KEPT_CHARACTERS}) AS t{number}, length(c{number}) AS n{number}" for number in range(width)
    ]
    kept = f"WHERE row % {step} = 0" if step > 1 else ""
    database.execute(f"CREATE TEMP TABLE sample AS SELECT {', '.join(texts)} FROM batch {kept}")
    counted = database.execute("SELECT count(*) FROM sample").fetchone()
    assert counted is not None
    return int(counted[0])


def _see(database: Database, masked: Sequence[bool], missing: Sequence[tuple[str, ...]]) -> None:
    """The table `seen`: of column k each distinct beginning t, with n characters in all, c times; v is what is kept."""
    parts = [
        f"SELECT {k} AS k, t{k} AS t, n{k} AS n, count(*) AS c, {_shape(f't{k}') if hidden else f't{k}'} AS v "
        f"FROM sample WHERE {_present(f't{k}', texts)} GROUP BY t{k}, n{k}"
        for k, (hidden, texts) in enumerate(zip(masked, missing, strict=True))
    ]
    database.execute(f"CREATE TEMP TABLE seen AS {' UNION ALL '.join(parts)}")
    hidden_columns = ", ".join(str(k) for k, hidden in enumerate(masked) if hidden) or "-1"
    database.execute(f"CREATE TEMP MACRO is_masked(k) AS k IN ({hidden_columns})")


def _totals(database: Database) -> dict[int, dict[str, Any]]:
    listed = ", ".join(_quoted(text) for text in PLACEHOLDERS)
    rows = database.execute(
        f"""SELECT k, sum(c), count(*), coalesce(sum(c) FILTER (n <= 8 AND lower(trim(t)) IN ({listed})), 0),
                   coalesce(sum(c) FILTER (regexp_matches(t, '{NUMBER}')), 0)
            FROM seen GROUP BY k"""
    ).fetchall()
    names = ("looked_at", "distinct", "placeholders", "numbers")
    return {k: dict(zip(names, map(int, values), strict=True)) for k, *values in rows}


def _categories(database: Database) -> dict[int, dict[str, Any]]:
    rows = database.execute(
        f"""SELECT k, v, s FROM (SELECT k, v, sum(c) AS s FROM seen GROUP BY k, v)
            QUALIFY row_number() OVER (PARTITION BY k ORDER BY s DESC, v)
                    <= CASE WHEN count(*) OVER (PARTITION BY k) > sum(s) OVER (PARTITION BY k) / 2
                            THEN {SINGLES} ELSE {CATEGORIES} END
            ORDER BY k, s DESC, v"""
    ).fetchall()
    found: dict[int, list[Category]] = {}
    for k, value, count in rows:
        found.setdefault(k, []).append(Category(value=value, count=int(count)))
    return {k: {"categories": tuple(items)} for k, items in found.items()}


def _quantiles(database: Database) -> dict[int, dict[str, Any]]:
    """Of columns whose values are mostly numbers: quantiles of the finite ones, and of the size of those but 0."""
    number = f"regexp_matches(t, '{NUMBER}')"
    database.execute(
        f"""CREATE TEMP TABLE numbers AS
            SELECT k, x, c FROM (SELECT k, try_cast(t AS DOUBLE) AS x, c FROM seen WHERE {number}) WHERE isfinite(x)
              AND k IN (SELECT k FROM seen GROUP BY k HAVING sum(c) < 2 * sum(c) FILTER ({number}))"""
    )
    found: dict[int, dict[str, Any]] = {}
    for name, value, kept in (("quantiles", "x", "true"), ("magnitudes", "abs(x)", "x <> 0")):
        picks = ", ".join(f"min(v) FILTER (upto >= {share} * total)" for share in QUANTILES)
        rows = database.execute(
            f"""WITH ordered AS (
                  SELECT k, {value} AS v, sum(c) OVER (PARTITION BY k) AS total,
                         sum(c) OVER (PARTITION BY k ORDER BY {value} ROWS UNBOUNDED PRECEDING) AS upto
                  FROM numbers WHERE {kept})
                SELECT k, is_masked(k), max(total), {picks} FROM ordered GROUP BY k"""
        ).fetchall()
        for k, hidden, total, *values in rows:
            kept_values = tuple(_coarse(item) if hidden else float(item) for item in values)
            found.setdefault(k, {}).update({name: kept_values, "nonzero": int(total) if name == "magnitudes" else 0})
    return found


def _dates(database: Database) -> dict[int, dict[str, Any]]:
    """Formats of the values that are written as dates."""
    counted = ", ".join(f"count(*) FILTER (regexp_matches(t, '{shape.expression}'))" for shape in SHAPES)
    counts = database.execute(f"SELECT {counted} FROM seen WHERE {DATE}").fetchone()
    assert counts is not None
    tallies: dict[int, list[DateTally]] = {}
    for shape, count in zip(SHAPES, counts, strict=True):
        for k, tally in _tallies(database, shape) if count else ():
            tallies.setdefault(k, []).append(tally)
    return {k: {"formats": date_formats(items)} for k, items in tallies.items()}


def _tallies(database: Database, shape: Shape) -> list[tuple[int, DateTally]]:
    """One a column, separator, number of the year's digits and way to write the time; of days that there can be."""

    def group(number: int) -> str:
        return f"regexp_extract(t, '{shape.expression}', {number})" if number else "''"

    gap, half, zone = (group(shape.time + number) for number in range(3))
    possible = "true" if shape.kind not in ("parts", "year") else "(a <= 12 OR b <= 12)"
    rows = database.execute(
        f"""WITH parts AS (
              SELECT k, v, c, {group(shape.separator)} AS s, length({group(shape.year)}) AS y,
                     try_cast({group(shape.first)} AS INTEGER) AS a, try_cast({group(shape.second)} AS INTEGER) AS b,
                     CASE WHEN {gap} = '' THEN '' WHEN contains({gap}, 'T') THEN '''T''HH:mm' ELSE ' HH:mm' END
                     || CASE WHEN {half} = '' THEN '' ELSE ' a' END || CASE WHEN {zone} = '' THEN '' ELSE 'X' END AS o
              FROM seen WHERE {DATE} AND regexp_matches(t, '{shape.expression}'))
            SELECT k, s, y, o, sum(c), min(v), coalesce(min(v) FILTER (a > 12), ''),
                   coalesce(min(v) FILTER (b > 12), ''), coalesce(sum(c) FILTER (a > 12), 0),
                   coalesce(sum(c) FILTER (b > 12), 0), count(DISTINCT a), count(DISTINCT b)
            FROM parts WHERE a BETWEEN 1 AND 31 AND b BETWEEN 1 AND 31 AND {possible}
            GROUP BY ALL ORDER BY k, s, y, o"""
    ).fetchall()
    return [
        (k, DateTally(shape.kind, s, int(y), o, int(count), (one, over_a, over_b), *(int(item) for item in numbers)))
        for k, s, y, o, count, one, over_a, over_b, *numbers in rows
    ]


def _present(name: str, missing: tuple[str, ...]) -> str:
    """The condition under which a cell has a value."""
    listed = ", ".join(_quoted(text) for text in missing)
    return f"{name} IS NOT NULL" + (f" AND {name} NOT IN ({listed})" if missing else "")


def _shape(name: str) -> str:
    """A text's shape: capitals A, other letters a, digits 9; of longer ones only that they are long."""
    shape = name
    for letters, sign in ((r"\p{Lu}", "A"), (r"\p{Ll}|\p{Lo}", "a"), (r"\p{N}", "9")):
        shape = f"regexp_replace({shape}, '{letters}', '{sign}', 'g')"
    return f"CASE WHEN length({name}) > {SHAPE_CHARACTERS} THEN 'text of more than {SHAPE_CHARACTERS}' ELSE {shape} END"


def _coarse(value: float) -> float:
    """Rounded to tenths of a power of ten, so that no one's number is kept."""
    if value == 0:
        return 0.0
    return math.copysign(float(f"{10 ** (round(10 * math.log10(abs(value))) / 10):.3g}"), value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
