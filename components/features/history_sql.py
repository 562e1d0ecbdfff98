"""What a history table's SQL may be: one SELECT over `rows`, its own named queries and lists of values.

This fence says in one line what is wrong. The other one is the connection that the SQL runs on: nothing but `rows` is
there, as known at the moment that the table is made for, and no file, network, extension or setting can be reached.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any, NoReturn

import duckdb

from components.core.errors import UserError, one_line

ROWS = "rows"
LISTS = ("unnest", "range", "generate_series")
OTHER_SOURCES = {"SHOW_REF": "SHOW or DESCRIBE", "PIVOT": "PIVOT", "COLUMN_DATA": "other data"}


def check_sql(sql: str, where: str) -> None:
    """Refuse what reads anything but `rows`.

    Args:
        sql: the file's text.
        where: the file's name.

    Raises:
        UserError: no single SELECT, or it reads another table, a file or a table function; in one line.
    """

    def refuse(text: str) -> NoReturn:
        raise UserError(f"{where}: {text}; write one SELECT over {ROWS}")

    with closing(duckdb.connect(":memory:", config={"threads": 1})) as connection:
        try:
            statements = connection.extract_statements(sql)
        except duckdb.Error as error:
            raise UserError(f"{where}: {one_line(error)[:300]}") from error
        kinds = [statement.type.name.removesuffix("_STATEMENT") for statement in statements]
        if kinds != ["SELECT"]:
            refuse(f"holds {' and '.join(kinds) or 'no statement'}")
        (text,) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statements[0].query]).fetchone() or ("",)
    tree = json.loads(text or "{}")
    if tree.get("error", True):
        refuse(f"is no plain SELECT ({tree.get('error_message', 'it cannot be read')})")
    try:
        named: set[str] = {ROWS}
        _add_named(tree, named)
        if bad := _foreign(tree, named):
            refuse(f"reads {bad}, and there is nothing but {ROWS}")
    except RecursionError:
        refuse("is nested too deeply")


def _add_named(value: Any, named: set[str]) -> None:
    """The names of the queries that the statement makes."""
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        _add_named(item, named)
    if isinstance(value, dict) and "cte_map" in value:
        named |= {str(entry["key"]).lower() for entry in value["cte_map"].get("map", ())}


def _foreign(value: Any, named: set[str]) -> str:
    """The first source that is neither `rows`, nor a query of the statement, nor a list; "" where there is none."""
    if isinstance(value, list):
        return next((bad for item in value if (bad := _foreign(item, named))), "")
    if not isinstance(value, dict):
        return ""
    kind = str(value.get("type"))
    is_source = "query_location" in value and "class" not in value and not kind.endswith("_NODE")
    if is_source and kind == "BASE_TABLE":
        parts = [str(value.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
        if any(parts[:2]) or parts[2].lower() not in named:
            return repr(".".join(part for part in parts if part))
    if is_source and kind == "TABLE_FUNCTION":
        name = str(value["function"].get("function_name"))
        if name.lower() not in LISTS:
            return f"{name}()"
    if is_source and kind in OTHER_SOURCES:
        return OTHER_SOURCES[kind]
    return next((bad for item in value.values() if (bad := _foreign(item, named))), "")
