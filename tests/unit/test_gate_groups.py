"""Which slices a policy's names reach, and that a slice too small to judge never passes for a fair one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.recipe import Gate
from components.core.records import Evidence, Fairness, RuleResult
from components.registry.gate import judge
from tests.fakes.gating import GROUP, REST, compared, full_evidence, handed, interval
from tests.fakes.judged import small_recipe

VALUES = {"Region=A": 0.84, "Region=B": 0.83, "Region=C": 0.60}
MEASURES = ("auc", "recall", "fpr")


def by_region(left_out: tuple[str, ...] = (), **changes: Any) -> Evidence:
    """Three values of a column, the last of them served far worse."""
    found = full_evidence()
    slices = {name: {key: interval(auc, 200, 40) for key in MEASURES} for name, auc in VALUES.items()}
    fair = Fairness(
        state="measured",
        compared=tuple(name for name in VALUES if name not in left_out),
        left_out=left_out,
        differences={"auc_difference": interval(0.01 if left_out else 0.24), "recall_difference": interval(0.02)},
    )
    states = dict.fromkeys((*found.slices, *VALUES), "measured") | dict.fromkeys(left_out, "insufficient")
    evidence = replace(
        found, slices=found.slices | slices, fairness=found.fairness | {"Region": fair}, slice_states=states
    )
    return replace(evidence, **changes)


def rules(evidence: Evidence, *blocking: str, **limits: Any) -> list[RuleResult]:
    """The rules about groups under a policy that names these."""
    gate = Gate(min_group_positives=30, blocking_groups=blocking, **limits)
    found = judge(evidence, gate, champion_version="4", handed=handed(evidence))
    return [rule for rule in found if rule.rule in ("group_gap", "fairness") and rule.outcome != "info"]


def outcomes(evidence: Evidence, *blocking: str, **limits: Any) -> set[str]:
    """How they end."""
    return {rule.outcome for rule in rules(evidence, *blocking, **limits)}


def test_a_group_that_the_evaluation_calls_insufficient_never_passes() -> None:
    """Whatever numbers stand beside the word."""
    small = compared(slice_states={GROUP: "insufficient", REST: "measured"})
    assert outcomes(compared(), GROUP, max_group_auc_gap=0.15) == {"pass"}
    assert outcomes(small, GROUP, max_group_auc_gap=0.15) == {"insufficient"}


def test_a_group_needs_negatives_as_well_as_positives() -> None:
    """An AUC over two negatives is chance."""
    part = {"auc": interval(0.84, 37, 35)}
    found = compared()
    assert outcomes(replace(found, slices=found.slices | {GROUP: part}), GROUP, max_group_auc_gap=0.15) == {
        "insufficient"
    }


@pytest.mark.parametrize("worse", [GROUP, REST])
def test_a_gap_counts_in_either_direction(worse: str) -> None:
    """Where all others are served worse, they are who is treated unfairly."""
    found = compared()
    spoilt = replace(found, slices=found.slices | {worse: {"auc": interval(0.5, 200, 40)}})
    assert outcomes(spoilt, GROUP, max_group_auc_gap=0.15) == {"fail"}


def test_a_column_blocks_by_its_values() -> None:
    """Both limits look at it."""
    assert outcomes(by_region(), "Region", max_group_auc_gap=0.15) == {"fail"}
    assert outcomes(by_region(), "Region", max_differences={"auc_difference": 0.2}) == {"fail"}
    assert outcomes(by_region(), "Region", max_differences={"recall_difference": 0.2}) == {"pass"}


@pytest.mark.parametrize("limits", [{"max_group_auc_gap": 0.15}, {"max_differences": {"auc_difference": 0.2}}])
def test_a_column_with_a_value_that_was_left_out_does_not_pass(limits: dict[str, Any]) -> None:
    """Those that were compared are fair, and of the third nobody knows; it is named."""
    found = rules(by_region(left_out=("Region=C",)), "Region", **limits)
    assert {rule.outcome for rule in found} == {"insufficient"}
    assert "Region=C" in found[0].reason


def test_one_value_of_a_column_can_be_named() -> None:
    """It is compared with all rows; another value of the column then decides nothing."""
    evidence = by_region()
    assert outcomes(evidence, "Region=C", max_group_auc_gap=0.15) == {"fail"}
    assert outcomes(evidence, "Region=A", max_group_auc_gap=0.15) == {"pass"}
    assert outcomes(evidence, "Region=C", max_differences={"auc_difference": 0.2}) == {"fail"}
    assert outcomes(by_region(left_out=("Region=C",)), "Region=C", max_group_auc_gap=0.5) == {"insufficient"}
    assert outcomes(evidence, "Region=D", max_group_auc_gap=0.5) == {"insufficient"}


def test_a_slice_compared_with_itself_is_no_comparison() -> None:
    """A list of slices that names one twice."""
    found = full_evidence()
    twice = replace(found.fairness[GROUP], compared=(GROUP, GROUP))
    said = replace(found, fairness={GROUP: twice})
    assert outcomes(said, GROUP, max_differences={"recall_difference": 0.5}) == {"insufficient"}


def test_a_recipe_may_name_a_value_of_a_column_it_cuts_by() -> None:
    """And of no other column."""
    cut = {"evaluation": {"slices": ["Region"]}}
    recipe = small_recipe(gate={"blocking_groups": ["Region=C", "Region"]}, **cut)
    assert recipe.gate.blocking_groups == ("Region=C", "Region")
    with pytest.raises(UserError, match="State=CA"):
        small_recipe(gate={"blocking_groups": ["State=CA"]}, **cut)


LIMITS = Gate(
    min_group_positives=5,
    max_offline_p95_ms=10.0,
    max_offline_cpu_p95_ms=10.0,
    max_personal_data=0,
    max_invalid_rate=0.1,
    max_flip_rate={"typos": 0.5},
    max_skew=0.0,
)


def open_rule(evidence: Evidence, **changes: Any) -> set[str]:
    """The rules that do not pass, where what was handed over is changed."""
    said = replace(handed(evidence), **changes)
    found = judge(evidence, LIMITS, champion_version="4", handed=said)
    return {rule.rule for rule in found if rule.outcome not in ("pass", "info")}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"latency_ms": {"offline_p95": 0.0, "rows": 0.0}}, "latency"),
        ({"latency_ms": {"offline_p95": 1.0, "rows": 50.0}}, "latency"),
        ({"latency_ms": {"offline_p95": 1.0}}, "latency"),
        ({"latency_ms": {"offline_p95": 1.0, "rows": 3.0}}, "latency"),
        ({"personal_data": {"email": 0}}, "personal_data"),
        ({"invalid_rate": interval(0.0, 1)}, "invalid_rate"),
        ({"robustness": {"typos": {"flip_rate": interval(0.0, 1)}}}, "robustness"),
        ({"evaluation_digest": ""}, "evaluation"),
        ({"evaluation_digest": "0" * 64}, "evaluation"),
    ],
)
def test_too_little_of_a_measurement_is_insufficient(changes: dict[str, Any], rule: str) -> None:
    """No rows timed, one answer looked at, one kind of personal data searched for, another evaluation."""
    assert open_rule(full_evidence()) == set()
    assert open_rule(replace(full_evidence(), **changes)) == {rule}


def test_a_skew_that_nobody_measured_is_not_a_skew_of_nothing() -> None:
    """And neither is a recipe's evaluation that nobody compared with the evidence's."""
    assert open_rule(full_evidence(), skew=None) == {"skew"}
    assert open_rule(full_evidence(), evaluation="") == {"evaluation"}


@pytest.mark.parametrize(
    "changes",
    [
        {"serving": {"threshold": 0.05}},
        {"evaluation": {"bootstrap": 61}},
        {"evaluation": {"seed": 1}},
        {"evaluation": {"groups": []}},
        {"evaluation": {"min_slice_rows": 1}},
        {"evaluation": {"robustness_rows": 1}},
    ],
)
def test_whatever_evidence_depends_on_is_in_the_digest_of_the_evaluation(changes: dict[str, Any]) -> None:
    """The gate's own limits are not: another policy judges the same evidence."""
    assert small_recipe(**changes).evaluation_digest != small_recipe().evaluation_digest
    assert small_recipe(gate={"min_auc": 0.9}).evaluation_digest == small_recipe().evaluation_digest
