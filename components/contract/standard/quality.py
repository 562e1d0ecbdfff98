"""Rules of `quality` lists: library metrics, text, sql and custom; what cannot be checked is refused, not skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from components.contract.standard.limits import can_hold, limit_of
from components.contract.standard.patterns import checked_pattern
from components.contract.standard.rules import OPERATORS, Column, Limit, Rule
from components.contract.standard.yaml_file import Node, words

KEYS = words(
    "id name description type metric rule arguments severity unit dimension method schedule scheduler businessImpact "
    "tags customProperties authoritativeDefinitions query engine implementation validValues"
) | frozenset(OPERATORS)
LIBRARY_ONLY = ("metric", "rule", "arguments", "validValues")
DIMENSIONS = words("accuracy completeness conformity consistency coverage timeliness uniqueness")
ARGUMENTS = {
    "rowCount": (),
    "nullValues": (),
    "missingValues": ("missingValues",),
    "invalidValues": ("validValues", "pattern"),
    "duplicateValues": ("properties",),
}
OLD_NAMES = {"duplicateCount": "duplicateValues", "validValues": "invalidValues", "nullCheck": "nullValues"}
SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True)
class Scope:
    """Where a quality list stands: the table, its columns, and the property (None: the schema object)."""

    table: str
    columns: tuple[Column, ...]
    column: Column | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Texts that count as missing in the property."""
        return self.column.missing if self.column else ("",)


def quality_rules(parent: Node, scope: Scope) -> list[Rule]:
    """The rules of one `quality` list, in order.

    nullValues counts null cells (and empty ones, unless the property's missingValues leaves them out); missingValues
    null cells and the texts it lists; invalidValues the cells that are not missing and break the list or pattern;
    duplicateValues all rows that share their value or key with another. The older spelling `rule` of ODCS 3.0 is read.

    Args:
        parent: the property, or the schema object.
        scope: where it stands.
    """
    return [_rule(node.keys(KEYS), scope) for node in parent.items("quality")]


def missing_texts(parent: Node) -> tuple[str, ...]:
    """Texts that count as missing in a property: what its missingValues rules list; the empty one where it has none."""
    lists = [
        _missing_list(_arguments(node))
        for node in parent.items("quality")
        if isinstance(node.value, dict) and "missingValues" in (node.value.get("metric"), node.value.get("rule"))
    ]
    return tuple(dict.fromkeys(text for texts in lists for text in texts)) if lists else ("",)


def check_together(rules: Sequence[Rule]) -> None:
    """ValueError with both places where the limits on one count cannot all hold."""
    groups: dict[tuple[Any, ...], list[Rule]] = {}
    for rule in rules:
        if rule.severity == "error" and rule.kind in ("rows", "present", "values", "pattern", "unique"):
            key = (rule.kind, rule.columns, rule.missing, rule.values, rule.pattern, rule.limit.unit)
            groups.setdefault(key, []).append(rule)
    for group in groups.values():
        for end in range(2, len(group) + 1):
            if not can_hold([rule.limit for rule in group[:end]]):
                one, other = group[end - 2], group[end - 1]
                raise ValueError(
                    f"{other.where}: {other.limit.text} contradicts {one.where} ({one.limit.text}); mend one of them"
                )


def severity_of(node: Node, key: str = "severity") -> str:
    """error, warning or info; error where none is given."""
    severity = node.get(key, str, "error")
    if severity not in SEVERITIES:
        node.at(key).fail(f"{severity!r} is unknown; write {', '.join(SEVERITIES)}")
    return str(severity)


def _rule(node: Node, scope: Scope) -> Rule:
    kind = node.get("type", str, "library")
    dimension = node.get("dimension", str)
    if dimension is not None and dimension not in DIMENSIONS:
        node.at("dimension").fail(f"{dimension!r} is unknown; known: {', '.join(sorted(DIMENSIONS))}")
    if kind not in ("library", "text", "sql", "custom"):
        node.at("type").fail(f"{kind!r} is unknown; write library, text, sql or custom")
    wrong = [key for key in _misplaced(kind) if node.value.get(key) is not None]
    if wrong:
        node.at(wrong[0]).fail(f"does not belong to a rule of type {kind}; remove it")
    if kind == "text":
        return _note(node, scope)
    if kind == "sql":
        return _sql(node, scope)
    if kind == "custom":
        from components.contract.standard.custom import custom_rule

        return custom_rule(node, scope)
    return _library(node, scope)


def _misplaced(kind: str) -> tuple[str, ...]:
    if kind == "library":
        return ("query", "engine", "implementation")
    if kind == "sql":
        return (*LIBRARY_ONLY, "engine", "implementation")
    if kind == "custom":
        return (*LIBRARY_ONLY, "query", *OPERATORS)
    return (*LIBRARY_ONLY, "query", "engine", "implementation", *OPERATORS)


def label_of(node: Node, default: str) -> str:
    """The rule's id or name."""
    return str(node.get("id", str) or node.get("name", str) or default)


def _note(node: Node, scope: Scope) -> Rule:
    about = (scope.column.name,) if scope.column else ()
    text = node.get("description", str, "")
    return Rule(label_of(node, "note"), "note", about, node.path, severity="info", description=text)


def _sql(node: Node, scope: Scope) -> Rule:
    from components.contract.engines.sql_rules import checked_query

    severity = severity_of(node)
    if severity == "warning":
        node.at("severity").fail("a warning sets single rows aside, a query gives one number; write error or info")
    query = checked_query(node.at("query"), scope.table, scope.columns, scope.column)
    return Rule(
        name=label_of(node, "sql"),
        kind="sql",
        columns=(scope.column.name,) if scope.column else (),
        where=node.path,
        severity=severity,
        limit=limit_of(node, ()),
        missing=scope.missing,
        description=node.get("description", str, ""),
        engine="duckdb",
        query=query,
    )


def _library(node: Node, scope: Scope) -> Rule:
    metric = _metric(node)
    if (metric == "rowCount" and scope.column) or (
        metric in ("nullValues", "missingValues", "invalidValues") and not scope.column
    ):
        node.at("metric").fail(
            f"{metric} does not belong to a {'property' if scope.column else 'schema object'}; move it"
        )
    arguments = _arguments(node).keys(ARGUMENTS[metric])
    severity = severity_of(node)
    limit = limit_of(node, ("rows",) if metric == "rowCount" else ("rows", "percent"))
    if severity == "warning" and (metric == "rowCount" or (limit.operator, limit.value) != ("mustBe", 0)):
        node.at("severity").fail("a warning sets single rows aside: it needs a metric of rows and mustBe: 0")
    return Rule(
        name=label_of(node, metric),
        where=node.path,
        severity=severity,
        limit=Limit() if (limit.operator, limit.value) == ("mustBe", 0) and metric != "rowCount" else limit,
        description=node.get("description", str, ""),
        **{"columns": (scope.column.name,) if scope.column else (), **_details(metric, arguments, scope)},
    )


def _metric(node: Node) -> str:
    metric, old = node.get("metric", str), node.get("rule", str)
    named = OLD_NAMES.get(old, old) if old else None
    if metric and named and metric != named:
        node.at("rule").fail(f"{old!r} and metric {metric!r} differ; keep metric")
    found = str(metric or named or "")
    if found not in ARGUMENTS:
        node.at("metric" if metric or not old else "rule").fail(
            f"{metric or old!r} is unknown; known: {', '.join(ARGUMENTS)}"
        )
    if node.value.get("validValues") is not None and not (old and found == "invalidValues"):
        node.at("validValues").fail("stands beside the older spelling `rule: validValues` only; move it into arguments")
    return found


def _arguments(node: Node) -> Node:
    given = node.value.get("arguments")
    if node.value.get("validValues") is not None:
        given = {**(given or {}), "validValues": node.value["validValues"]}
    return Node({} if given is None else given, node.file, f"{node.path}.arguments")


def _details(metric: str, arguments: Node, scope: Scope) -> dict[str, Any]:
    if metric == "rowCount":
        return {"kind": "rows"}
    if metric == "nullValues":
        return {"kind": "present", "missing": ("",) if "" in scope.missing else ()}
    if metric == "missingValues":
        return {"kind": "present", "missing": _missing_list(arguments)}
    if metric == "duplicateValues":
        return _duplicates(arguments, scope)
    if (arguments.value.get("validValues") is None) == (arguments.value.get("pattern") is None):
        arguments.fail("invalidValues needs either validValues or pattern")
    if arguments.value.get("pattern") is not None:
        return {"kind": "pattern", "pattern": checked_pattern(arguments.at("pattern")), "missing": scope.missing}
    values = tuple(_texts(arguments, "validValues"))
    if not values:
        arguments.at("validValues").fail("lists no value; write the values that are valid")
    return {"kind": "values", "values": values, "missing": scope.missing}


def _duplicates(arguments: Node, scope: Scope) -> dict[str, Any]:
    """Of several columns, the texts that are missing in any of them are missing in all."""
    if scope.column and arguments.value.get("properties") is not None:
        arguments.at("properties").fail("belongs to the schema object; a property's rule is about itself")
    named = [scope.column.name] if scope.column else _texts(arguments, "properties")
    known = {column.name: column for column in scope.columns}
    unknown = [name for name in named if name not in known]
    if unknown or not named or len(set(named)) < len(named):
        arguments.at("properties").fail(f"names {unknown or named or 'no column'}; name declared columns, each once")
    missing = tuple(dict.fromkeys(text for name in named for text in known[name].missing))
    return {"kind": "unique", "columns": tuple(named), "missing": missing}


def _missing_list(arguments: Node) -> tuple[str, ...]:
    """The texts that a missingValues rule lists; the empty one where it lists nothing."""
    if not isinstance(arguments.value, dict) or arguments.value.get("missingValues") is None:
        return ("",)
    return tuple(dict.fromkeys(_texts(arguments, "missingValues")))


def _texts(arguments: Node, key: str) -> list[str]:
    """A list of texts; null entries are left out, numbers are taken as written, true/false must be quoted."""
    found = []
    for node in arguments.items(key):
        if isinstance(node.value, bool | dict | list | float):
            node.fail(f"is {node.value!r}; quote it: values are compared as text")
        if node.value is not None:
            found.append(str(node.value))
    return found
