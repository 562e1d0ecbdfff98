"""Operators of quality rules as limits, and whether limits can hold together."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

from components.contract.standard.rules import OPERATORS, Limit
from components.contract.standard.yaml_file import Node


def limit_of(node: Node, units: Sequence[str]) -> Limit:
    """The one operator that a rule gives, in its unit.

    Args:
        node: the rule.
        units: the units that go with its metric, the first where none is given; () for a plain number.

    Raises:
        UserError: no operator or several, no number, a between with the larger number first, another unit, or a limit
            that no count can meet.
    """
    given = [operator for operator in OPERATORS if node.value.get(operator) is not None]
    if len(given) != 1:
        node.fail(f"gives {len(given)} of the operators {', '.join(OPERATORS)}; give one")
    operator, value = given[0], node.value[given[0]]
    between = operator.endswith("Between")
    numbers = value if between and isinstance(value, list) else [value]
    if len(numbers) != (2 if between else 1) or not all(map(_is_number, numbers)):
        node.at(operator).fail(f"is {value!r}; write {'two numbers' if between else 'a number'}")
    if numbers[0] > numbers[-1] or (between and numbers[0] == numbers[-1]):
        node.at(operator).fail(f"is {value!r}; write the smaller number first")
    limit = Limit(operator, float(numbers[0]), float(numbers[-1]), _unit(node, units))
    if not can_hold([limit]):
        node.at(operator).fail(f"no {'share of rows' if limit.unit == 'percent' else 'count'} is {limit.text}; mend it")
    return limit


def can_hold(limits: Sequence[Limit]) -> bool:
    """Whether some number meets all limits, which have one unit: rows from 0, percent 0 to 100, or any number."""
    unit = limits[0].unit
    edges = sorted({edge for limit in limits for edge in (limit.value, limit.high)})
    if unit == "rows":
        near = {math.floor(edge) + step for edge in edges for step in (-1, 0, 1, 2)}
        tried = [float(number) for number in near | {0} if number >= 0]
    elif unit == "percent":
        ends = sorted({0.0, 100.0, *(edge for edge in edges if 0 <= edge <= 100)})
        tried = [*ends, *((low + high) / 2 for low, high in itertools.pairwise(ends))]
    else:
        between = ((low + high) / 2 for low, high in itertools.pairwise(edges))
        tried = [*edges, *between, edges[0] - 1, edges[-1] + 1]
    return any(all(limit.holds(number) for limit in limits) for number in tried)


def _unit(node: Node, units: Sequence[str]) -> str:
    if not units:
        node.get("unit", str)
        return ""
    unit = str(node.get("unit", str, units[0]))
    if unit not in ("rows", "percent"):
        node.at("unit").fail(f"{unit!r} is unknown; write rows or percent")
    if unit not in units:
        node.at("unit").fail(f"{unit!r} does not go with this metric; write {' or '.join(units)}")
    return unit


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
