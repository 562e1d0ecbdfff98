"""The properties of a schema object: its columns, and the rules that they declare."""

from __future__ import annotations

from dataclasses import replace

from components.contract.standard.declared_values import check_values
from components.contract.standard.logical_types import reading_of, type_of, type_rules
from components.contract.standard.own_properties import own_tags
from components.contract.standard.physical_types import check_physical_type, physical_rules
from components.contract.standard.quality import SEVERITIES, Scope, missing_texts, quality_rules
from components.contract.standard.rules import Column, Rule
from components.contract.standard.yaml_file import Node, words

PROPERTY_KEYS = words(
    "id name physicalName physicalType logicalType logicalTypeOptions description businessName deprecated synonyms "
    "tags required unique primaryKey primaryKeyPosition enum quality classification criticalDataElement examples "
    "customProperties authoritativeDefinitions semanticType partitioned partitionKeyPosition encryptedName "
    "transformSourceObjects transformLogic transformDescription relationships"
)
NESTED_KEYS = words("properties items map")
ENUM_KEYS = words("id value label description tags customProperties authoritativeDefinitions")
CHOICES = {
    "columnPresence": ("required", "optional"),
    "ruleSeverity": SEVERITIES,
    "availability": ("at_event", "after_outcome"),
}


def read_columns(nodes: list[Node]) -> tuple[Column, ...]:
    """The declared columns; UserError for one without a name or declared twice."""
    columns: list[Column] = []
    for node in nodes:
        column = _column(node.keys(PROPERTY_KEYS | NESTED_KEYS))
        if column.name in [known.name for known in columns]:
            node.at("name").fail(f"{column.name!r} is declared twice; remove one")
        columns.append(column)
    return tuple(columns)


def property_rules(node: Node, column: Column, table: str, columns: tuple[Column, ...]) -> list[Rule]:
    """The rules of one property, in the order of its keys; its enum and examples are held against them."""
    severity = dict(column.custom).get("ruleSeverity", "error")
    about, missing = (column.name,), column.missing
    rules = [Rule("column", "column", about, node.path)]
    if node.get("required", bool, False) or node.get("primaryKey", bool, False):
        place = "required" if node.value.get("required") else "primaryKey"
        rules.append(Rule("required", "present", about, f"{node.path}.{place}", missing=missing))
    if node.get("unique", bool, False):
        rules.append(Rule("unique", "unique", about, f"{node.path}.unique", missing=missing))
    rules += type_rules(node, column.name, severity, missing) + physical_rules(node, column)
    if node.value.get("enum") is not None:
        values = tuple(_enum_value(item.keys(ENUM_KEYS)) for item in node.items("enum"))
        if not values or len(set(values)) < len(values):
            node.at("enum").fail(f"lists {'a value twice' if values else 'no value'}; list each allowed value once")
        rules.append(Rule("enum", "values", about, f"{node.path}.enum", severity, missing=missing, values=values))
    rules += quality_rules(node, Scope(table, columns, column))
    check_values(node, rules)
    return rules


def key_rules(properties: list[Node], columns: tuple[Column, ...], table: Node) -> tuple[tuple[str, ...], list[Rule]]:
    """The primary key in order, and its rule: unique as a whole, unless its one column says `unique` already."""
    parts = [node for node in properties if node.get("primaryKey", bool, False)]
    for node in properties:
        if node.get("primaryKeyPosition", int, -1) != -1 and node not in parts:
            node.at("primaryKeyPosition").fail("stands at a property that is no primaryKey; add primaryKey: true")
    positions = [int(node.get("primaryKeyPosition", int, -1)) for node in parts]
    if len(parts) > 1 and sorted(positions) != list(range(1, len(parts) + 1)) and set(positions) != {-1}:
        parts[0].at("primaryKeyPosition").fail(f"the positions of the key are {positions}; number them from 1 on")
    parts.sort(key=lambda node: int(node.get("primaryKeyPosition", int, -1)))
    names = tuple(str(node.value["name"]) for node in parts)
    if not parts or (len(parts) == 1 and parts[0].get("unique", bool, False)):
        return names, []
    missing = tuple(dict.fromkeys(text for column in columns if column.name in names for text in column.missing))
    return names, [Rule("primary key", "unique", names, f"{table.path}.primaryKey", missing=missing)]


def _column(node: Node) -> Column:
    name = node.get("name", str)
    if not name or "\0" in name:
        node.at("name").fail("is missing; name the column")
    custom = node.custom()
    for key, allowed in CHOICES.items():
        if key in custom and custom[key] not in allowed:
            node.at("customProperties").fail(f"{key} {custom[key]!r}; write {' or '.join(allowed)}")
    kind = type_of(node)
    nested = [key for key in NESTED_KEYS if node.value.get(key) is not None]
    if nested:
        node.at(nested[0]).fail("belongs to a nested type, which a column of texts cannot have; remove it")
    tags = own_tags(node.get("tags", list, []))
    reading = reading_of(node)
    return Column(
        name=str(name),
        optional=custom.get("columnPresence") == "optional",
        masked="pii" in tags,
        protected="protected" in tags,
        logical_type=kind,
        physical_type=check_physical_type(node, kind),
        reading=replace(reading, low="", high="", open_low=False, open_high=False, multiple_of="") if reading else None,
        missing=missing_texts(node),
        description=str(node.get("description", str, "")),
        custom=tuple(custom.items()),
    )


def _enum_value(node: Node) -> str:
    value = node.value.get("value")
    if value is None or isinstance(value, bool | float | dict | list):
        node.at("value").fail(f"is {value!r}; quote it: values are compared as text")
    return str(value)
