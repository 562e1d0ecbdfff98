"""Rules of `quality` lists: the standard's library metrics; what cannot be checked is refused, not skipped."""

from __future__ import annotations

import math
from typing import Any

from components.contract.logical_types import checked_pattern
from components.contract.rules import OPERATORS, Limit, Rule
from components.contract.yaml_file import Node, words

KEYS = words(
    "id name description type metric rule arguments severity unit dimension method schedule scheduler businessImpact "
    "tags customProperties authoritativeDefinitions query engine implementation"
) | frozenset(OPERATORS)
ARGUMENTS = {
    "rowCount": (),
    "nullValues": (),
    "missingValues": ("missingValues",),
    "invalidValues": ("validValues", "pattern"),
    "duplicateValues": ("properties",),
}
SEVERITIES = ("error", "warning", "info")


def quality_rules(parent: Node, column: str, columns: tuple[str, ...], missing: tuple[str, ...] = ("",)) -> list[Rule]:
    """The rules of one `quality` list, in order.

    nullValues counts null and empty cells; missingValues these and the texts it lists; invalidValues the cells that
    are not missing and break the list or pattern; duplicateValues all rows that share their value or key with another.

    Args:
        parent: the property, or the schema object.
        column: the property's name, "" for the schema object.
        columns: all declared columns.
        missing: texts that count as missing in this column.
    """
    return [_rule(node.keys(KEYS), column, columns, missing) for node in parent.items("quality")]


def missing_texts(parent: Node) -> tuple[str, ...]:
    """Texts that a property's missingValues rules list, and the empty text."""
    found = [""]
    for node in parent.items("quality"):
        if isinstance(node.value, dict) and node.value.get("metric") == "missingValues":
            found += _texts(_arguments(node), "missingValues")
    return tuple(dict.fromkeys(found))


def severity_of(node: Node, key: str = "severity") -> str:
    """error, warning or info; error where none is given."""
    severity = node.get(key, str, "error")
    if severity not in SEVERITIES:
        node.at(key).fail(f"{severity!r} is unknown; write {', '.join(SEVERITIES)}")
    return str(severity)


def _rule(node: Node, column: str, columns: tuple[str, ...], missing: tuple[str, ...]) -> Rule:
    kind = node.get("type", str, "library")
    label = node.get("id", str) or node.get("name", str)
    about = (column,) if column else ()
    if kind == "text":
        text = node.get("description", str, "")
        return Rule(label or "note", "note", about, node.path, severity="info", description=text)
    if kind != "library" or node.value.get("rule") is not None:
        node.fail(f"type {kind!r} is not checked here; write a library metric ({', '.join(ARGUMENTS)}) or text")
    metric = node.get("metric", str, "")
    if metric not in ARGUMENTS:
        node.at("metric").fail(f"{metric!r} is unknown; known: {', '.join(ARGUMENTS)}")
    if (metric == "rowCount" and column) or (metric in ("nullValues", "missingValues", "invalidValues") and not column):
        node.at("metric").fail(f"{metric} does not belong to a {'property' if column else 'schema object'}; move it")
    arguments = _arguments(node).keys(ARGUMENTS[metric])
    severity, limit = severity_of(node), _limit(node, metric)
    if severity == "warning" and (metric == "rowCount" or limit != Limit()):
        node.at("severity").fail("a warning sets single rows aside: it needs a metric of rows and mustBe: 0")
    details = _details(metric, arguments, column, columns, missing)
    return Rule(
        name=label or metric,
        where=node.path,
        severity=severity,
        limit=limit,
        description=node.get("description", str, ""),
        **{"columns": about, **details},
    )


def _arguments(node: Node) -> Node:
    return Node(node.value.get("arguments") or {}, node.file, f"{node.path}.arguments")


def _details(
    metric: str, arguments: Node, column: str, columns: tuple[str, ...], missing: tuple[str, ...]
) -> dict[str, Any]:
    if metric == "rowCount":
        return {"kind": "rows"}
    if metric == "nullValues":
        return {"kind": "present"}
    if metric == "missingValues":
        return {"kind": "present", "missing": tuple(dict.fromkeys(["", *_texts(arguments, "missingValues")]))}
    if metric == "duplicateValues":
        named = (column,) if column else tuple(_texts(arguments, "properties"))
        unknown = [name for name in named if name not in columns]
        if unknown or not named:
            arguments.at("properties").fail(f"names {unknown or 'no column'}; name declared columns")
        return {"kind": "unique", "columns": named, "missing": missing}
    if (arguments.value.get("validValues") is None) == (arguments.value.get("pattern") is None):
        arguments.fail("invalidValues needs either validValues or pattern")
    if arguments.value.get("pattern") is not None:
        return {"kind": "pattern", "pattern": checked_pattern(arguments.at("pattern")), "missing": missing}
    return {"kind": "values", "values": tuple(_texts(arguments, "validValues")), "missing": missing}


def _texts(arguments: Node, key: str) -> list[str]:
    """A list of texts; null entries are left out, numbers are taken as written, true/false must be quoted."""
    found = []
    for node in arguments.items(key):
        if isinstance(node.value, bool | dict | list | float):
            node.fail(f"is {node.value!r}; quote it: values are compared as text")
        if node.value is not None:
            found.append(str(node.value))
    return found


def _limit(node: Node, metric: str) -> Limit:
    given = [operator for operator in OPERATORS if node.value.get(operator) is not None]
    if len(given) != 1:
        node.fail(f"gives {len(given)} of the operators {', '.join(OPERATORS)}; give one")
    operator, value = given[0], node.value[given[0]]
    numbers = value if operator.endswith("Between") and isinstance(value, list) else [value]
    if len(numbers) != (2 if operator.endswith("Between") else 1) or not all(map(_is_number, numbers)):
        node.at(operator).fail(f"is {value!r}; write {'two numbers' if operator.endswith('Between') else 'a number'}")
    unit = node.get("unit", str, "rows")
    if unit not in ("rows", "percent"):
        node.at("unit").fail(f"{unit!r} is unknown; write rows or percent")
    if unit == "percent" and metric in ("rowCount", "duplicateValues"):
        node.at("unit").fail(f"{unit!r} does not go with {metric}; write rows")
    return Limit(operator, float(numbers[0]), float(numbers[-1]), unit)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
