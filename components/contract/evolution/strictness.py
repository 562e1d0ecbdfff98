"""Whether every batch that keeps one rule also keeps another. What is not proved is answered with no.

All fields of a rule count: a field or a kind that is not known here must be equal, so that a new kind of rule is never
taken for a harmless one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from components.contract.evolution.pattern_order import is_wider
from components.contract.evolution.sql_text import folded
from components.contract.standard.rules import Limit, Reading, Rule

RANKS = {"info": 0, "warning": 1, "error": 2}
UNRELATED = {"name", "where", "description", "severity", "limit", "now"}  # of a rule: not what it asks of a value
NONE = Limit()


def implies(strong: Rule, weak: Rule) -> bool:
    """Whether a batch that `strong` lets pass is let pass by `weak`, with no row more set aside."""
    if weak.severity == "info" or weak.kind == "note":
        return True
    if strong.kind != weak.kind or RANKS.get(strong.severity, -1) < RANKS.get(weak.severity, 3):
        return False
    differ = differing(strong, weak)
    if not differ:
        return _allows(weak.limit, strong.limit)
    known = _ORDERS.get(weak.kind)
    if known is None or not differ <= known.decides or not known.asks_no_more(strong, weak):
        return False
    return _allows(weak.limit, strong.limit) and (known.measures or _lets_fewer(weak.limit))


def differing(one: Rule, other: Rule) -> set[str]:
    """Names of the fields in which two rules ask something else of a value; the order of a key's columns is none,
    nor is the white space of a query.
    """
    sides = (one, other)
    pair = [replace(rule, columns=tuple(sorted(rule.columns))) if rule.kind == "unique" else rule for rule in sides]
    pair = [replace(rule, query=folded(rule.query)) for rule in pair]
    names = {field.name for field in fields(one)} - UNRELATED
    return {name for name in names if getattr(pair[0], name) != getattr(pair[1], name)}


def _allows(weak: Limit, strong: Limit) -> bool:
    """Whether every number that `strong` lets pass is let pass by `weak`."""
    if weak.unit != strong.unit and not (_only_zero(strong) and weak.holds(0)):
        return False
    return all(weak.holds(number) for number in _probes(weak, strong) if strong.holds(number))


def _lets_fewer(limit: Limit) -> bool:
    """Whether fewer broken rows than allowed are allowed as well."""
    held = [limit.holds(number) for number in _probes(limit)]
    return held == sorted(held, reverse=True)


def _only_zero(limit: Limit) -> bool:
    return [number for number in _probes(limit) if limit.holds(number)] == [0.0]


def _probes(*limits: Limit) -> list[float]:
    """Numbers from 0 among which the answer of a limit changes: its bounds, between them, and beyond."""
    bounds = sorted({0.0, *(bound for limit in limits for bound in (limit.value, limit.high) if bound >= 0)})
    between = [(low + high) / 2 for low, high in itertools.pairwise(bounds)]
    whole = [number for bound in bounds for number in (math.floor(bound) - 1.0, math.ceil(bound) + 1.0) if number >= 0]
    found = sorted({*bounds, *between, *whole, bounds[-1] * 2 + 1})
    counts = all(limit.unit == "rows" for limit in limits)
    return [number for number in found if number.is_integer()] if counts else found


@dataclass(frozen=True)
class _Order:
    """How rules of a kind compare: the fields that decide, and whether `weak` asks no more of each value.

    measures: the rule measures one number and the limit alone says what is too much.
    """

    decides: set[str]
    asks_no_more: Callable[[Rule, Rule], bool]
    measures: bool = False


def _misses_no_less(strong: Rule, weak: Rule) -> bool:
    """A text that counts as missing is not looked at: `weak` looks at no more texts."""
    return set(strong.missing) <= set(weak.missing)


def _unique(strong: Rule, weak: Rule) -> bool:
    return len(weak.columns) == 1 and _misses_no_less(strong, weak)


def _present(strong: Rule, weak: Rule) -> bool:
    return set(weak.missing) <= set(strong.missing)


def _values(strong: Rule, weak: Rule) -> bool:
    return set(strong.values) <= set(weak.values) and _misses_no_less(strong, weak)


def _pattern(strong: Rule, weak: Rule) -> bool:
    return _misses_no_less(strong, weak) and is_wider(weak.pattern, strong.pattern)


def _length(strong: Rule, weak: Rule) -> bool:
    low = (weak.low or 0) <= (strong.low or 0)
    high = weak.high is None or (strong.high is not None and strong.high <= weak.high)
    return low and high and _misses_no_less(strong, weak)


def _seconds(strong: Rule, weak: Rule) -> bool:
    return strong.seconds <= weak.seconds and _misses_no_less(strong, weak)


def _reading(strong: Rule, weak: Rule) -> bool:
    return (
        strong.reading is not None
        and weak.reading is not None
        and reads_no_less(strong.reading, weak.reading)
        and _misses_no_less(strong, weak)
    )


def reads_no_less(strong: Reading, weak: Reading) -> bool:
    """Whether every text that `strong` reads within its bounds is read by `weak` within its own."""
    differ = {field.name for field in fields(strong) if getattr(strong, field.name) != getattr(weak, field.name)}
    if differ - {"formats", "low", "high", "open_low", "open_high", "multiple_of"}:
        return False
    shorter = weak.formats[: len(strong.formats)]
    bounded = bool(weak.low or weak.high)
    formats = strong.formats == shorter if bounded else set(strong.formats) <= set(weak.formats)
    low = _within(weak.low, strong.low, weak.open_low, strong.open_low, 1)
    high = _within(weak.high, strong.high, weak.open_high, strong.open_high, -1)
    return formats and low and high and _multiple(strong, weak)


def _within(weak: str, strong: str, weak_open: bool, strong_open: bool, sign: int) -> bool:
    """Whether the bound `strong` lies inside `weak`; "" is no bound. `sign` is 1 for a lower bound, -1 for an upper."""
    if not weak or (weak == strong and (strong_open or not weak_open)):
        return True
    outer, inner = _bound(weak), _bound(strong)
    if outer is None or inner is None:
        return False
    distance = (inner - outer) * sign
    return distance > 0 or (distance == 0 and (strong_open or not weak_open))


def _bound(text: str) -> Decimal | None:
    """A bound as a number: itself, or the seconds of an ISO 8601 time; None where it is neither."""
    try:
        return Decimal(text)
    except InvalidOperation:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return Decimal(str((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()))


def _multiple(strong: Reading, weak: Reading) -> bool:
    if weak.multiple_of in ("", strong.multiple_of):
        return True
    outer, inner = _bound(weak.multiple_of), _bound(strong.multiple_of)
    return strong.kind == "integer" and None not in (outer, inner) and inner % outer == 0  # type: ignore[operator]


_ORDERS = {
    "present": _Order({"missing"}, _present),
    "values": _Order({"values", "missing"}, _values),
    "pattern": _Order({"pattern", "format", "missing"}, _pattern),
    "length": _Order({"low", "high", "missing"}, _length),
    "reading": _Order({"reading", "missing"}, _reading),
    "unique": _Order({"missing"}, _unique),
    "retention": _Order({"seconds", "missing"}, _seconds),
    "latency": _Order({"seconds", "missing"}, _seconds),
    "freshness": _Order({"seconds"}, lambda _strong, _weak: True, measures=True),
    "frequency": _Order({"seconds"}, lambda _strong, _weak: True, measures=True),
}
