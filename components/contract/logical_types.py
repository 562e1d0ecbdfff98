"""Rules that a property's logical type and its options declare."""

from __future__ import annotations

import re
from typing import Any

from components.contract.reading import bounds, strptime_formats
from components.contract.rules import Reading, Rule
from components.contract.yaml_file import Node

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OPTIONS = {
    "string": ("minLength", "maxLength", "pattern"),
    "date": ("format", *BOUNDS),
    "timestamp": ("format", "timezone", "defaultTimezone", *BOUNDS),
    "integer": BOUNDS,
    "number": BOUNDS,
    "boolean": (),
}
DEFAULT_FORMATS = {
    "date": ("%Y-%m-%d",),
    "timestamp": (
        "%Y-%m-%dT%H:%M:%S%z",
        "%Y-%m-%dT%H:%M:%S.%f%z",
        "%Y-%m-%dT%H:%M:%S",
        "%Y-%m-%dT%H:%M:%S.%f",
        "%Y-%m-%d %H:%M:%S",
        "%Y-%m-%d %H:%M:%S.%f",
    ),
}
TRUTHS = ("true", "false")


def type_rules(property_: Node, name: str, severity: str, missing: tuple[str, ...]) -> list[Rule]:
    """Rules of `logicalType` and `logicalTypeOptions`; UserError for a type or an option that is not checked."""
    kind = property_.get("logicalType", str, "string")
    if kind not in OPTIONS:
        property_.at("logicalType").fail(f"{kind!r} is not checked; known: {', '.join(OPTIONS)}")
    options = property_.at("logicalTypeOptions")
    options = Node(options.value or {}, options.file, options.path).keys(OPTIONS[kind])
    common: dict[str, Any] = {"columns": (name,), "severity": severity, "missing": missing}
    if kind == "string":
        return _string_rules(options, common)
    if kind == "boolean":
        place = property_.at("logicalType").path
        return [Rule(name="boolean", kind="values", where=place, values=TRUTHS, **common)]
    return [Rule(name=kind, kind="reading", where=options.path, reading=_reading(kind, options), **common)]


def checked_pattern(node: Node) -> str:
    """The node's value as a regular expression that compiles."""
    pattern = node.value
    if not isinstance(pattern, str):
        node.fail(f"is {pattern!r}; write a regular expression")
    try:
        re.compile(pattern)
    except re.error as error:
        node.fail(f"{pattern!r} is no regular expression ({error})")
    return str(pattern)


def _string_rules(options: Node, common: dict[str, Any]) -> list[Rule]:
    rules = []
    low, high = options.get("minLength", int), options.get("maxLength", int)
    if low is not None or high is not None:
        if (low or 0) > (high if high is not None else low or 0):
            options.fail(f"minLength {low} is above maxLength {high}")
        rules.append(Rule(name="length", kind="length", where=options.path, low=low, high=high, **common))
    if options.get("pattern", str) is not None:
        node = options.at("pattern")
        rules.append(Rule(name="pattern", kind="pattern", where=node.path, pattern=checked_pattern(node), **common))
    return rules


def _reading(kind: str, options: Node) -> Reading:
    formats: tuple[str, ...] = ()
    if kind in DEFAULT_FORMATS:
        text = options.get("format", str)
        try:
            formats = strptime_formats(text) if text else DEFAULT_FORMATS[kind]
        except ValueError as error:
            options.at("format").fail(str(error))
    low, high = options.value.get("minimum"), options.value.get("maximum")
    above, below = options.value.get("exclusiveMinimum"), options.value.get("exclusiveMaximum")
    if (low is not None and above is not None) or (high is not None and below is not None):
        options.fail("gives an inclusive and an exclusive bound for one end; keep one")
    reading = Reading(
        kind="time" if formats else kind,
        formats=formats,
        low=_text(above if low is None else low),
        high=_text(below if high is None else high),
        open_low=above is not None,
        open_high=below is not None,
    )
    try:
        bounds(reading)
    except ValueError as error:
        options.fail(f"a bound cannot be read ({error}); write times as YYYY-MM-DD")
    return reading


def _text(bound: Any) -> str:
    """A bound as text; YAML reads an unquoted day as a date."""
    return "" if bound is None else bound.isoformat() if hasattr(bound, "isoformat") else str(bound)
