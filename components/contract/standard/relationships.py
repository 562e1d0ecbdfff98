"""Relationships of the standard (foreign keys) as rules; only those within the one table can be checked."""

from __future__ import annotations

import re
from typing import NoReturn

from components.contract.standard.rules import Rule
from components.contract.standard.yaml_file import Node, words

KEYS = words("id type from to customProperties")
NAMED = re.compile(r"(?P<table>[^./]+)\.(?P<column>.+)")
BY_ID = re.compile(r"/?schema/(?P<table>[^/]+)/properties/(?P<column>[^/]+)")


def relationship_rules(table: Node, properties: list[Node]) -> list[Rule]:
    """One rule a relationship: the key of each row is found in the columns it refers to, in the same table.

    A reference is `table.column` by name, or `schema/ID/properties/ID` by id. Rows in which a part of the key is
    missing are not looked at (as SQL's MATCH SIMPLE).

    Raises:
        UserError: a reference to another table or file (a batch is one table), an unknown column, keys of unequal size.
    """
    columns = {str(node.value["name"]): node.value.get("id") for node in properties}
    rules = []
    for node in table.items("relationships"):
        sources = [_column(item, table, columns) for item in _references(node, "from")]
        rules.append(_rule(node, sources, table, columns))
    for node in properties:
        for item in node.items("relationships"):
            if item.keys(KEYS).value.get("from") is not None:
                item.at("from").fail("is the property itself; remove the key")
            rules.append(_rule(item, [str(node.value["name"])], table, columns))
    return rules


def _rule(node: Node, sources: list[str], table: Node, columns: dict[str, str | None]) -> Rule:
    node.keys(KEYS)
    if node.get("type", str, "foreignKey") != "foreignKey":
        node.at("type").fail(f"{node.value['type']!r} is unknown; write foreignKey")
    targets = [_column(item, table, columns) for item in _references(node, "to")]
    if len(sources) != len(targets):
        node.fail(f"from names {len(sources)} columns and to names {len(targets)}; give both the same number")
    if sources == targets:
        node.fail("refers to itself, which always holds; name another column in to")
    name = node.get("id", str, "relationship")
    return Rule(name, "reference", tuple(sources), node.path, targets=tuple(targets))


def _references(node: Node, key: str) -> list[Node]:
    node.keys(KEYS)
    value = node.value.get(key)
    place = node.at(key)
    items = node.items(key) if isinstance(value, list) else [place]
    if not items or not all(isinstance(item.value, str) for item in items):
        place.fail(f"is {value!r}; write table.column, or a list of them")
    return items


def _column(item: Node, table: Node, columns: dict[str, str | None]) -> str:
    found = BY_ID.fullmatch(item.value) or NAMED.fullmatch(item.value)
    if item.value in columns:
        return str(item.value)
    if found is None or "#" in item.value:
        _elsewhere(item)
    by_id = found.re is BY_ID
    if found["table"] not in (table.value.get("id") if by_id else None, table.value.get("name")):
        _elsewhere(item)
    names = [name for name, key in columns.items() if found["column"] in ((key, name) if by_id else (name,))]
    if not names:
        item.fail(f"{item.value!r} names no declared column of {table.value.get('name')!r}")
    return names[0]


def _elsewhere(item: Node) -> NoReturn:
    item.fail(f"{item.value!r} is outside this table and cannot be checked on a batch; refer to a column of the table")
