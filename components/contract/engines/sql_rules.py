"""Quality rules of type sql: one SELECT over the batch, judged by its parse tree, run on a locked connection.

Two fences, each enough alone: what the tree may hold (the batch's table, queries within the query, and functions that
compute from their arguments), and a connection that can open no file, extension or network and whose settings are
locked. A query that takes too long is interrupted, one that needs too much memory fails: both are failed rules.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from components.contract.engines.safe_error import safe_error
from components.contract.standard.rules import Column, Observation, Rule
from components.contract.standard.sql_functions import ALLOWED, SESSION_VALUES
from components.contract.standard.yaml_file import Node, words

if TYPE_CHECKING:
    import duckdb

MAX_LENGTH = 20_000
TABLE_WORDS, COLUMN_WORDS = ("object", "table", "model"), ("property", "column", "field")
PLACEHOLDER = re.compile(r"""(["'`]?)\$?\{\s*(\w+)\s*\}\1""")
EXPRESSIONS = words(
    "BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA LAMBDA_REF OPERATOR "
    "POSITIONAL_REFERENCE STAR SUBQUERY WINDOW"
)
SOURCES = {
    "TABLE_FUNCTION": "calls a table function",
    "SHOW_REF": "shows or describes",
    "PIVOT": "pivots",
    "COLUMN_DATA": "reads other data",
}
PLAIN_SOURCES = ("BASE_TABLE", "JOIN", "SUBQUERY", "EMPTY", "EXPRESSION_LIST")
NUMERIC = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL\(.*\)|BOOLEAN)")
SQL_TYPES = {"integer": "HUGEINT", "number": "DOUBLE", "boolean": "BOOLEAN", "date": "DATE", "time": "TIME"}


@dataclass(frozen=True)
class Limits:
    """How long a query may take, in seconds."""

    seconds: float = 60.0


def sql_type(column: Column) -> str:
    """The DuckDB type that a column has in the view that queries see; a time is in UTC, without its zone."""
    return SQL_TYPES.get(column.logical_type, "TIMESTAMP" if column.logical_type == "timestamp" else "VARCHAR")


def checked_query(node: Node, table: str, columns: Sequence[Column], column: Column | None) -> str:
    """The query with its placeholders filled in: `{object}` is the table, `{property}` the property it stands at.

    Args:
        node: the text.
        table: the schema object's name, under which the query sees the batch.
        columns: the declared columns; the query sees them typed (`sql_type`), missing or unreadable cells as null.
        column: the property of a property's rule.

    Raises:
        UserError: no single SELECT that gives one number, or anything beside the batch and plain functions.
    """
    if not isinstance(node.value, str) or not node.value.strip():
        node.fail(f"is {node.value!r}; write one SELECT over {{object}}")
    if len(node.value) > MAX_LENGTH:
        node.fail(f"has {len(node.value)} characters; at most {MAX_LENGTH} are read")
    query = _filled(node, table, column)
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "256MB"})
    try:
        _check_tree(node, _tree(node, connection, query), table, columns)
        declared = ", ".join(f"{_quoted(item.name)} {sql_type(item)}" for item in columns)
        connection.execute(f"CREATE TABLE {_quoted(table)} ({declared})")
        lock(connection)
        _check_result(node, connection, query)
    finally:
        connection.close()
    return query


def lock(connection: duckdb.DuckDBPyConnection, readable: Iterable[Path] = ()) -> None:
    """Close a connection for good: it opens no file but `readable`, loads nothing, and keeps its settings."""
    allowed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in readable)
    if allowed:
        connection.execute(f"SET allowed_paths = [{allowed}]")
    for setting in ("python_enable_replacements", "autoinstall_known_extensions", "autoload_known_extensions"):
        connection.execute(f"SET {setting} = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def run_query(connection: duckdb.DuckDBPyConnection, rule: Rule, limits: Limits | None = None) -> Observation:
    """The number that a rule's query gives; an error where it fails, is interrupted, or gives no single number.

    Args:
        connection: locked (see `lock`), with a view or table named as the contract's table, columns as `sql_type`.
        rule: of kind sql, as loaded.
        limits: how long it may run.
    """
    allowed = limits or Limits()
    timed_out = threading.Event()

    def stop() -> None:
        timed_out.set()
        connection.interrupt()

    timer = threading.Timer(allowed.seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        rows = connection.execute(rule.query).fetchmany(2)
    except Exception as error:  # whatever the query makes DuckDB raise: a rule without a number fails
        slow = f"it took longer than {allowed.seconds:g} s and was interrupted"
        return Observation(error=slow if timed_out.is_set() else safe_error(error))
    finally:
        timer.cancel()
        timer.join()
    if len(rows) != 1 or len(rows[0]) != 1:
        return Observation(
            error=f"the query gives {'no' if not rows else 'more than one'} row; it must give one number"
        )
    value = rows[0][0]
    if not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return Observation(error=f"the query gives {value!r}, no number")
    return Observation(float(value), looked_at=1)


def _filled(node: Node, table: str, column: Column | None) -> str:
    def name(found: re.Match[str]) -> str:
        word = found[2].lower()
        if word in TABLE_WORDS:
            return _quoted(table)
        if word in COLUMN_WORDS and column:
            return _quoted(column.name)
        known = ", ".join(f"{{{item}}}" for item in [*TABLE_WORDS, *(COLUMN_WORDS if column else ())])
        raise ValueError(f"{found[0]!r} is no placeholder here; known: {known}")

    try:
        return PLACEHOLDER.sub(name, node.value).strip().rstrip(";").strip()
    except ValueError as error:
        node.fail(str(error))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tree(node: Node, connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """The parse tree of the one SELECT."""
    try:
        statements = connection.extract_statements(query)
    except Exception as error:  # the parser's message says what and where
        node.fail(f"is no valid SQL ({_first(error)})")
    if len(statements) != 1:
        node.fail(f"holds {len(statements)} statements; write one SELECT")
    if statements[0].type.name != "SELECT_STATEMENT" and statements[0].type.name != "SELECT":
        node.fail(f"is a statement of type {statements[0].type.name.removesuffix('_STATEMENT')}; write one SELECT")
    text = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
    tree = json.loads(text[0]) if text else {}
    if tree.get("error", True) or len(tree.get("statements", ())) != 1:
        node.fail(f"is no plain SELECT ({tree.get('error_message', 'it cannot be read')}); write one SELECT")
    return dict(tree["statements"][0])


def _check_tree(node: Node, tree: dict[str, Any], table: str, columns: Sequence[Column]) -> None:
    names = frozenset(column.name.lower() for column in columns)
    walk = _Walk(node, names, table.lower())
    try:
        walk.walk(tree, {table.lower(): True})
    except RecursionError:
        node.fail("is nested too deeply; write it flatter")
    if not walk.reads_batch:
        node.fail("does not read the batch, so it says nothing about it; write FROM {object}")


class _Walk:
    """A walk over a parse tree that stops at the first thing which a contract may not hold."""

    def __init__(self, node: Node, columns: frozenset[str], table: str) -> None:
        self._node = node
        self._columns = columns
        self._table = table
        self.reads_batch = False

    def walk(self, value: Any, visible: Mapping[str, bool]) -> None:
        """Check a part of the tree; `visible` are the tables that it may read, and whether the batch is in them."""
        if isinstance(value, list):
            for item in value:
                self.walk(item, visible)
        if not isinstance(value, dict):
            return
        if "cte_map" in value:
            visible = self._with_queries(value["cte_map"], visible)
        if "class" in value:
            self._expression(value)
        elif str(value.get("type")).endswith("_NODE"):
            self._query(value)
        elif "query_location" in value and "type" in value:
            self._source(value, visible)
        for key, item in value.items():
            if key != "cte_map":
                self.walk(item, visible)

    def _with_queries(self, cte_map: dict[str, Any], visible: Mapping[str, bool]) -> Mapping[str, bool]:
        """Named queries see the ones before them; what follows sees all. One that is not read reads nothing."""
        for entry in cte_map.get("map", ()):
            name, before = str(entry["key"]).lower(), self.reads_batch
            if name == self._table:
                self._refuse(f"names a query {entry['key']!r}, which hides the batch; name it otherwise")
            self.reads_batch = False
            self.walk(entry["value"], visible)
            visible = {**visible, name: self.reads_batch}
            self.reads_batch = before
        return visible

    def _expression(self, value: dict[str, Any]) -> None:
        kind = value["class"]
        if kind not in EXPRESSIONS:
            self._refuse(f"holds {str(kind).lower().replace('_', ' ')}, which is not allowed")
        if kind in ("FUNCTION", "WINDOW"):
            name = str(value.get("function_name", "")).lower()
            if name not in ALLOWED or value.get("catalog") or value.get("schema") not in ("", "main"):
                self._refuse(f"calls {name}(), which is not among the functions that a contract may use")
        if kind == "COLUMN_REF":
            names = [str(name).lower() for name in value.get("column_names", ())]
            if len(names) == 1 and names[0] in SESSION_VALUES - self._columns:
                self._refuse(f"reads {names[0]}, which differs from run to run; compare with a value")

    def _query(self, value: dict[str, Any]) -> None:
        if value["type"] not in ("SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE"):
            self._refuse(
                f"holds a {str(value['type']).removesuffix('_NODE').lower().replace('_', ' ')}; write it plainly"
            )
        if value.get("sample"):
            self._refuse("takes a sample, which differs from run to run; count all rows")

    def _source(self, value: dict[str, Any], visible: Mapping[str, bool]) -> None:
        kind = value["type"]
        if kind not in PLAIN_SOURCES:
            self._refuse(f"{SOURCES.get(kind, f'reads a {str(kind).lower()}')}; read the batch as {{object}}")
        if value.get("sample"):
            self._refuse("takes a sample, which differs from run to run; count all rows")
        if kind != "BASE_TABLE":
            return
        name = ".".join(part for part in (value["catalog_name"], value["schema_name"], value["table_name"]) if part)
        if name.lower() not in visible or value["catalog_name"] or value["schema_name"] or value.get("at_clause"):
            self._refuse(f"reads {name!r}; only the batch can be read: write {{object}}")
        self.reads_batch = self.reads_batch or visible[name.lower()]

    def _refuse(self, text: str) -> NoReturn:
        self._node.fail(text)


def _check_result(node: Node, connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """The query fits the declared columns and gives one column of numbers."""
    try:
        described = connection.execute(f"DESCRIBE {query}").fetchall()
    except Exception as error:  # the binder's message says what and where
        node.fail(f"does not fit the declared columns ({_first(error)})")
    if len(described) != 1 or not NUMERIC.fullmatch(described[0][1]):
        given = ", ".join(f"{row[0]} {row[1]}" for row in described[:4])
        node.fail(f"gives {given}; write a SELECT of one number")


def _first(error: BaseException) -> str:
    """The first paragraph of DuckDB's message, on one line."""
    return " ".join(str(error).partition("\n\n")[0].partition("\nLINE")[0].split())
