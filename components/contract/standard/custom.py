"""Quality rules of type custom for engine greatExpectations: an expectation and its arguments, checked when loaded."""

from __future__ import annotations

import difflib
import json
from typing import Any

from components.contract.standard.quality import Scope, label_of, severity_of
from components.contract.standard.rules import Rule
from components.contract.standard.yaml_file import Node, parse_yaml

ENGINES = ("greatexpectations", "great-expectations", "great_expectations")
TYPE_KEYS = ("type", "expectation_type", "expectation")


def custom_rule(node: Node, scope: Scope) -> Rule:
    """The rule; its `implementation` is a mapping, or YAML or JSON text: {type: expect_..., kwargs: {...}}.

    The column of a property's rule is the property. Columns of numbers and times reach the expectation as such, what is
    missing or does not read as null. Great Expectations is imported here, to see whether it has the expectation.

    Raises:
        UserError: another engine, an unknown expectation, arguments that do not fit it, a column that is not declared.
    """
    engine = node.get("engine", str, "")
    if str(engine).lower() not in ENGINES:
        node.at("engine").fail(f"{engine!r} does not run here; write greatExpectations, or a rule of type sql")
    place = node.at("implementation")
    name, arguments = _parsed(place)
    from components.contract.standard import expectation_types as types

    kind = types.expectation_class(name)
    if kind is None:
        near = difflib.get_close_matches(name, types.known_names(), n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        place.fail(f"Great Expectations has no {name!r}{hint}")
    if scope.column and not any(key in arguments for key in types.COLUMN_KEYS) and "column" in kind.__fields__:
        arguments = {"column": scope.column.name, **arguments}
    if problem := types.problem_of(kind, arguments):
        place.fail(problem)
    if arguments.get("mostly") is not None and float(arguments["mostly"]) <= 0:
        place.at("kwargs").fail("mostly 0 lets every row pass, so the rule cannot fail; write a share above 0")
    columns = _columns(place, arguments, scope, types.COLUMN_KEYS)
    severity = severity_of(node)
    if severity == "warning" and (not types.counts_rows(kind) or arguments.get("mostly", 1) != 1):
        node.at("severity").fail(
            "a warning sets single rows aside; write error or info, or an expectation of rows without mostly"
        )
    known_columns = {column.name: column for column in scope.columns}
    return Rule(
        name=label_of(node, name),
        kind="expectation",
        columns=columns,
        where=node.path,
        severity=severity,
        missing=tuple(dict.fromkeys(text for name in columns for text in known_columns[name].missing)) or ("",),
        description=node.get("description", str, ""),
        engine="great_expectations",
        readings=tuple(known_columns[name].reading for name in columns),
        expectation=types.snake_case(kind),
        arguments=json.dumps(arguments, sort_keys=True, default=str),
    )


def _parsed(place: Node) -> tuple[str, dict[str, Any]]:
    value = place.value
    if isinstance(value, str):
        try:
            value = parse_yaml(value)
        except ValueError as error:
            place.fail(f"is neither YAML nor JSON ({error}); write type and kwargs")
    if not isinstance(value, dict):
        place.fail("is no mapping; write {type: expect_..., kwargs: {...}}")
    keys = [key for key in TYPE_KEYS if key in value]
    if len(keys) != 1 or not isinstance(value[keys[0]], str):
        place.fail("names no expectation; write {type: expect_..., kwargs: {...}}")
    left = [key for key in value if key not in (keys[0], "kwargs", "meta", "description")]
    if left:
        place.fail(f"unknown key {str(left[0])!r}; write type and kwargs")
    arguments = value.get("kwargs") or {}
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        place.at("kwargs").fail("is no mapping; write the arguments by name")
    return str(value[keys[0]]), dict(arguments)


def _columns(place: Node, arguments: dict[str, Any], scope: Scope, keys: tuple[str, ...]) -> tuple[str, ...]:
    named: list[str] = []
    for key in keys:
        value = arguments.get(key)
        named += value if isinstance(value, list) else [] if value is None else [value]
    known = [column.name for column in scope.columns]
    for name in named:
        if name not in known:
            place.at("kwargs").fail(f"{name!r} is no declared column; declare it, or name another")
    return tuple(dict.fromkeys(named))
