"""`sql` rules on DuckDB: the batch as a typed view of the schema object's name, on a connection that sees no more."""

# ruff: noqa: S608 - what goes into a query is a generated name or an escaped literal

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from components.contract.engines.batch import Batch
from components.contract.engines.duckdb_connection import connected
from components.contract.engines.duckdb_reading import value_sql
from components.contract.engines.duckdb_rules import filled
from components.contract.engines.marks import Marks
from components.contract.engines.measured import Engine, Measured
from components.contract.engines.sql_rules import lock, run_query
from components.contract.standard.rules import Column, DataContract, Rule


def of_contract(contract: DataContract) -> Engine:
    """What measures the contract's `sql` rules."""

    def measure(rules: Mapping[int, Rule], words: int, batch: Batch, scratch: Path) -> Measured:
        with connected(scratch) as connection:
            connection.execute(typed_view(contract, batch))
            lock(connection, [batch.path])
            seen = {number: run_query(connection, rule) for number, rule in rules.items()}
            row = connection.execute(f"SELECT count(*) FROM {quoted(contract.table)}").fetchone()
        return Measured(int(row[0]) if row else 0, seen, Marks(None, words))

    return measure


def typed_view(contract: DataContract, batch: Batch) -> str:
    """The statement that makes the view: typed declared columns; what is missing or does not read is NULL."""
    columns = [column for column in contract.columns if column.name in batch.names]
    cells = ", ".join(f"{_typed(column, batch.column(column.name))} AS {quoted(column.name)}" for column in columns)
    return f"CREATE VIEW {quoted(contract.table)} AS SELECT {cells} FROM {batch.relation}"


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _typed(column: Column, cell: str) -> str:
    given = f"CASE WHEN {filled(cell, column.missing)} THEN {cell} END"
    if column.logical_type == "boolean":
        return f"CASE {given} WHEN 'true' THEN true WHEN 'false' THEN false END"
    if column.reading is None:
        return given
    value = f"CASE WHEN {filled(cell, column.missing)} THEN {value_sql(cell, column.reading)} END"
    if column.reading.kind == "clock":
        return f"(make_timestamp({value})::TIME)"
    if column.reading.kind == "time":
        time = f"make_timestamp({value})"
        return f"({time}::DATE)" if column.logical_type == "date" else time
    return value
