"""DuckDB as an engine of rules at any size: one pass over the file counts what every rule sees and what breaks it.

Only where something is broken, a second pass over the columns of the broken rules writes the rows down. Keys are
counted as distinct 64-bit hashes in the first pass: as many as there are keys says that all are unique. If they are
fewer, the keys themselves are grouped. Memory is bounded; groups, sorts and joins go to disk where it does not suffice.
"""

# ruff: noqa: S608 - what goes into a query is a generated name or an escaped literal

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.contract.engines import duckdb_rules as sql
from components.contract.engines.batch import Batch
from components.contract.engines.duckdb_connection import connected
from components.contract.engines.marks import BITS, Marks
from components.contract.engines.measured import Measured
from components.contract.engines.safe_error import safe_error
from components.contract.standard.rules import Observation, Rule

if TYPE_CHECKING:
    import duckdb

SECOND = 1e6  # microseconds


def engine_name() -> str:
    """Name and version, as verdicts keep it."""
    import duckdb

    return f"duckdb {duckdb.__version__}"


def measure(rules: Mapping[int, Rule], words: int, batch: Batch, scratch: Path) -> Measured:
    """What each numbered rule sees; whatever DuckDB raises becomes an error of every rule.

    Args:
        rules: of the kinds that both engines have, with columns that the batch has.
        words: how many the marks have.
        batch: the rows.
        scratch: a folder for the marks and for what does not fit into memory.
    """
    nothing = Marks(None, words)
    try:
        with connected(scratch) as connection:
            return _measure(connection, rules, batch, scratch, nothing)
    except Exception as error:  # a rule without a result fails
        failed = Observation(error=safe_error(error))
        return Measured(batch.rows, dict.fromkeys(rules, failed), nothing)


def _measure(
    connection: duckdb.DuckDBPyConnection, rules: Mapping[int, Rule], batch: Batch, scratch: Path, nothing: Marks
) -> Measured:
    rows, seen = _first_pass(connection, rules, batch)
    broken = {number: rule for number, rule in rules.items() if rule.of_rows and seen[number].value > 0}
    if not broken:
        return Measured(rows, seen, nothing)
    path = scratch / "marks.parquet"
    _mark(connection, broken, batch, path, nothing.words)
    return Measured(rows, seen, Marks(path, nothing.words))


def _first_pass(
    connection: duckdb.DuckDBPyConnection, rules: Mapping[int, Rule], batch: Batch
) -> tuple[int, dict[int, Observation]]:
    """The number of rows, and an observation a rule."""
    asked: dict[str, int] = {"count(*)": 0}

    def ask(expression: str) -> int:
        return asked.setdefault(expression, len(asked))

    places = {number: _ask(rule, batch, ask) for number, rule in rules.items()}
    row: Any = connection.execute(f"SELECT {', '.join(asked)} FROM {batch.relation}").fetchone()
    rows = int(row[0])
    found = {}
    for number, (looked, value) in places.items():
        counts = [0 if row[place] is None else row[place] for place in looked]
        found[number] = _observe(connection, rules[number], batch, rows, counts[0], row[value])
    return rows, found


def _ask(rule: Rule, batch: Batch, ask: Any) -> tuple[list[int], int]:
    """Where the aggregates of a rule stand: of the rows that it looks at, and of what it counts."""
    looked = [ask(f"count_if({sql.looked_at(rule, batch)})") if sql.looked_at(rule, batch) != "true" else 0]
    if rule.kind in sql.CELL_KINDS and rule.kind != "present":
        return looked, ask(f"count_if({sql.broken(rule, batch)})")
    if rule.kind == "unique":
        return looked, ask(f"count(DISTINCT {sql.key_hash(rule, batch)})")
    if rule.kind == "freshness":
        return looked, ask(f"max({sql.time_value(rule, batch)})")
    return looked, 0


def _observe(
    connection: duckdb.DuckDBPyConnection, rule: Rule, batch: Batch, rows: int, looked: int, value: Any
) -> Observation:
    """One rule's observation; asks further where the first pass does not tell."""
    if rule.kind == "column":
        return Observation(1.0, looked_at=rows)
    if rule.kind == "rows":
        return Observation(float(rows), looked_at=rows)
    if rule.kind == "present":
        return Observation(float(rows - looked), looked_at=rows)
    if rule.kind in ("freshness", "frequency", "retention") and not rule.now:
        return Observation(error="no time of reading is given")
    if rule.kind == "freshness":
        if value is None:
            return Observation(error="no value reads as a time")
        return Observation((sql.now_microseconds(rule) - value) / SECOND, looked_at=rows)
    if rule.kind == "frequency":
        return _longest_gap(connection, rule, batch, rows)
    if rule.kind == "unique":
        again = f"SELECT coalesce(sum(n), 0) FROM ({_repeated(rule, batch)})"
        value = 0 if value == looked else _one(connection, again)
    elif rule.kind == "reference":
        value = _one(connection, f"SELECT count(*) FROM ({_unfound(rule, batch)})")
    elif rule.kind not in sql.CELL_KINDS:
        return Observation(error=f"a rule of kind {rule.kind} is not known here")
    return Observation(float(value or 0), looked_at=looked)  # count_if is NULL where every condition is


def _longest_gap(connection: duckdb.DuckDBPyConnection, rule: Rule, batch: Batch, rows: int) -> Observation:
    times = f"SELECT DISTINCT {sql.time_value(rule, batch)} AS v FROM {batch.relation}"
    gaps = f"SELECT v - lag(v) OVER (ORDER BY v) AS gap FROM ({times}) WHERE v IS NOT NULL"
    longest = _one(connection, f"SELECT max(gap) FROM ({gaps})")
    if longest is None:
        return Observation(error="fewer than two times are there")
    return Observation(longest / SECOND, looked_at=rows)


def _mark(
    connection: duckdb.DuckDBPyConnection, rules: Mapping[int, Rule], batch: Batch, path: Path, words: int
) -> None:
    """Write the rows that break the rules, with their bits, in the order of the file."""
    cells = {number: rule for number, rule in rules.items() if rule.kind in sql.CELL_KINDS}
    parts = [_marked_cells(cells, batch, words)] if cells else []
    for number, rule in rules.items():
        if number not in cells:
            rows = _repeated_rows(rule, batch) if rule.kind == "unique" else _unfound(rule, batch)
            bits = ", ".join(f"{_bit(number, word)} AS w{word}" for word in range(words))
            parts.append(f"SELECT row, {bits} FROM ({rows})")
    query = parts[0]
    if len(parts) > 1:
        merged = ", ".join(f"bit_or(w{word}) AS w{word}" for word in range(words))
        query = f"SELECT row, {merged} FROM ({' UNION ALL '.join(parts)}) GROUP BY row"
    target = str(path).replace("'", "''")
    connection.execute(f"COPY ({query} ORDER BY row) TO '{target}' (FORMAT parquet, COMPRESSION lz4)")


def _marked_cells(rules: Mapping[int, Rule], batch: Batch, words: int) -> str:
    """Rows and bits by the rules that see one row at a time."""
    columns = []
    for word in range(words):
        bits = [
            f"CASE WHEN {sql.broken(rule, batch)} THEN {_bit(number, word)} ELSE 0::UBIGINT END"
            for number, rule in rules.items()
            if number // BITS == word
        ]
        columns.append(f"{' | '.join(bits) if bits else '0::UBIGINT'} AS w{word}")
    some = " OR ".join(f"w{word} <> 0" for word in range(words))
    return f"SELECT * FROM (SELECT row, {', '.join(columns)} FROM {batch.relation}) WHERE {some}"


def _bit(number: int, word: int) -> str:
    return f"{1 << (number % BITS) if number // BITS == word else 0}::UBIGINT"


def _repeated(rule: Rule, batch: Batch) -> str:
    """The keys that stand more than once: k0, k1, ..., and how often: n. Only keys whose hash repeats are grouped."""
    parts = ", ".join(f"{part} AS k{place}" for place, part in enumerate(sql.key(rule, batch)))
    names = ", ".join(f"k{place}" for place in range(len(rule.columns)))
    hashed = sql.key_hash(rule, batch)
    again = f"SELECT {hashed} AS h FROM {batch.relation} GROUP BY h HAVING count(*) > 1 AND h IS NOT NULL"
    suspects = f"SELECT {parts} FROM {batch.relation} WHERE {hashed} IN ({again})"
    return f"SELECT {names}, count(*) AS n FROM ({suspects}) GROUP BY {names} HAVING count(*) > 1"


def _repeated_rows(rule: Rule, batch: Batch) -> str:
    """The rows whose key stands more than once."""
    same = " AND ".join(f"{part} IS NOT DISTINCT FROM d.k{place}" for place, part in enumerate(sql.key(rule, batch)))
    return f"SELECT row FROM {batch.relation} AS t SEMI JOIN ({_repeated(rule, batch)}) AS d ON {same}"


def _unfound(rule: Rule, batch: Batch) -> str:
    """The rows whose key is in the target columns of no row."""
    targets = ", ".join(f"{batch.column(name)} AS k{place}" for place, name in enumerate(rule.targets))
    same = " AND ".join(f"t.{batch.column(name)} = d.k{place}" for place, name in enumerate(rule.columns))
    known = f"SELECT DISTINCT {targets} FROM {batch.relation}"
    looked = f"SELECT * FROM {batch.relation} WHERE {sql.looked_at(rule, batch)}"
    return f"SELECT row FROM ({looked}) AS t ANTI JOIN ({known}) AS d ON {same}"


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    row: Any = connection.execute(query).fetchone()
    return row[0]
