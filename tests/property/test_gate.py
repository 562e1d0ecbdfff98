"""The gate as a function: against a plain reading of the policy, under worse evidence, and under broken evidence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.recipe import BaselineMargin, Gate
from components.core.records import Evidence, Interval, RuleResult
from components.registry.gate import judge, passed, refusal
from tests.fakes.judged import GROUP, good_evidence, interval

POLICY = Gate(
    min_auc=0.7,
    max_ece=0.1,
    min_test_positives=30,
    baselines=(BaselineMargin(baseline="logistic_regression", margin=0.05),),
    champion_margin=0.03,
    min_group_positives=30,
    max_group_auc_gap=0.1,
    blocking_groups=(GROUP,),
)
REST = f"{GROUP}:others"
BROKEN = [None, math.nan, math.inf, -math.inf, -0.5, 1.5]


def compared(**changes: Any) -> Evidence:
    """Good evidence beside champion 4."""
    champion = {
        "auc": interval(0.84),
        "auc_difference": Interval(value=0.01, low=-0.01, high=0.03, n=500, positives=60),
    }
    return good_evidence(champion_version="4", champion=champion, **changes)


def decides(evidence: Evidence, gate: Gate = POLICY, champion: str = "4", signature: bool = True) -> bool:
    """The decision alone."""
    return passed(judge(evidence, gate, champion_version=champion, signature=signature))


def test_good_evidence_passes_with_and_without_a_champion() -> None:
    """The other tests spoil this evidence, one thing at a time."""
    assert decides(compared())
    assert refusal(judge(compared(), POLICY, champion_version="4", signature=True)) == ""
    assert decides(good_evidence(), champion="")


shares = st.floats(0.0, 1.0)
counts = st.integers(0, 80)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Well-formed evidence on both sides of every limit."""
    low = draw(st.floats(-0.1, 0.05))
    inside, outside = draw(counts), draw(counts)
    base = compared(positives=draw(st.integers(1, 120)))
    return replace(
        base,
        metrics=base.metrics | {"auc": interval(draw(shares)), "ece": interval(draw(st.floats(0, 0.2)))},
        baselines={"logistic_regression": {"auc": interval(draw(shares))}},
        slices={
            GROUP: {"auc": interval(draw(shares), 200, inside)},
            REST: {"auc": interval(draw(shares), 200, outside)},
        },
        champion={"auc_difference": Interval(value=low + 0.05, low=low, high=low + 0.1, n=500, positives=60)},
    )


def plain_reading(evidence: Evidence) -> bool:
    """The policy once more, in one expression over well-formed evidence."""
    auc = evidence.metrics["auc"].value or 0.0
    group, rest = evidence.slices[GROUP]["auc"], evidence.slices[REST]["auc"]
    return bool(
        auc >= 0.7
        and evidence.metrics["ece"].value <= 0.1  # type: ignore[operator]
        and evidence.positives >= 30
        and auc - evidence.baselines["logistic_regression"]["auc"].value >= -0.05  # type: ignore[operator]
        and evidence.champion["auc_difference"].low > -0.03  # type: ignore[operator]
        and min(group.positives, rest.positives) >= 30
        and rest.value - group.value <= 0.1  # type: ignore[operator]
    )


@settings(max_examples=400, deadline=None)
@given(evidences())
def test_the_gate_is_the_policy(evidence: Evidence) -> None:
    """Pass exactly where every clause of the policy holds, and say why where one does not."""
    rules = judge(evidence, POLICY, champion_version="4", signature=True)
    assert passed(rules) == plain_reading(evidence)
    assert bool(refusal(rules)) != passed(rules)


def with_auc(evidence: Evidence, value: float) -> Evidence:
    """Another AUC."""
    return replace(evidence, metrics=evidence.metrics | {"auc": interval(value)})


def worsened(evidence: Evidence, how: str, by: float) -> Evidence:
    """The same evidence with one guarded metric worse by a share of what is left."""
    group, difference = evidence.slices[GROUP]["auc"], evidence.champion["auc_difference"]
    fewer = int(group.positives * (1 - by))
    match how:
        case "auc":
            return with_auc(evidence, (evidence.metrics["auc"].value or 0.0) * (1 - by))
        case "ece":
            ece = evidence.metrics["ece"].value or 0.0
            return replace(evidence, metrics=evidence.metrics | {"ece": interval(ece + (1 - ece) * by)})
        case "positives":
            return replace(evidence, positives=int(evidence.positives * (1 - by)))
        case "baseline":
            theirs = evidence.baselines["logistic_regression"]["auc"].value or 0.0
            better = {"auc": interval(theirs + (1 - theirs) * by)}
            return replace(evidence, baselines={"logistic_regression": better})
        case "champion":
            worse = replace(difference, low=(difference.low or 0.0) - by * 0.5)
            return replace(evidence, champion={"auc_difference": worse})
        case "group":
            part = {"auc": replace(group, value=(group.value or 0.0) * (1 - by))}
            return replace(evidence, slices=evidence.slices | {GROUP: part})
        case _:
            return replace(evidence, slices=evidence.slices | {GROUP: {"auc": replace(group, positives=fewer)}})


@settings(max_examples=400, deadline=None)
@given(
    evidences(),
    st.sampled_from(["auc", "ece", "positives", "baseline", "champion", "group", "group positives"]),
    st.floats(0.0, 1.0),
)
def test_worse_evidence_never_turns_a_refusal_into_a_pass(evidence: Evidence, how: str, by: float) -> None:
    """The gate is monotone in every metric that it guards."""
    assert decides(evidence) or not decides(worsened(evidence, how, by))


def metric(name: str, value: float | None) -> Evidence:
    """Compared evidence with one of its metrics replaced."""
    found = compared()
    return replace(found, metrics=found.metrics | {name: replace(interval(0.5), value=value)})


@pytest.mark.parametrize("value", BROKEN, ids=str)
@pytest.mark.parametrize("name", ["auc", "average_precision", "brier", "ece"])
def test_a_metric_that_is_no_number_of_its_range_refuses(name: str, value: float | None) -> None:
    """None, NaN, infinity and values no such metric can have are no evidence."""
    assert not decides(metric(name, value))


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -1.0], ids=str)
def test_a_log_loss_that_is_no_number_refuses(value: float | None) -> None:
    """Log loss has no upper limit but is no negative number."""
    assert not decides(metric("log_loss", value))


@pytest.mark.parametrize("value", BROKEN, ids=str)
def test_a_broken_baseline_group_or_comparison_refuses(value: float | None) -> None:
    """Also where the candidate itself is fine."""
    broken = {"auc": replace(interval(0.5), value=value)}
    part = {"auc": Interval(value=value, low=None, high=None, n=200, positives=40)}
    found = compared()
    assert not decides(replace(found, baselines={"logistic_regression": broken}))
    assert not decides(replace(found, slices=found.slices | {GROUP: part}))
    assert not decides(replace(found, slices=found.slices | {REST: part}))
    low = value if value != 1.5 else None
    difference = Interval(value=0.01, low=low, high=0.03, n=500, positives=60)
    assert not decides(replace(found, champion={"auc_difference": difference}))
    assert not decides(replace(found, champion={"auc_difference": replace(difference, value=value, low=0.0)}))


@pytest.mark.parametrize(
    "evidence",
    [
        compared(metrics={}),
        replace(compared(), baselines={}),
        replace(compared(), slices={}),
        replace(compared(), slices={GROUP: compared().slices[GROUP]}),
        replace(compared(), champion={}),
        compared(rows=0, positives=0),
        compared(positives=500),
        replace(compared(), metrics={name: replace(v, n=499) for name, v in compared().metrics.items()}),
        replace(compared(), champion={"auc_difference": replace(compared().champion["auc_difference"], n=9)}),
    ],
    ids=["metrics", "baselines", "slices", "others", "comparison", "rows", "one label", "partly", "other rows"],
)
def test_missing_evidence_refuses(evidence: Evidence) -> None:
    """Nothing measured, or measured on other rows than the test rows."""
    rules = judge(evidence, POLICY, champion_version="4", signature=True)
    assert not passed(rules)
    assert "insufficient" in {rule.outcome for rule in rules}


def test_all_rules_switched_off_still_need_evidence() -> None:
    """A policy without limits passes a measured model and no unmeasured one."""
    nothing = Gate(min_test_positives=0, champion_margin=None)
    assert decides(compared(), nothing)
    assert not decides(compared(metrics={}), nothing)
    assert not decides(compared(), nothing, signature=False)


@pytest.mark.parametrize(("judged", "now"), [("", "4"), ("4", ""), ("4", "5")])
def test_another_champion_than_the_one_compared_with_refuses(judged: str, now: str) -> None:
    """A comparison with somebody else says nothing about the champion."""
    evidence = compared() if judged else good_evidence()
    assert not decides(evidence, champion=now)


def test_groups_that_do_not_block_are_shown_only() -> None:
    """A gap shows as information where the policy does not name the group."""
    worse = compared().slices | {GROUP: {"auc": interval(0.4, 200, 40)}}
    shown = Gate(min_auc=0.7, max_group_auc_gap=0.1)
    rules = judge(replace(compared(), slices=worse), shown, champion_version="4", signature=True)
    assert [(rule.outcome, rule.subject) for rule in rules if rule.rule == "group_gap"] == [("info", GROUP)]
    assert passed(rules)
    assert not decides(replace(compared(), slices=worse))


def test_no_rules_do_not_pass_and_unknown_outcomes_neither() -> None:
    """An empty table or a word that is not known is no pass."""
    rule = RuleResult(rule="r", outcome="pass", observed=1.0, limit=0.0)
    assert not passed(())
    assert not passed((replace(rule, outcome="info"),))
    assert not passed((rule, replace(rule, outcome="error")))
    assert passed((rule, replace(rule, outcome="info")))


def test_every_table_can_be_written_as_json() -> None:
    """Whatever the evidence holds, a record of the table can be stored."""
    for value in BROKEN:
        for rule in judge(metric("auc", value), POLICY, champion_version="4", signature=False):
            rule.to_dict()
