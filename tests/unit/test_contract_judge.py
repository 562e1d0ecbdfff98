"""The verdict fails closed, whatever the engine says or leaves out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from components.contract.judge import Judgement, judge
from components.contract.standard.rules import Column, DataContract, Limit, Observation, Rule
from components.core.records import RuleResult

NOT_NULL = Rule("required", "present", ("a",), "x")
IN_SET = Rule("enum", "values", ("a",), "x", severity="warning", values=("1",))
ENOUGH = Rule("enough", "rows", (), "x", limit=Limit("mustBeGreaterOrEqualTo", 2))
CONTRACT = DataContract("c", "c", "1", "active", "0" * 64, (Column("a"),), (NOT_NULL, IN_SET, ENOUGH), 50.0)
FINE = (Observation(0.0, (), 4), Observation(0.0, (), 4), Observation(4.0, (), 4))


def decide(
    *observations: Observation | None,
    contract: DataContract = CONTRACT,
    rows: int = 4,
    columns: tuple[str, ...] = ("a",),
    aside: int = 0,
    extra: tuple[RuleResult, ...] = (),
) -> Judgement:
    """Judge four rows of one column."""
    seen = {number: one for number, one in enumerate(observations) if one is not None}
    return judge(contract, columns, rows, seen, aside, extra=extra)


def test_a_good_batch_passes() -> None:
    """Every rule has its result and every row is clean."""
    judged = decide(*FINE)
    assert judged.passed
    assert (judged.clean, judged.quarantined, judged.setting_aside) == (4, 0, ())
    assert {check.outcome for check in judged.checks} == {"pass"}
    assert {check.rule for check in judged.checks} >= {"required", "enum", "enough", "batch has rows"}


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("seen", [None, Observation(error="MetricResolutionError"), Observation(math.nan, (), 4)])
def test_a_missing_or_broken_result_fails(number: int, seen: Observation | None) -> None:
    """A result that is left out, an exception or NaN refuses the batch, whatever the rule's severity."""
    observations = [*FINE]
    observations[number] = seen  # type: ignore[call-overload]
    judged = decide(*observations)
    assert not judged.passed
    assert (judged.clean, judged.quarantined) == (0, 4)
    assert "no result" in judged.reason


def test_no_rows_fails() -> None:
    """An empty batch passes no rule."""
    judged = decide(None, None, None, rows=0)
    assert not judged.passed
    assert {check.outcome for check in judged.checks if check.rule != "contract has rules"} == {"fail", "insufficient"}


def test_no_rules_fails() -> None:
    """A contract that declares nothing accepts nothing."""
    judged = decide(contract=replace(CONTRACT, rules=()))
    assert not judged.passed
    assert "declares no rule" in judged.reason


def test_a_missing_column_is_named() -> None:
    """All rules of the column are without evidence; an optional column may be absent."""
    judged = decide(None, None, FINE[2], columns=("b",))
    assert not judged.passed
    assert "'a' is missing" in judged.reason
    optional = decide(
        None, None, FINE[2], columns=("b",), contract=replace(CONTRACT, columns=(Column("a", optional=True),))
    )
    assert optional.passed
    assert [check.subject for check in optional.checks if check.rule == "undeclared column"] == ["b"]


def test_warnings_set_rows_aside_and_errors_refuse() -> None:
    """Rows that break a warning leave; one that breaks an error takes the batch along."""
    aside = decide(FINE[0], Observation(1.0, (), 4), FINE[2], aside=1)
    assert aside.passed
    assert (aside.clean, aside.quarantined, aside.setting_aside) == (3, 1, (1,))
    refused = decide(Observation(1.0, (), 4), FINE[1], FINE[2], aside=1)
    assert not refused.passed
    assert (refused.clean, refused.quarantined, refused.setting_aside) == (0, 4, (0,))


def test_too_many_rows_set_aside_refuse_the_batch() -> None:
    """More than the contract's share, or all rows, is no batch to learn from."""
    three = decide(FINE[0], Observation(3.0, (), 4), FINE[2], aside=3)
    assert not three.passed
    assert "3 of 4 rows" in three.reason
    generous = replace(CONTRACT, max_quarantine_percent=100.0)
    assert decide(FINE[0], Observation(3.0, (), 4), FINE[2], contract=generous, aside=3).passed
    assert not decide(FINE[0], Observation(4.0, (), 4), FINE[2], contract=generous, aside=4).passed


def test_tolerated_rows_stay() -> None:
    """Rows within an error rule's limit are no reason to refuse and are not set aside."""
    mostly = replace(NOT_NULL, limit=Limit("mustBeLessThan", 30, unit="percent"))
    contract = replace(CONTRACT, rules=(mostly, IN_SET, ENOUGH))
    judged = decide(Observation(1.0, (), 4), *FINE[1:], contract=contract)
    assert judged.passed
    assert judged.setting_aside == ()
    assert next(check.observed for check in judged.checks if check.rule == "required") == 25
    beyond = decide(Observation(2.0, (), 4), *FINE[1:], contract=contract)
    assert not beyond.passed
    assert beyond.setting_aside == (0,)


@pytest.mark.parametrize(
    ("outcome", "passes"), [("pass", True), ("info", True), ("fail", False), ("insufficient", False)]
)
def test_results_found_elsewhere_count(outcome: str, passes: bool) -> None:
    """A result that other code hands in stands among the checks and refuses the batch like a rule's."""
    found = RuleResult(rule="meaning", outcome=outcome, observed=1.0, limit=None, subject="a", reason="told elsewhere")
    judged = decide(*FINE, extra=(found,))
    assert judged.passed is passes
    assert found in judged.checks
    assert passes or (judged.clean, judged.reason) == (0, "a: told elsewhere")


def test_the_reason_names_each_column_once() -> None:
    """With several rules broken in several columns, every column has its clause."""
    rules = tuple(replace(NOT_NULL, columns=(name,), name=f"{name}{n}") for name in "abcdef" for n in range(3))
    contract = replace(CONTRACT, rules=rules, columns=tuple(map(Column, "abcdef")))
    judged = decide(*[Observation(1.0, (), 4)] * len(rules), contract=contract, columns=tuple("abcdef"))
    assert [clause[:3] for clause in judged.reason.split("; ")] == [f"{name}: " for name in "abcdef"]


@pytest.mark.parametrize(
    ("operator", "good", "bad"),
    [
        ("mustBe", 3, 2),
        ("mustNotBe", 2, 3),
        ("mustBeGreaterThan", 4, 3),
        ("mustBeGreaterOrEqualTo", 3, 2),
        ("mustBeLessThan", 2, 3),
        ("mustBeLessOrEqualTo", 3, 4),
        ("mustBeBetween", 5, 6),
        ("mustNotBeBetween", 6, 5),
    ],
)
def test_limits(operator: str, good: float, bad: float) -> None:
    """Every operator of the standard; NaN and infinity are within none."""
    limit = Limit(operator, 3, 5)
    assert limit.holds(good)
    assert not limit.holds(bad)
    assert not limit.holds(math.nan)
    assert not limit.holds(math.inf)
