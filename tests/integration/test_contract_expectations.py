"""Great Expectations as an engine: rules beyond single values, a contract's own expectations, evidence."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.contract.engines.expectations import measure, measure_with_evidence
from components.contract.standard.contract import load
from components.contract.standard.rules import Limit, Observation, Reading, Rule
from components.contract.standard.sla import at_time
from components.core.errors import UserError
from tests.fakes.contract_case import contract_file

NOW = datetime(2025, 3, 1, 12)
DAY = Reading("time", ("yyyy-MM-dd",))
CELLS = st.sampled_from(["a", "b", "c", "", "N/A", None])
DAYS = st.sampled_from(["2025-01-01", "2025-01-05", "2025-02-28", "2025-02-30", "2026-01-01", "", None])


def _table(**columns: list[str | None]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def _see(rule: Rule, table: pa.Table) -> Observation:
    return measure([rule], table)[0]


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=8), size=st.sampled_from([1, 2]))
def test_a_reference_is_broken_by_the_keys_that_no_row_has(rows: list[tuple[str | None, ...]], size: int) -> None:
    """A key with a missing part is not looked at; every other must be the target of some row."""
    table = _table(**{name: [row[at] for row in rows] for at, name in enumerate("abcd")})
    names = ("a", "b")[:size]
    rule = Rule("r", "reference", names, "x", targets=("c", "d")[:size], missing=("", "N/A"))
    keys = [row[:size] for row in rows]
    targets = {row[2 : 2 + size] for row in rows}
    looked = [number for number, key in enumerate(keys) if not set(key) & {"", "N/A", None}]
    bad = tuple(number for number in looked if keys[number] not in targets)
    assert _see(rule, table) == Observation(float(len(bad)), bad, len(looked))


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.tuples(DAYS, DAYS), min_size=1, max_size=8), days=st.integers(0, 60))
def test_latency_is_the_time_from_one_column_to_the_other(rows: list[tuple[str | None, ...]], days: int) -> None:
    """Broken where the second comes before the first, later than agreed, or where either is no time."""
    rule = Rule("l", "latency", ("a", "b"), "x", readings=(DAY, DAY), seconds=days * 86_400.0)
    looked, bad = 0, []
    for number, pair in enumerate(rows):
        if all(pair):
            looked += 1
            event, available = (_day(text) for text in pair)
            if event is None or available is None or not 0 <= (available - event).days <= days:
                bad.append(number)
    table = _table(a=[row[0] for row in rows], b=[row[1] for row in rows])
    assert _see(rule, table) == Observation(float(len(bad)), tuple(bad), looked)


@settings(max_examples=15, deadline=None)
@given(column=st.lists(DAYS, min_size=1, max_size=8))
def test_freshness_and_frequency_are_numbers_of_the_times_that_read(column: list[str | None]) -> None:
    """Age of the newest and the longest gap, in seconds; without enough times there is no result."""
    times = sorted({time for text in column if text and (time := _day(text))})
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
    limit = Limit("mustBeLessOrEqualTo", 1.0, 1.0, "seconds")
    common: dict[str, Any] = {"where": "x", "limit": limit, "reading": DAY, "now": NOW.isoformat() + "+00:00"}
    fresh = _see(Rule("f", "freshness", ("a",), **common), _table(a=column))
    often = _see(Rule("g", "frequency", ("a",), **common), _table(a=column))
    assert (fresh.value == (NOW - times[-1]).total_seconds()) if times else fresh.error == "no value reads as a time"
    assert (often.value == max(gaps)) if gaps else "fewer than two" in often.error


def test_a_service_level_without_the_time_of_reading_has_no_result(tmp_path: Path) -> None:
    """Not bound to a time, it fails; bound, retention counts the rows that are too old, the same at every replay."""
    levels = [
        {"property": name, "value": 30, "unit": "d", "element": "rows.a"}
        for name in ("freshness", "retention", "latency")
    ]
    path = contract_file(tmp_path / "c.yaml", [{"name": "a", "logicalType": "date"}], levels=levels)
    contract = load(path)
    table = _table(a=["2025-01-01", "2025-02-27", "no day", ""])
    rules = [rule for rule in contract.rules if rule.where.startswith("sla")]
    assert [rule.kind for rule in rules] == ["freshness", "retention", "freshness"]
    assert all(seen.error for seen in measure(rules, table).values())
    bound = [rule for rule in at_time(contract, NOW).rules if rule.where.startswith("sla")]
    seen = measure(bound, table)
    assert seen[1] == Observation(2.0, (0, 2), 3)
    assert seen[0].value == timedelta(days=2, hours=12).total_seconds() == seen[2].value
    assert measure([r for r in at_time(contract, NOW).rules if r.where.startswith("sla")], table) == seen


def _custom(**implementation: Any) -> dict[str, Any]:
    return {"type": "custom", "engine": "greatExpectations", "implementation": implementation}


def _own(tmp_path: Path, rule: dict[str, Any], **keys: Any) -> Rule:
    properties = [
        {"name": "n", "logicalType": "integer", "quality": [rule], **keys},
        {"name": "t", "quality": [{"metric": "missingValues", "arguments": {"missingValues": ["-"]}, "mustBe": 0}]},
    ]
    found = [item for item in load(contract_file(tmp_path / "c.yaml", properties)).rules if item.kind == "expectation"]
    assert found[0].engine == "great_expectations"
    return found[0]


def test_an_expectation_of_the_contract_s_own_sees_numbers(tmp_path: Path) -> None:
    """Its column is read as declared: what does not read is null; rows are named where it is about rows."""
    table = _table(n=["1", "5", "x", "", "50"], t=["a", "b", "-", "d", "e"])
    between = _own(
        tmp_path, _custom(type="expect_column_values_to_be_between", kwargs={"min_value": 2, "max_value": 9})
    )
    assert _see(between, table) == Observation(2.0, (0, 4), 3)
    mostly = _own(tmp_path, _custom(type="ExpectColumnValuesToBeBetween", kwargs={"min_value": 2, "mostly": 0.3}))
    assert _see(mostly, table).value == 0
    mean = _own(tmp_path, _custom(type="expect_column_mean_to_be_between", kwargs={"min_value": 18, "max_value": 19}))
    assert _see(mean, table) == Observation(0.0, (), 5)
    assert _see(mean, table.slice(0, 2)) == Observation(1.0, (), 2)
    assert _see(mean, _table(n=["x", ""], t=["a", "b"])).error
    text = "type: expect_column_pair_values_to_be_equal\nkwargs: {column_A: n, column_B: t}"
    pair = _own(tmp_path, {"type": "custom", "engine": "great-expectations", "implementation": text})
    assert pair.columns == ("n", "t")


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (_custom(type="expect_column_values_to_be_betwen"), ("did you mean", "expect_column_values_to_be_between")),
        (_custom(type="expect_column_values_to_be_between"), ("min_value", "max_value")),
        (_custom(type="expect_column_values_to_be_between", kwargs={"min_value": 1, "x": 2}), ("x", "not permitted")),
        (_custom(type="expect_column_values_to_not_be_null", kwargs={"column": "z"}), ("'z'", "declared")),
        (_custom(type="expect_column_values_to_not_be_null", kwargs={"row_condition": "n>1"}), ("row_condition",)),
        (_custom(type="expect_column_values_to_be_in_set", kwargs={"value_set": {"$PARAMETER": "x"}}), ("$PARAMETER",)),
        (_custom(type="unexpected_rows_expectation", kwargs={"unexpected_rows_query": "x"}), ("outside the rows",)),
        (_custom(type="expect_table_columns_to_match_set", kwargs={"column_set": ["n"]}), ("outside the rows",)),
        (_custom(type="expect_column_values_to_not_be_null", kwargz={}), ("'kwargz'",)),
        (_custom(kwargs={}), ("names no expectation",)),
        ({**_custom(type="expect_column_values_to_not_be_null"), "mustBe": 0}, ("mustBe",)),
        (
            {**_custom(type="expect_column_mean_to_be_between", kwargs={"min_value": 1}), "severity": "warning"},
            ("warning",),
        ),
    ],
)
def test_an_expectation_that_does_not_fit_is_refused(
    rule: dict[str, Any], named: tuple[str, ...], tmp_path: Path
) -> None:
    """Unknown, unfitting or reaching outside the rows: one line with the place."""
    with pytest.raises(UserError, match=r"properties\[0\]\.quality\[0\]") as raised:
        _own(tmp_path, rule)
    assert [part for part in named if part not in str(raised.value)] == [], str(raised.value)


def test_evidence_holds_what_was_asked_and_answered_but_no_value() -> None:
    """Suite and result are JSON that name every rule; a cell of the data stands in neither."""
    rules = [
        Rule("enum", "values", ("t",), "x.enum", values=("ok",)),
        Rule("long", "length", ("t",), "x.length", high=100, missing=("-",)),
        Rule("found", "pattern", ("t",), "x.pattern", pattern="^o"),
    ]
    table = _table(t=["ok", "a secret", "-"])
    seen, evidence = measure_with_evidence(rules, table)
    assert [seen[number].value for number in range(3)] == [2, 0, 2]
    told = json.dumps([evidence.suite, evidence.validation])
    assert "a secret" not in told
    assert {item["meta"]["name"]: item["success"] for item in evidence.validation["results"]} == {
        "enum": False,
        "long": True,
        "found": False,
    }
    assert evidence.validation["results"][0]["positions"] == [1, 2]
    assert len(evidence.suite["expectations"]) == 3


def test_a_rule_that_cannot_be_put_fails_alone() -> None:
    """A query, an unknown kind, an expectation that raises: an error each, and the others have their results."""
    broken = Rule("o", "expectation", ("t",), "x", engine="great_expectations", expectation="expect_nothing")
    rules = [
        Rule("q", "sql", (), "x", engine="duckdb", query="select 1"),
        Rule("k", "unheard", ("t",), "x"),
        broken,
        replace(broken, expectation="expect_column_mean_to_be_between", arguments='{"column": "t", "min_value": 1}'),
        Rule("p", "present", ("t",), "x"),
    ]
    seen = measure(rules, _table(t=["a", ""]))
    assert all(seen[number].error for number in range(4)), seen
    assert seen[4] == Observation(1.0, (1,), 2)


def _day(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        return None
