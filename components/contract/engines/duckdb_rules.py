"""Rules as DuckDB SQL over a batch's relation: what is looked at, and what breaks the rule."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

from components.contract.engines.batch import Batch
from components.contract.engines.duckdb_reading import fits_sql, literal, value_sql
from components.contract.standard.reading import microseconds
from components.contract.standard.rules import Reading, Rule

CELL_KINDS = ("present", "values", "pattern", "length", "reading", "retention", "latency")


def filled(column: str, missing: Sequence[str]) -> str:
    """A condition: the cell is neither null nor one of the missing texts; NULL or false where it is."""
    if not missing:
        return f"{column} IS NOT NULL"
    if len(missing) == 1:
        return f"{column} <> {literal(missing[0])}"
    return f"{column} NOT IN ({', '.join(map(literal, missing))})"


def looked_at(rule: Rule, batch: Batch) -> str:
    """A condition: the rule looks at the row."""
    if not rule.of_rows and rule.kind not in ("freshness", "frequency"):
        return "true"
    cells = [filled(batch.column(name), rule.missing) for name in rule.columns]
    return f"({(' OR ' if rule.kind == 'unique' else ' AND ').join(cells)})"


def broken(rule: Rule, batch: Batch) -> str:
    """A condition: the row breaks the rule, for the kinds that see one row at a time."""
    cells = [batch.column(name) for name in rule.columns]
    if rule.kind == "present":
        return f"NOT coalesce({filled(cells[0], rule.missing)}, false)"
    return f"({looked_at(rule, batch)} AND NOT {_fits(rule, cells)})"


def _fits(rule: Rule, cells: Sequence[str]) -> str:
    """A condition on a row that is looked at."""
    cell = cells[0]
    if rule.kind == "values":
        return f"({cell} IN ({', '.join(map(literal, rule.values))}))" if rule.values else "false"
    if rule.kind == "pattern":
        return f"regexp_matches({cell}, {literal(rule.pattern)})"
    if rule.kind == "length":
        return f"(length({cell}) BETWEEN {rule.low or 0} AND {sys.maxsize if rule.high is None else rule.high})"
    if rule.kind == "latency":
        first, second = (value_sql(cell, _given(reading)) for cell, reading in zip(cells, rule.readings, strict=True))
        return f"coalesce({second} - {first} BETWEEN 0 AND '{rule.seconds * 1e6!r}'::DOUBLE, false)"
    return fits_sql(cell, _given(rule.reading))


def key(rule: Rule, batch: Batch, alias: str = "") -> list[str]:
    """The key's parts, a missing one as NULL."""
    prefix = f"{alias}." if alias else ""
    columns = [prefix + batch.column(name) for name in rule.columns]
    return [f"CASE WHEN {filled(column, rule.missing)} THEN {column} END" for column in columns]


def key_hash(rule: Rule, batch: Batch) -> str:
    """64 bits of the key where the rule looks at it, else NULL: equal keys have equal ones."""
    return f"CASE WHEN {looked_at(rule, batch)} THEN hash({', '.join(key(rule, batch))}) END"


def time_value(rule: Rule, batch: Batch) -> str:
    """The column's time in microseconds where it is looked at and reads."""
    column = batch.column(rule.columns[0])
    return f"CASE WHEN {looked_at(rule, batch)} THEN {value_sql(column, _given(rule.reading))} END"


def now_microseconds(rule: Rule) -> int:
    """The time of reading, in microseconds since 1970."""
    return microseconds(datetime.fromisoformat(rule.now))


def _given(reading: Reading | None) -> Reading:
    if reading is None:
        raise ValueError("the rule has no reading")
    return reading
