"""The gate as a function: against a plain reading of the policy, under worse evidence, and under broken evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.recipe import BaselineMargin, Gate
from components.core.records import Evidence, Interval, RuleResult
from components.registry.gate import Handed, judge, passed, refusal
from tests.fakes.gating import GROUP, REST, SIGNED, STRICT, compared, full_evidence, handed, interval, under_guard
from tests.fakes.judged import good_evidence

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
LEAK = RuleResult(rule="alone", outcome="fail", observed=1.0, limit=0.9, reason="AUC 1")
UNKNOWN = RuleResult(rule="c", outcome="insufficient", observed=None, limit=None)
BROKEN = [None, math.nan, math.inf, -math.inf, -0.5, 1.5]


def decides(evidence: Evidence, gate: Gate = POLICY, champion: str = "4", said: Handed | None = None) -> bool:
    """The decision alone."""
    return passed(judge(evidence, gate, champion_version=champion, handed=said or handed(evidence)))


def test_good_evidence_passes_with_and_without_a_champion() -> None:
    """The other tests spoil this evidence, one thing at a time."""
    assert decides(compared())
    assert refusal(judge(compared(), POLICY, champion_version="4", handed=handed(compared()))) == ""
    assert decides(under_guard(good_evidence()), champion="")
    assert decides(full_evidence(), STRICT)


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
        and abs(rest.value - group.value) <= 0.1  # type: ignore[operator]
    )


@settings(max_examples=400, deadline=None)
@given(evidences())
def test_the_gate_is_the_policy(evidence: Evidence) -> None:
    """Pass exactly where every clause of the policy holds, and say why where one does not."""
    rules = judge(evidence, POLICY, champion_version="4", handed=handed(evidence))
    assert passed(rules) == plain_reading(evidence)
    assert bool(refusal(rules)) != passed(rules)


@st.composite
def full_evidences(draw: st.DrawFn) -> Evidence:
    """Evidence with every part that the strict policy looks at, on both sides of each limit."""
    low = draw(st.floats(-0.1, 0.05))
    found = full_evidence()
    near = st.floats(0.0, 0.4)

    def measure(values: dict[str, Interval], spread: st.SearchStrategy[float]) -> dict[str, Interval]:
        return {name: replace(value, value=draw(spread)) for name, value in values.items()}

    return replace(
        found,
        positives=draw(st.integers(1, 120)),
        metrics=measure(found.metrics, shares),
        operating=measure(found.operating, shares),
        baselines={name: measure(values, shares) for name, values in found.baselines.items()},
        slices={
            name: {metric: interval(draw(shares), 200, draw(counts)) for metric in values}
            for name, values in found.slices.items()
        },
        fairness={
            name: replace(value, differences=measure(value.differences, near)) for name, value in found.fairness.items()
        },
        robustness={change: measure(values, near) for change, values in found.robustness.items()},
        invalid_rate=interval(draw(st.floats(0, 0.1)), 90),
        latency_ms={
            "offline_p95": draw(st.floats(1, 40)),
            "offline_cpu_p95": draw(st.floats(1, 40)),
            "rows": 50.0,
        },
        memorisation=measure(found.memorisation, st.floats(0.0, 1.0)),
        personal_data=found.personal_data | {"email": draw(st.integers(0, 3)), "phone": draw(st.integers(0, 3))},
        test_window_uses=draw(st.integers(0, 8)),
        champion={"auc_difference": Interval(value=low + 0.05, low=low, high=low + 0.1, n=500, positives=60)},
    )


def worse_metric(name: str, up: bool) -> Callable[[Evidence, float], Evidence]:
    """A metric of scores or of the operating point, worse by a share of what is left."""

    def change(evidence: Evidence, by: float) -> Evidence:
        part = "metrics" if name in evidence.metrics else "operating"
        values: dict[str, Interval] = getattr(evidence, part)
        seen = values[name].value or 0.0
        return replace(
            evidence,
            **{part: values | {name: replace(values[name], value=seen + (1 - seen) * by if up else seen * (1 - by))}},
        )

    return change


def worse_baseline(evidence: Evidence, by: float) -> Evidence:
    """Every baseline better than it was."""
    better = {
        name: {
            key: replace(value, value=(value.value or 0.0) + (1 - (value.value or 0.0)) * by)
            for key, value in found.items()
        }
        for name, found in evidence.baselines.items()
    }
    return replace(evidence, baselines=better)


def worse_champion(evidence: Evidence, by: float) -> Evidence:
    """The interval of the difference reaches lower."""
    difference = evidence.champion["auc_difference"]
    return replace(evidence, champion={"auc_difference": replace(difference, low=(difference.low or 0.0) - by * 0.5)})


def worse_group(evidence: Evidence, by: float) -> Evidence:
    """Whoever is served worse, the blocking group or the others, is served worse still."""
    auc = {name: evidence.slices[name]["auc"] for name in (GROUP, REST)}
    name = min(auc, key=lambda key: auc[key].value or 0.0)
    part = evidence.slices[name] | {"auc": replace(auc[name], value=(auc[name].value or 0.0) * (1 - by))}
    return replace(evidence, slices=evidence.slices | {name: part})


def fewer_in_group(evidence: Evidence, by: float) -> Evidence:
    """The blocking group is smaller."""
    part = {
        name: replace(value, positives=int(value.positives * (1 - by)))
        for name, value in evidence.slices[GROUP].items()
    }
    return replace(evidence, slices=evidence.slices | {GROUP: part})


def worse_difference(evidence: Evidence, by: float) -> Evidence:
    """Every fairness difference larger."""
    found = {
        name: replace(
            value,
            differences={
                key: replace(one, value=(one.value or 0.0) + (1 - (one.value or 0.0)) * by)
                for key, one in value.differences.items()
            },
        )
        for name, value in evidence.fairness.items()
    }
    return replace(evidence, fairness=found)


def worse_robustness(measure: str) -> Callable[[Evidence, float], Evidence]:
    """Scores or decisions that move more under every change of the input."""

    def change(evidence: Evidence, by: float) -> Evidence:
        found = {
            name: values
            | {
                measure: replace(
                    values[measure], value=(values[measure].value or 0.0) + (1 - (values[measure].value or 0.0)) * by
                )
            }
            for name, values in evidence.robustness.items()
        }
        return replace(evidence, robustness=found)

    return change


def worse_memory(name: str) -> Callable[[Evidence, float], Evidence]:
    """More of the training texts is known by heart."""

    def change(evidence: Evidence, by: float) -> Evidence:
        one = evidence.memorisation[name]
        return replace(
            evidence,
            memorisation=evidence.memorisation
            | {name: replace(one, value=(one.value or 0.0) + (1 - (one.value or 0.0)) * by)},
        )

    return change


def worse_latency(which: str) -> Callable[[Evidence, float], Evidence]:
    """More of it."""
    return lambda evidence, by: replace(
        evidence, latency_ms=evidence.latency_ms | {which: evidence.latency_ms[which] * (1 + 9 * by)}
    )


WORSE: dict[str, Callable[[Evidence, float], Evidence]] = {
    **{name: worse_metric(name, up=False) for name in ("auc", "average_precision", "precision", "recall", "accuracy")},
    **{name: worse_metric(name, up=True) for name in ("log_loss", "brier", "ece", "fpr")},
    "positives": lambda evidence, by: replace(evidence, positives=int(evidence.positives * (1 - by))),
    "baselines": worse_baseline,
    "champion": worse_champion,
    "group": worse_group,
    "group positives": fewer_in_group,
    "fairness": worse_difference,
    "shift": worse_robustness("mean_shift"),
    "flips": worse_robustness("flip_rate"),
    "invalid": lambda evidence, by: replace(
        evidence, invalid_rate=interval((evidence.invalid_rate.value or 0.0) + by * 0.5, 90)
    ),  # type: ignore[union-attr]
    "latency": worse_latency("offline_p95"),
    "CPU time": worse_latency("offline_cpu_p95"),
    "completion": worse_memory("completion_difference"),
    "membership": worse_memory("membership_auc"),
    "personal data": lambda evidence, by: replace(
        evidence,
        personal_data=evidence.personal_data | {"email": evidence.personal_data["email"] + round(9 * by)},
    ),
    "window": lambda evidence, by: replace(
        evidence, test_window_uses=evidence.test_window_uses + round(9 * by) if evidence.test_window_uses else 0
    ),
}
HELD = {  # which rules of the strict policy each change guards
    **dict.fromkeys(("average_precision", "precision", "recall", "accuracy"), "floor"),
    **dict.fromkeys(("log_loss", "brier", "fpr"), "ceiling"),
    **dict.fromkeys(("group", "group positives"), "group_gap"),
    **dict.fromkeys(("shift", "flips"), "robustness"),
    **dict.fromkeys(("completion", "membership"), "memorisation"),
    "auc": "min_auc",
    "ece": "max_ece",
    "positives": "min_test_positives",
    "baselines": "baseline",
    "champion": "champion",
    "fairness": "fairness",
    "invalid": "invalid_rate",
    "latency": "latency",
    "CPU time": "latency",
    "personal data": "personal_data",
    "window": "test_window",
}


def open_rules(evidence: Evidence, gate: Gate = STRICT) -> set[tuple[str, str]]:
    """The rules that do not pass."""
    rules = judge(evidence, gate, champion_version="4", handed=handed(evidence))
    return {(rule.rule, rule.subject) for rule in rules if rule.outcome not in ("pass", "info")}


@settings(max_examples=600, deadline=None)
@given(full_evidences(), st.sampled_from(sorted(WORSE)), st.floats(0.0, 1.0))
def test_worse_evidence_never_turns_a_refusal_into_a_pass(evidence: Evidence, how: str, by: float) -> None:
    """Monotone in every metric that any rule guards: what is open stays open, rule by rule."""
    assert open_rules(evidence) <= open_rules(WORSE[how](evidence, by))


@pytest.mark.parametrize("how", sorted(WORSE))
def test_each_rule_refuses_when_its_metric_is_as_bad_as_it_gets(how: str) -> None:
    """Alone of otherwise good evidence, named by the rule that guards it."""
    rules = {rule for rule, _ in open_rules(WORSE[how](full_evidence(), 1.0))}
    assert HELD[how] in rules
    assert open_rules(full_evidence()) == set()


def test_every_rule_of_the_strict_policy_is_guarded_by_a_worse_case() -> None:
    """No rule of the table is left out of the two tests above."""
    rules = {rule.rule for rule in judge(full_evidence(), STRICT, champion_version="4", handed=handed(full_evidence()))}
    elsewhere = {
        "signature",
        "contract",
        "leakage",
        "skew",
        "evidence",
        "champion_power",
        "evaluation",
    }  # handed over, or stated
    assert rules - elsewhere == set(HELD.values())


NAMED_PARTS = ("metrics", "champion", "personal_data", "memorisation", "latency", "robustness", "injection")
PARTS = (
    "operating fairness robustness invalid_rate latency_ms memorisation personal_data test_window_uses slices "
    "baselines champion metrics"
)


@pytest.mark.parametrize("field", PARTS.split())
def test_a_part_that_was_not_measured_refuses(field: str) -> None:
    """Empty where the policy asks for it."""
    empty: Any = {"invalid_rate": None, "test_window_uses": 0}.get(field, {})
    assert open_rules(replace(full_evidence(), **{field: empty}))


@pytest.mark.parametrize("part", NAMED_PARTS)
def test_a_part_that_says_it_was_not_measured_refuses_although_it_holds_numbers(part: str) -> None:
    """The evaluation's own word about its parts counts."""
    assert open_rules(replace(full_evidence(), parts={part: "not asked"}))
    assert not open_rules(replace(full_evidence(), parts=dict.fromkeys(NAMED_PARTS, "measured")))


def every_interval(evidence: Evidence) -> list[tuple[str, Callable[[Interval], Evidence]]]:
    """Each interval that the strict policy reads, as a way to replace it."""
    found: list[tuple[str, Callable[[Interval], Evidence]]] = []
    for part in ("metrics", "operating", "memorisation"):
        values = getattr(evidence, part)
        found += [
            (f"{part} {name}", lambda new, p=part, v=values, n=name: replace(evidence, **{p: v | {n: new}}))
            for name in values
        ]
    for part in ("baselines", "slices", "robustness"):
        nested = getattr(evidence, part)
        for outer, values in nested.items():
            found += [
                (
                    f"{part} {outer} {name}",
                    lambda new, p=part, o=nested, k=outer, v=values, n=name: replace(
                        evidence, **{p: o | {k: v | {n: new}}}
                    ),
                )
                for name in values
                if part != "slices" or name == "auc"
            ]
    for name, fair in evidence.fairness.items():
        found += [
            (
                f"fairness {name} {key}",
                lambda new, n=name, f=fair, k=key: replace(
                    evidence, fairness=evidence.fairness | {n: replace(f, differences=f.differences | {k: new})}
                ),
            )
            for key in fair.differences
        ]
    return found


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, -3.0], ids=str)
def test_any_interval_that_is_no_number_refuses(value: float | None) -> None:
    """Every one that the policy reads, one at a time."""
    broken = Interval(value=value, low=None, high=None, n=500, positives=60)
    passing = [name for name, put in every_interval(full_evidence()) if not open_rules(put(broken))]
    assert passing == ["baselines prior auc"]  # which the policy does not read


def test_an_interval_over_no_rows_refuses() -> None:
    """A number that rests on nothing."""
    empty = Interval(value=0.0, low=0.0, high=0.0, n=0, positives=0)
    found = full_evidence()
    assert open_rules(replace(found, invalid_rate=empty))
    assert open_rules(
        replace(found, robustness=dict.fromkeys(found.robustness, dict.fromkeys(("mean_shift", "flip_rate"), empty)))
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, None, "fast"], ids=str)
def test_a_latency_skew_or_count_that_is_no_number_refuses(value: Any) -> None:
    """Plain numbers of the evidence too."""
    found = full_evidence()
    for which in ("offline_p95", "offline_cpu_p95"):
        assert open_rules(replace(found, latency_ms=found.latency_ms | {which: value}))
    assert open_rules(replace(found, personal_data={"email": value}))
    said = replace(handed(found), skew=value)
    assert not decides(found, STRICT, said=said)


def test_a_shift_counts_in_either_direction() -> None:
    """Scores that fall under typos are as bad as ones that rise."""
    found = full_evidence()
    for shift in (-0.5, 0.5):
        moved = {"typos": found.robustness["typos"] | {"mean_shift": interval(shift, 90)}}
        assert ("robustness", "typos: mean shift") in open_rules(replace(found, robustness=found.robustness | moved))


def test_a_negative_margin_asks_for_more_than_the_baseline() -> None:
    """Better by 0.02 than logistic regression: 0.84 + 0.02 is more than 0.85, 0.84 + 0.005 is not."""
    for margin, passes in ((-0.02, False), (-0.005, True), (0.0, True)):
        gate = Gate(baselines=(BaselineMargin(baseline="logistic_regression", margin=margin),))
        assert decides(compared(), gate) is passes


def test_the_power_is_what_a_simulation_of_the_comparison_finds() -> None:
    """Drawn differences of an equal model, each with its interval: the share above -margin, and what is detectable."""
    import numpy as np

    error, margin = 0.012, 0.03
    draws = np.random.default_rng(0).normal(0.0, error, 200_000)
    found = replace(
        compared(),
        champion={"auc_difference": Interval(value=0.0, low=-1.959964 * error, high=1.959964 * error, n=500)},
    )
    (row,) = [
        rule
        for rule in judge(found, Gate(champion_margin=margin), champion_version="4", handed=SIGNED)
        if rule.rule == "champion_power"
    ]
    assert row.outcome == "info"
    assert row.observed == pytest.approx(float(np.mean(draws - 1.959964 * error > -margin)), abs=0.005)
    detectable = float(row.reason.split("difference of ")[1].split()[0])
    assert np.mean(draws - detectable + 1.959964 * error < 0) == pytest.approx(0.8, abs=0.03)
    assert not decides(found, Gate(champion_margin=margin, min_champion_power=0.9))
    assert decides(found, Gate(champion_margin=margin, min_champion_power=0.5))


@pytest.mark.parametrize(
    ("changes", "rule", "word"),
    [
        ({"signed_by": ""}, "signature", "no signature"),
        ({"contract": None}, "contract", "no verdict"),
        ({"contract.passed": False, "contract.reason": "nulls"}, "contract", "does not hold: nulls"),
        ({"contract.checks": ()}, "contract", "no rule or no row"),
        ({"contract.rows": 0}, "contract", "no rule or no row"),
        ({"contract.clean": 0}, "contract", "no rule or no row"),
        ({"contract.contract_digest": ""}, "contract", "no rule or no row"),
        ({"guard": None}, "leakage", "no verdict"),
        ({"guard.passed": False, "guard.reason": "leaks"}, "leakage", "guard: leaks"),
        ({"guard.guards": ()}, "leakage", "no rule or no row"),
        ({"guard.rows": 0}, "leakage", "no rule or no row"),
        ({"guard.training_set_digest": "f" * 64}, "leakage", "another training set"),
        ({"guard.guards": (LEAK,)}, "leakage", "alone: AUC 1"),
        ({"guard.checks": (UNKNOWN,)}, "leakage", "guard: c"),
        ({"skew": 0.5}, "skew", "otherwise is 0.500, above 0.010"),
        ({"skew": None}, "skew", "not known"),
    ],
)  # fmt: skip
def test_what_was_handed_over_is_judged_by_the_rule_that_names_it(
    changes: dict[str, Any], rule: str, word: str
) -> None:
    """Signature, contract, guard and skew: absent, refused, or resting on nothing."""
    found, said = full_evidence(), handed(full_evidence())
    for name, value in changes.items():
        part, _, field = name.partition(".")
        said = replace(said, **{part: replace(getattr(said, part), **{field: value}) if field else value})
    rules = judge(found, STRICT, champion_version="4", handed=said)
    assert [one.rule for one in rules if one.outcome not in ("pass", "info")] == [rule]
    assert word in refusal(rules)


def test_another_verdict_of_the_guard_than_the_evaluation_saw_refuses() -> None:
    """The digest that the evidence names has to be this verdict's; an evaluation that names none saw none."""
    for seen, words in (("f" * 64, "made under another verdict"), ("", "made under no verdict")):
        found = replace(full_evidence(), handover_digest=seen)
        rules = judge(found, STRICT, champion_version="4", handed=handed(full_evidence()))
        assert words in refusal(rules)


def test_a_small_or_unfair_group_blocks_only_where_the_policy_names_it() -> None:
    """Named: insufficient and unfair refuse. Not named: shown with what it would have been."""
    found = full_evidence()
    small = replace(
        found,
        slices={
            name: {key: replace(v, positives=3) for key, v in values.items()} for name, values in found.slices.items()
        },
    )
    unfair = replace(
        found,
        fairness={
            name: replace(f, differences=dict.fromkeys(f.differences, interval(0.9)))
            for name, f in found.fairness.items()
        },
    )
    hidden = replace(
        found,
        fairness={name: replace(f, state="insufficient", reason="3 positives") for name, f in found.fairness.items()},
    )
    nobody = STRICT.model_copy(update={"blocking_groups": ()})
    for case, words in ((small, "not blocking; insufficient"), (unfair, "not blocking; fail"), (hidden, "3 positives")):
        assert not decides(case, STRICT)
        assert decides(case, nobody)
        rows = judge(case, nobody, champion_version="4", handed=handed(case))
        assert any(words in row.reason for row in rows if row.rule in ("fairness", "group_gap"))


def test_a_column_named_as_blocking_needs_no_complement() -> None:
    """Its values are compared with each other; where it was not looked at, it refuses."""
    found = full_evidence()
    column = STRICT.model_copy(update={"blocking_groups": ("State",), "max_differences": {"auc_difference": 0.2}})
    assert not decides(found, column)
    parts = {f"State={name}": {"auc": interval(0.8, 200, 40)} for name in ("CA", "TX")}
    fair = replace(found.fairness[GROUP], compared=tuple(parts))
    assert decides(replace(found, slices=found.slices | parts, fairness=found.fairness | {"State": fair}), column)


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
    rules = judge(evidence, POLICY, champion_version="4", handed=handed(evidence))
    assert not passed(rules)
    assert "insufficient" in {rule.outcome for rule in rules}


def test_all_rules_switched_off_still_need_evidence() -> None:
    """A policy without limits passes a measured model and no unmeasured one."""
    nothing = Gate(min_test_positives=0, champion_margin=None)
    assert decides(compared(), nothing)
    assert not decides(compared(metrics={}), nothing)
    assert not decides(compared(), nothing, said=replace(handed(compared()), signed_by=""))


@pytest.mark.parametrize(("judged", "now"), [("", "4"), ("4", ""), ("4", "5")])
def test_another_champion_than_the_one_compared_with_refuses(judged: str, now: str) -> None:
    """A comparison with somebody else says nothing about the champion."""
    evidence = compared() if judged else good_evidence()
    assert not decides(evidence, champion=now)


def test_groups_that_do_not_block_are_shown_only() -> None:
    """A gap shows as information where the policy does not name the group."""
    worse = compared().slices | {GROUP: {"auc": interval(0.4, 200, 40)}}
    shown = Gate(min_auc=0.7, max_group_auc_gap=0.1)
    rules = judge(replace(compared(), slices=worse), shown, champion_version="4", handed=handed(compared()))
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
        for rule in judge(metric("auc", value), POLICY, champion_version="4", handed=Handed()):
            rule.to_dict()
