"""What a property says of its values must agree with itself: enum, examples and rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from components.contract.standard.cells import first_broken
from components.contract.standard.rules import Rule
from components.contract.standard.yaml_file import Node


def check_values(property_: Node, rules: Sequence[Rule]) -> None:
    """UserError where an enum value or an example breaks a rule of its own property.

    Rules that only tell (severity info) or set rows aside (warning) are not meant: their values may be expected. Of the
    enum, each value must keep the other rules; of two lists of allowed values, one must be allowed by both.
    """
    binding = [rule for rule in rules if rule.severity == "error" and rule.limit.value == 0]
    lists = [rule for rule in binding if rule.kind == "values"]
    for one, other in itertools.pairwise(lists):
        if not set(one.values) & set(other.values):
            property_.fail(f"{one.where} and {other.where} allow no value together; mend one of them")
    others = [rule for rule in binding if rule.kind != "values"]
    for number, item in enumerate(property_.items("enum")):
        text = as_written(item.value.get("value"))
        if text is not None and (broken := first_broken(others, text)):
            property_.at(f"enum[{number}]").fail(f"{text!r} contradicts the rule {broken.name!r}: {broken.asks}")
    required = any(rule.kind == "present" and rule.limit.value == 0 for rule in binding)
    for item in property_.items("examples"):
        text = as_written(item.value)
        if isinstance(item.value, dict | list):
            item.fail("is nested; a column holds texts: write the text in quotes")
        missing = text is None or any(text in rule.missing for rule in binding if rule.kind == "present")
        if required and missing:
            item.fail(f"is {item.value!r}, but the property is required")
        if text is not None and (broken := first_broken(binding, text)):
            item.fail(f"{text!r} breaks the property's own rule {broken.name!r}: {broken.asks}")


def as_written(value: Any) -> str | None:
    """A YAML value as the text that the data would hold."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
