"""Load an Open Data Contract Standard file into a frozen list of rules; nothing in it is skipped silently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from components.contract.logical_types import type_rules
from components.contract.quality import SEVERITIES, missing_texts, quality_rules
from components.contract.rules import Column, DataContract, Rule
from components.contract.yaml_file import Node, read_yaml, words
from components.core.digest import file_digest

TOP_KEYS = words(
    "apiVersion kind id name version status tenant domain dataProduct description tags team roles support price "
    "servers schema slaProperties slaDefaultElement authoritativeDefinitions customProperties contractCreatedTs context"
)
OBJECT_KEYS = words(
    "id name physicalName physicalType logicalType description businessName deprecated synonyms tags quality "
    "properties customProperties authoritativeDefinitions dataGranularityDescription context"
)
PROPERTY_KEYS = words(
    "id name physicalName physicalType logicalType logicalTypeOptions description businessName deprecated synonyms "
    "tags required unique primaryKey primaryKeyPosition enum quality classification criticalDataElement examples "
    "customProperties authoritativeDefinitions semanticType partitioned partitionKeyPosition encryptedName "
    "transformSourceObjects transformLogic transformDescription"
)
ENUM_KEYS = words("id value label description tags customProperties authoritativeDefinitions")
MAX_QUARANTINE_PERCENT = 10.0


def load(path: Path) -> DataContract:
    """Read a contract with one schema object.

    Extension points in use (customProperties): `columnPresence: optional` and `ruleSeverity` on a property,
    `maxQuarantinePercent` on the schema object (default 10). SLA properties are told, not checked.

    Raises:
        UserError: no such file, not YAML, an unknown key or a rule that cannot be checked; names the YAML path.
    """
    root = read_yaml(path).keys(TOP_KEYS)
    for key in ("id", "version", "apiVersion"):
        if not isinstance(root.value.get(key), str):
            root.fail(f"{key} is missing or no text; write it, in quotes where it looks like a number")
    if not root.value["apiVersion"].startswith("v3."):
        root.at("apiVersion").fail(f"is {root.value['apiVersion']!r}; write the contract in ODCS v3")
    tables = root.items("schema")
    if len(tables) != 1:
        root.at("schema").fail(f"describes {len(tables)} objects; give one contract a table")
    table = tables[0].keys(OBJECT_KEYS)
    columns, rules = _columns(table)
    return DataContract(
        identity=root.value["id"],
        name=root.get("name", str, root.value["id"]),
        version=root.value["version"],
        status=root.get("status", str, ""),
        digest=file_digest(path),
        columns=columns,
        rules=tuple(_distinct(rules)),
        max_quarantine_percent=_cap(table),
    )


def _columns(table: Node) -> tuple[tuple[Column, ...], list[Rule]]:
    columns: list[Column] = []
    rules: list[Rule] = []
    properties = [node.keys(PROPERTY_KEYS) for node in table.items("properties")]
    for node in properties:
        column = _column(node)
        if column.name in [known.name for known in columns]:
            node.at("name").fail(f"{column.name!r} is declared twice; remove one")
        columns.append(column)
    names = tuple(column.name for column in columns)
    for node, column in zip(properties, columns, strict=True):
        rules += _property_rules(node, column, names)
    return tuple(columns), [*rules, *_key_rules(properties, table), *quality_rules(table, "", names)]


def _column(node: Node) -> Column:
    name = node.get("name", str)
    if not name:
        node.at("name").fail("is missing; name the column")
    presence = node.custom().get("columnPresence", "required")
    if presence not in ("required", "optional"):
        node.at("customProperties").fail(f"columnPresence {presence!r}; write required or optional")
    tags = node.get("tags", list, [])
    return Column(name, presence == "optional", "pii" in tags, "protected" in tags)


def _property_rules(node: Node, column: Column, names: tuple[str, ...]) -> list[Rule]:
    missing = missing_texts(node)
    severity = node.custom().get("ruleSeverity", "error")
    if severity not in SEVERITIES:
        node.at("customProperties").fail(f"ruleSeverity {severity!r}; write {', '.join(SEVERITIES)}")
    about = (column.name,)
    rules = [Rule("column", "column", about, node.path)]
    if node.get("required", bool, False) or node.get("primaryKey", bool, False):
        rules.append(Rule("required", "present", about, f"{node.path}.required", missing=missing))
    if node.get("unique", bool, False):
        rules.append(Rule("unique", "unique", about, f"{node.path}.unique", missing=missing))
    rules += type_rules(node, column.name, severity, missing)
    if node.value.get("enum") is not None:
        values = tuple(_enum_value(item.keys(ENUM_KEYS)) for item in node.items("enum"))
        rules.append(Rule("enum", "values", about, f"{node.path}.enum", severity, missing=missing, values=values))
    return [*rules, *quality_rules(node, column.name, names, missing)]


def _enum_value(node: Node) -> str:
    value = node.value.get("value")
    if value is None or isinstance(value, bool | float | dict | list):
        node.at("value").fail(f"is {value!r}; quote it: values are compared as text")
    return str(value)


def _key_rules(properties: list[Node], table: Node) -> list[Rule]:
    """The primary key is unique as a whole; a key of one column that says `unique` has that rule already."""
    parts = [node for node in properties if node.get("primaryKey", bool, False)]
    if not parts or (len(parts) == 1 and parts[0].get("unique", bool, False)):
        return []
    parts.sort(key=lambda node: int(node.get("primaryKeyPosition", int, -1)))
    return [Rule("primary key", "unique", tuple(node.value["name"] for node in parts), f"{table.path}.primaryKey")]


def _cap(table: Node) -> float:
    cap = table.custom().get("maxQuarantinePercent", MAX_QUARANTINE_PERCENT)
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 <= cap <= 100:
        table.at("customProperties").fail(f"maxQuarantinePercent {cap!r}; write a number from 0 to 100")
    return float(cap)


def _distinct(rules: Iterable[Rule]) -> list[Rule]:
    """Rules whose name and subject tell them apart."""
    seen: dict[tuple[str, str], int] = {}
    found = []
    for rule in rules:
        count = seen[rule.name, rule.subject] = seen.get((rule.name, rule.subject), 0) + 1
        found.append(replace(rule, name=f"{rule.name} #{count}") if count > 1 else rule)
    return found
