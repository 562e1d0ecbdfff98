"""The comparison of versions against batches, and the order of patterns against the texts they find."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from components.contract.evolution.changes import Release
from components.contract.evolution.compare import compare
from components.contract.evolution.pattern_order import is_wider
from components.contract.judge import judge, setting_aside
from components.contract.standard.rules import DataContract
from components.core.errors import UserError
from tests.fakes.contract_case import slow_engine
from tests.fakes.contract_versions import write

TEXTS = ["a", "b", "ab", "abc", "", "?", "7"]
NUMBERS = ["1", "5", "9", "12", "-3", "1.5", "x", ""]
SEVERITIES = ["error", "warning", "info"]
FACETS: dict[str, list[Any]] = {
    "required": [True],
    "unique": [True],
    "presence": ["optional"],
    "severity": SEVERITIES,
    "minLength": [0, 1, 2],
    "maxLength": [2, 3, 4],
    "pattern": ["^[a-c]+$", "^[a-c]*$", "^[ab]+$", "a"],
    "enum": [TEXTS[:count] for count in (2, 3, 4)],
    "missing": [(texts, most) for texts in ([""], ["", "?"], ["", "?", "a"]) for most in (30, 60, 100)],
    "invalid": [(texts, severity) for texts in (TEXTS[:3], TEXTS[:4], TEXTS) for severity in SEVERITIES],
    "counted": [1, 2, 4],
    "kind": ["integer", "number"],
    "minimum": [0, 1, 5],
    "maximum": [5, 9, 12],
    "number required": [True],
    "number severity": SEVERITIES,
    "more": [True, False],
    "cap": [20, 60],
    "rows": [0, 1, 2],
}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A contract on the columns text and number, and one that differs from it in one or two facets."""
    base = {name: draw(st.sampled_from(values)) for name, values in FACETS.items() if draw(st.integers(0, 3)) == 0}
    turned = draw(st.lists(st.sampled_from(sorted(FACETS)), min_size=1, max_size=2))
    old, new = ({name: draw(st.sampled_from([None, *FACETS[name]])) for name in turned} for _ in range(2))
    return contract(base | old), contract(base | new)


def contract(facets: dict[str, Any]) -> dict[str, Any]:
    """The contract with these facets; None is as good as absent."""
    of = facets.get
    quality = []
    if of("missing"):
        limit = {"mustBeLessOrEqualTo": of("missing")[1], "unit": "percent"}
        quality.append({"metric": "missingValues", "arguments": {"missingValues": of("missing")[0]}, **limit})
    if of("invalid"):
        limit = {"mustBe": 0, "severity": of("invalid")[1]}
        quality.append({"metric": "invalidValues", "arguments": {"validValues": of("invalid")[0]}, **limit})
    if of("counted"):
        limit = {"mustBeLessThan": of("counted")}
        quality.append({"metric": "invalidValues", "arguments": {"pattern": "^[a-z]*$"}, **limit})
    text = {
        "name": "text",
        "required": of("required"),
        "unique": of("unique"),
        "logicalTypeOptions": _given(minLength=of("minLength"), maxLength=of("maxLength"), pattern=of("pattern")),
        "enum": of("enum") and [{"value": value} for value in of("enum")],
        "quality": quality,
        "customProperties": _custom(ruleSeverity=of("severity"), columnPresence=of("presence")),
    }
    number = {
        "name": "number",
        "logicalType": of("kind") or "integer",
        "logicalTypeOptions": _given(minimum=of("minimum"), maximum=of("maximum")),
        "required": of("number required"),
        "customProperties": _custom(ruleSeverity=of("number severity")),
    }
    more = [] if of("more") is None else [{"name": "more", "logicalType": "string", "required": of("more")}]
    table = {
        "name": "rows",
        "customProperties": _custom(maxQuarantinePercent=of("cap")),
        "quality": [] if of("rows") is None else [{"metric": "rowCount", "mustBeGreaterThan": of("rows")}],
        "properties": [_given(**column) for column in (text, number, *more)],
    }
    head = {"apiVersion": "v3.2.0", "kind": "DataContract", "id": "case", "version": "1.0.0", "status": "active"}
    return {**head, "schema": [table]}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _custom(**values: Any) -> list[dict[str, Any]]:
    return [{"property": name, "value": value} for name, value in values.items() if value is not None]


ROWS = st.tuples(st.sampled_from([*TEXTS, None]), st.sampled_from([*NUMBERS, None]))
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=4, max_size=4)
PLAIN = [[(text, "5")] for text in [*TEXTS, None]] + [[("a", number)] for number in [*NUMBERS, None]]
PLAIN += [[("a", "5"), ("ab", "6"), *batch, *batch] for batch in PLAIN] + [[("b", "5")] * 3 + batch for batch in PLAIN]


@pytest.mark.parametrize("facet", sorted(FACETS))
def test_every_step_of_one_facet_breaks_producers_or_lets_all_pass_that_passed(facet: str) -> None:
    """Each pair of values of each facet, against the plain batches; both ends occur."""
    told: Counter[str] = Counter()
    beside = {"severity": {"enum": TEXTS[:2]}, "number severity": {"minimum": 5}}.get(facet, {})
    for old, new in itertools.product([None, *FACETS[facet]], repeat=2):
        sides = (contract(beside | {facet: value}) for value in (old, new))
        _hold(*_read(*sides), PLAIN, told)
    assert told["compatible, passed before and after"] > 20, told
    assert told["broken, passed before"] > 0 or facet in ("presence", "kind"), told


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(pair=pairs(), batches=BATCHES)
def test_a_batch_that_the_old_version_lets_pass_passes_the_new_one_where_no_producer_is_broken(
    pair: tuple[dict[str, Any], dict[str, Any]], batches: list[list[tuple[str | None, ...]]]
) -> None:
    """Random versions, each with batches that a loop over rows measures; a column that came has no values."""
    try:
        sides = _read(*pair)
    except UserError:  # a contract that contradicts itself is no case
        reject()
    _hold(*sides, [*PLAIN, *batches], Counter())


def _hold(old: Release, new: Release, batches: list[list[tuple[str | None, ...]]], told: Counter[str]) -> None:
    found = compare(old, new)
    broken = any(one.breaks in ("producers", "both") for one in found.changes if one.path != "version")
    for batch in batches:
        if _passes(old.contract, batch):
            told["broken, passed before" if broken else "compatible, passed before and after"] += 1
            assert broken or _passes(new.contract, batch), (batch, found.changes)


def _read(*documents: dict[str, Any]) -> list[Release]:
    with tempfile.TemporaryDirectory() as name:
        return [Release.read(write(Path(name) / "c.yaml", document)) for document in documents]


def _passes(contract: DataContract, batch: list[tuple[str | None, ...]]) -> bool:
    names = [column.name for column in contract.columns]
    table = pa.table({name: pa.array(_column(name, batch), pa.string()) for name in names})
    seen = slow_engine(contract.rules, table)
    leaving = setting_aside(contract.rules, seen, len(batch))
    aside = {row for number in leaving for row in seen[number].bad_rows}
    return judge(contract, names, len(batch), seen, len(aside)).passed


def _column(name: str, batch: list[tuple[str | None, ...]]) -> list[str | None]:
    place = {"text": 0, "number": 1}.get(name)
    return [None if place is None else row[place] for row in batch]


@settings(max_examples=60, deadline=None)
@given(pair=pairs())
def test_a_contract_is_no_change_to_itself(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Whatever it holds, in whatever order its columns stand."""
    document = pair[0]
    turned = json.loads(json.dumps(document))
    turned["schema"][0]["properties"].reverse()
    try:
        sides = _read(document, turned)
    except UserError:
        reject()
    assert compare(*sides).changes == ()


PIECES = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    "^",
    "$",
    "(a|b)",
    "(ab)?",
    "a*",
    "b+",
    "a{1,2}",
    "(a|)",
    r"\d",
    r"\W",
    "(?:ba){2}",
]
SEEN = ["".join(text) for length in range(6) for text in itertools.product("ab1", repeat=length)] + [
    "\n",
    "a\n",
    "\nb",
    "é",
]


@settings(max_examples=400, deadline=None)
@given(one=st.lists(st.sampled_from(PIECES), max_size=4), other=st.lists(st.sampled_from(PIECES), max_size=4))
def test_a_pattern_that_is_called_wider_finds_all_that_the_other_finds(one: list[str], other: list[str]) -> None:
    """Against a search through every short text; and among plain patterns what is wider is known to be."""
    old, new = "".join(one), "".join(other)
    try:
        finds = [re.compile(pattern.replace("$", r"\Z"), re.ASCII).search for pattern in (old, new)]
    except re.error:
        assume(False)
    wider = all(finds[1](text) for text in SEEN if finds[0](text))
    assert wider or not is_wider(new, old)
    assert is_wider(f"(?:{old})|(?:{new})", old)
    assert is_wider("", old)
