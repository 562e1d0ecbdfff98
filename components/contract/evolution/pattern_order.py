"""Whether every text that one regular expression finds is found by another, proved or not.

Both become automata over the code points at which either pattern changes its mind, and a breadth-first search looks for
a text that the first finds and the second does not (subset construction; Hopcroft, Motwani, Ullman 2006, chapter 2).
What is outside plain regular languages (word boundaries, flags, look-around) or too large is simply not proved.
"""

from __future__ import annotations

import re
import re._parser as sre  # the standard library's own parser of regular expressions
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_STATES = 4_000
MAX_STEPS = 20_000
LAST = 0x10FFFF
CATEGORIES = {
    "CATEGORY_DIGIT": [(48, 57)],
    "CATEGORY_SPACE": [(9, 10), (12, 13), (32, 32)],
    "CATEGORY_WORD": [(48, 57), (65, 90), (95, 95), (97, 122)],
}
OTHERWISE_IN_RE2 = re.compile(r"\[:|\\[0-9pPQEC]|\{,")
Ranges = list[tuple[int, int]]


class _Unproved(Exception):
    """The patterns are outside what is decided here."""


@dataclass
class _Automaton:
    """States by number; an edge without characters needs no text, `start` or `end` only at an end of the text."""

    free: list[list[tuple[str, int]]] = field(default_factory=list)
    edges: list[list[tuple[Ranges, int]]] = field(default_factory=list)
    first: int = 0
    final: int = 0

    def state(self) -> int:
        if len(self.free) >= MAX_STATES:
            raise _Unproved
        self.free.append([])
        self.edges.append([])
        return len(self.free) - 1

    def closure(self, states: Iterable[int], guards: frozenset[str]) -> frozenset[int]:
        found, pending = set(states), list(states)
        while pending:
            for guard, target in self.free[pending.pop()]:
                if target not in found and (not guard or guard in guards):
                    found.add(target)
                    pending.append(target)
        return frozenset(found)

    def step(self, states: frozenset[int], point: int) -> frozenset[int]:
        """After one more character; a text once found stays found, and a search may begin anywhere."""
        if self.final in states:
            return frozenset({self.final})
        reached = {
            target
            for state in states
            for ranges, target in self.edges[state]
            if any(low <= point <= high for low, high in ranges)
        }
        return self.closure(reached | {self.first}, frozenset())

    def finds(self, states: frozenset[int], at_start: bool) -> bool:
        guards = frozenset({"start", "end"} if at_start else {"end"})
        return self.final in self.closure(states, guards)


def is_wider(new: str, old: str) -> bool:
    """Whether `new` provably finds (search in RE2, `$` only at the end) every text that `old` finds."""
    if new == old:
        return True
    try:
        return _included(_automaton(old), _automaton(new))
    except (_Unproved, re.error, OverflowError, RecursionError):
        return False


def _included(old: _Automaton, new: _Automaton) -> bool:
    points = _points(old, new)
    start = frozenset({"start"})
    first = (old.closure({old.first}, start), new.closure({new.first}, start))
    if old.finds(first[0], True) and not new.finds(first[1], True):
        return False
    seen, pending = set[tuple[frozenset[int], frozenset[int]]](), [first]  # the first again is no longer the start
    while pending:
        here = pending.pop()
        for point in points:
            pair = (old.step(here[0], point), new.step(here[1], point))
            if pair in seen:
                continue
            if len(seen) > MAX_STEPS:
                raise _Unproved
            if old.finds(pair[0], False) and not new.finds(pair[1], False):
                return False
            seen.add(pair)
            pending.append(pair)
    return True


def _points(*automata: _Automaton) -> list[int]:
    """One code point of every stretch that all edges treat alike."""
    cuts = {0}
    for automaton in automata:
        for edges in automaton.edges:
            for ranges, _ in edges:
                cuts |= {low for low, _ in ranges} | {high + 1 for _, high in ranges if high < LAST}
    return sorted(cuts)


def _automaton(pattern: str) -> _Automaton:
    if OTHERWISE_IN_RE2.search(pattern):
        raise _Unproved
    parsed = sre.parse(pattern, re.ASCII)
    if parsed.state.flags & ~re.ASCII:
        raise _Unproved
    made = _Automaton()
    made.first = made.state()
    made.final = _sequence(made, parsed, made.first)
    return made


def _sequence(made: _Automaton, items: Any, state: int) -> int:
    for operation, argument in items:
        state = _one(made, str(operation), argument, state)
    return state


def _one(made: _Automaton, operation: str, argument: Any, state: int) -> int:
    """Add what one parsed operation reads behind a state; returns the state after it."""
    if operation in ("MAX_REPEAT", "MIN_REPEAT"):
        return _repeat(made, argument, state)
    after = made.state()
    if operation == "BRANCH":
        for branch in argument[1]:
            made.free[_sequence(made, branch, state)].append(("", after))
    elif operation == "SUBPATTERN":
        _, added, removed, inner = argument
        if added or removed:
            raise _Unproved
        made.free[_sequence(made, inner, state)].append(("", after))
    elif operation == "AT":
        guards = {"AT_BEGINNING": "start", "AT_BEGINNING_STRING": "start", "AT_END": "end", "AT_END_STRING": "end"}
        if str(argument) not in guards:
            raise _Unproved
        made.free[state].append((guards[str(argument)], after))
    else:
        made.edges[state].append((_ranges(operation, argument), after))
    return after


def _repeat(made: _Automaton, argument: Any, state: int) -> int:
    low, high, inner = argument
    for _ in range(low):
        state = _sequence(made, inner, state)
    if high is sre.MAXREPEAT:
        loop = made.state()
        made.free[state].append(("", loop))
        made.free[_sequence(made, inner, loop)].append(("", loop))
        return loop
    after = made.state()
    made.free[state].append(("", after))
    for _ in range(high - low):
        state = _sequence(made, inner, state)
        made.free[state].append(("", after))
    return after


def _ranges(operation: str, argument: Any) -> Ranges:
    if operation == "LITERAL":
        return [(argument, argument)]
    if operation == "NOT_LITERAL":
        return _negated([(argument, argument)])
    if operation == "ANY":
        return _negated([(10, 10)])
    if operation == "RANGE":
        return [argument]
    if operation == "CATEGORY":
        name = str(argument)
        return _negated(CATEGORIES[name.replace("_NOT_", "_")]) if "_NOT_" in name else CATEGORIES[name]
    if operation == "IN":
        inner = [item for item in argument if str(item[0]) != "NEGATE"]
        found = [each for item in inner for each in _ranges(str(item[0]), item[1])]
        return _negated(found) if len(inner) != len(argument) else found
    raise _Unproved


def _negated(ranges: Ranges) -> Ranges:
    found, low = [], 0
    for start, end in sorted(ranges):
        if start > low:
            found.append((low, start - 1))
        low = max(low, end + 1)
    return [*found, (low, LAST)] if low <= LAST else found
