"""The verdict's evidence against independent oracles: every course summed up, and e-values worked out the long way."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from components.rollout.comparisons import SplitTests
from components.rollout.evalues import PairedMean, RateLimit, TwoArmRate, UnpairedMean, weighted_mean
from components.rollout.harm import Harm
from components.rollout.labels import Labelled, PairedLabels, SplitLabels, clipped_log_loss
from components.rollout.margins import BUDGET
from components.rollout.observations import ArmOutcome, Observation
from components.rollout.units import Units
from components.rollout.verdict import Judge
from tests.fakes.verdict_traffic import design_margins

WEIGHTS = st.sampled_from([0.05, 0.1, 0.5, 0.8, 0.95])
COURSE = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12)


def _divergence(one: float, two: float) -> float:
    """Kullback-Leibler divergence of two Bernoulli rates."""
    return sum(p * math.log(p / q) for p, q in ((one, two), (1 - one, 1 - two)) if p > 0)


def _long_way(course, weight: float, margin: float, excesses, worse: bool) -> float:
    """The mixture of likelihood ratios by the definition: products of probabilities, no logarithms, no tables."""
    products, failures, requests = [1.0] * len(excesses), 0.5, 50.0
    for canary, failed in course:
        stable = min(math.exp(0.05 * round(math.log(max(failures / requests, 2e-4)) / 0.05)), 0.98)
        for number, excess in enumerate(excesses):
            rate = min(stable + margin + excess, 0.995) if worse else stable + excess * margin
            wanted = lambda t, rate=rate, stable=stable: (  # noqa: E731 - the function that is minimised
                weight * _divergence(rate, t + margin) + (1 - weight) * _divergence(stable, t)
            )
            null = minimize_scalar(
                wanted, bounds=(1e-9, 1 - margin - 1e-9), method="bounded", options={"xatol": 1e-12}
            ).x
            alternative, under_null = (rate, null + margin) if canary else (stable, null)
            products[number] *= alternative / under_null if failed else (1 - alternative) / (1 - under_null)
        if not canary:
            failures, requests = failures * 0.5 ** (1 / 2000) + failed, requests * 0.5 ** (1 / 2000) + 1
    return sum(products) / len(products)


@settings(max_examples=30, deadline=None)
@given(COURSE, WEIGHTS, st.sampled_from([0.005, 0.02]), st.booleans())
def test_the_two_arm_evidence_is_the_mixture_of_likelihood_ratios_of_the_design(course, weight, margin, worse):
    """Alternatives, boundary projection, decayed base rate and mixture, worked out again with scipy's minimiser."""
    excesses = (0.005, 0.015, 0.05, 0.15, 0.4, 0.97) if worse else (0.0, 0.3)
    test = TwoArmRate("worse" if worse else "no_worse", margin)
    for canary, failed in course:
        test.update(canary, failed, weight)
    assert test.value == pytest.approx(_long_way(course, weight, margin, excesses, worse), rel=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([-1, 0, 1]), max_size=10), st.sampled_from([1, -1]))
def test_the_paired_evidence_is_the_mean_of_products_in_fractions(differences, sign):
    """Exact rational arithmetic over the five stakes."""
    margin, stakes = Fraction(3, 100), [Fraction(share, 100) for share in (3, 10, 30, 60, 95)]
    test = PairedMean(sign, float(margin))
    for difference in differences:
        test.update(difference)
    factors = [[1 + stake * (sign * d - margin) / (1 + margin) for d in differences] for stake in stakes]
    assert test.value == pytest.approx(float(sum(map(math.prod, factors)) / len(stakes)), rel=1e-9)


def test_clean_golden_answers_prove_the_mismatch_rates_of_the_design():
    """70, 179 and 360 requests without a mismatch prove a rate below 5, 2 and 1 %, and one request fewer does not."""
    for limit, requests in ((0.05, 70), (0.02, 179), (0.01, 360)):
        test = RateLimit("below", limit)
        for _ in range(requests - 1):
            test.update(False)
        assert test.value < 20
        test.update(False)
        assert test.value >= 20


@settings(max_examples=15, deadline=None)
@given(st.floats(-0.3, 0.3), WEIGHTS, st.sampled_from([1, -1]))
def test_score_differences_that_cancel_over_rows_are_no_evidence(shift, weight, sign):
    """Rows of two kinds, expected .35 and .5: the canary scores higher on one and lower on the other, mean 0."""
    kinds, total = [(0.35, shift), (0.5, -shift)], 0.0
    for rows in itertools.product(kinds, repeat=3):
        for arms in itertools.product([False, True], repeat=3):
            test, probability = UnpairedMean(sign, 0.0), 0.5**3
            for (expected, difference), canary in zip(rows, arms, strict=True):
                probability *= weight if canary else 1 - weight
                test.update(canary, expected + difference * canary, weight, expected)
            total += probability * test.value
    assert total <= 1 + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 0.98), min_size=4, max_size=4), st.floats(0, 0.02))
def test_an_auc_that_is_worse_by_the_margin_gives_no_evidence(right, less):
    """Pairs whose orders are right with probability p under stable and p - margin under the canary: E stays at 1."""
    total = 0.0
    for course in itertools.product(itertools.product([0, 1], repeat=2), repeat=len(right)):
        labels, probability = PairedLabels(design_margins()), 1.0
        for (stable, canary), rate in zip(course, right, strict=True):
            rates = (rate + 0.02, rate + 0.02 - less)
            for ordered, chance in zip((stable, canary), rates, strict=True):
                probability *= chance if ordered else 1 - chance
            labels.add(Labelled(0, 0.5, 0.5))
            labels.add(Labelled(1, *(0.6 if ordered else 0.4 for ordered in (stable, canary))))
        total += probability * labels.tests["auc"].value
    assert total <= 1 + 1e-9


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(0, 1)), max_size=40))
def test_label_pairs_are_disjoint_and_counted_as_the_auc(rows):
    """As many pairs as the rarer class has; the means are those of pairs by order of arrival, worked out from lists."""
    labels = PairedLabels(design_margins())
    for positive, stable, canary in rows:
        labels.add(Labelled(int(positive), stable, canary))
    positives, negatives = [row for row in rows if row[0]], [row for row in rows if not row[0]]
    pairs = list(zip(positives, negatives, strict=False))
    expected = PairedMean(+1, 0.02)
    order = lambda one, two: (one > two) + (one == two) / 2  # noqa: E731 - two uses
    differences = [order(p[1], n[1]) - order(p[2], n[2]) for p, n in pairs]
    for difference in differences:
        expected.update(difference)
    assert f"on {len(pairs)} pairs" in labels.text("auc")
    # the order of multiplication does not matter
    assert labels.tests["auc"].value == pytest.approx(expected.value, rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 0.9), st.floats(0, 1)), min_size=3, max_size=3), WEIGHTS)
def test_delayed_labels_on_split_traffic_give_no_evidence_against_an_equal_canary(rows, weight):
    """Both versions give each row the same score; over all draws and labels E has expectation at most 1."""
    total = 0.0
    for course in itertools.product(itertools.product(("stable", "canary"), (0, 1)), repeat=len(rows)):
        labels, probability = SplitLabels(design_margins()), 1.0
        for (arm, outcome), (score, truth) in zip(course, rows, strict=True):
            probability *= (weight if arm == "canary" else 1 - weight) * (truth if outcome else 1 - truth)
            labels.add(Labelled(outcome, score, score, arm, weight))
        total += probability * labels.loss.value
    assert total <= 1 + 1e-9


@given(st.floats(0, 1), st.sampled_from([0, 1]))
def test_the_clipped_log_loss_lies_in_0_to_1_and_is_the_log_loss_where_that_does(score, outcome):
    """Against -log of the probability of what happened."""
    given_to_it = score if outcome else 1 - score
    oracle = min(-math.log(given_to_it), 1.0) if given_to_it > 0 else 1.0
    assert clipped_log_loss(score, outcome) == pytest.approx(oracle)


STAGES = (0.1, 0.5, 0.95)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=14))
def test_a_sticky_unit_counts_with_the_probability_that_its_draw_has_given_its_past(visits):
    """Oracle: of 200,000 equally spaced numbers a unit may have, those that agree with what was seen, counted."""
    units, grid = Units(), [(number + 0.5) / 1000 for number in range(1000)]
    numbers = {unit: (unit * 0.37 + 0.03) % 1 for unit in range(4)}
    agree = dict.fromkeys(numbers, grid)
    for unit, stage in sorted(visits, key=lambda visit: visit[1]):
        weight = STAGES[stage]
        canary = numbers[unit] < weight
        share = sum(number < weight for number in agree[unit]) / len(agree[unit])
        own = ArmOutcome(False, False, 0.1, 0.1)
        chance = units.chance(Observation("canary" if canary else "stable", weight, own, None, False, unit=str(unit)))
        known = share in (0.0, 1.0)
        assert (chance is None) == known
        if chance is not None:
            assert chance == pytest.approx(share, abs=0.02)
        agree[unit] = [number for number in agree[unit] if (number < weight) == canary]


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 0.05), st.floats(0.05, 0.9), st.sampled_from([(0.1, 0.5), (0.5, 0.95), (0.3, 0.3)]))
def test_sticky_draws_give_no_evidence_against_an_equal_canary(base, unit_rate, weights):
    """Three units come in both stages with one draw each, and fail more or less often by unit: E is at most 1.

    The sum over the three places a unit's number can have (below both weights, between them, above).
    """
    first, second = weights
    places = [(first, True, True), (second - first, False, True), (1 - second, False, False)]
    rates, total = (base, unit_rate, 0.5), 0.0
    for course in itertools.product(places, repeat=2):
        for failures in itertools.product([False, True], repeat=4):
            tests, units, probability = TwoArmRate("worse", 0.0), Units(), math.prod(place[0] for place in course)
            outcome = iter(failures)
            for stage, weight in ((1, first), (2, second)):
                for unit, place in enumerate(course):
                    failed = next(outcome)
                    probability *= rates[unit] if failed else 1 - rates[unit]
                    seen = _request(bool(place[stage]), failed, weight, str(unit))
                    if (chance := units.chance(seen)) is not None:
                        tests.update(seen.canary, failed, chance)
            total += probability * tests.value
    assert total <= 1 + 1e-9


def _request(canary: bool, failed: bool = False, weight: float = 0.5, unit: str = "", seconds: float = 0.1):
    own = ArmOutcome(failed, False, seconds, None if failed else 0.1)
    return Observation("canary" if canary else "stable", weight, own, None, False, seconds, expected=0.1, unit=unit)


LATENCIES = st.lists(
    st.tuples(st.booleans(), st.floats(0.01, 1.0), st.sampled_from([0.5, 0.5, 0.1])), min_size=1, max_size=25
)


@settings(max_examples=40, deadline=None)
@given(LATENCIES, st.lists(st.floats(0.0, 4.0), max_size=6))
def test_looking_at_requests_in_flight_changes_when_latency_counts_and_not_what_it_comes_to(requests, looks):
    """However often one looks, the latency evidence at the end is that of ended requests in order.

    Some were drawn at another weight, and are passed over.
    """
    plain, peeked = _judge(), _judge()
    seen = [_request(canary, seconds=seconds, weight=weight) for canary, seconds, weight in requests]
    for one in seen:
        plain.add(one)
    arrivals = [number * 0.05 for number in range(len(seen))]
    added = 0
    for now in [*sorted(looks), math.inf]:
        while added < len(seen) and arrivals[added] + seen[added].own.seconds <= now:
            peeked.add(seen[added])
            added += 1
        ages = [(one, now - began) for one, began in zip(seen, arrivals, strict=True) if began <= now][added:]
        peeked.open([one if one.own.seconds <= age else _in_flight(one, age) for one, age in ages])
    assert added == len(seen)
    for ours, theirs in ((plain._proof, peeked._proof), (plain._harm._begun[0].tests, peeked._harm._begun[0].tests)):
        for name, test in ours.tests.items():
            assert theirs.tests[name].value == pytest.approx(test.value, rel=1e-9), name
    assert plain.tallies._slow == peeked.tallies._slow


def _in_flight(seen: Observation, age: float) -> Observation:
    return replace(seen, own=ArmOutcome(False, False, age, None), open=True)


def _judge() -> Judge:
    judge = Judge(design_margins(), 1)
    judge.baseline([_request(False, seconds=0.05 + 0.002 * number) for number in range(60)])
    judge.begin_step(50)
    return judge


@settings(max_examples=30, deadline=None)
@given(COURSE, COURSE)
def test_evidence_that_is_carried_over_multiplies(before, after):
    """The evidence after a new beginning is what was kept times that of a process that saw only what came since."""
    whole, fresh, kept = _split(before), _split([]), Harm(design_margins(), 2)
    memory = {"weight": 50, "bad": {"errors": 9, "invalid": 9}}
    kept.recall([memory | {"tests": {name: test.value for name, test in whole.tests.items()}}])
    resumed = kept._begun[0].tests
    for canary, failed in after:
        resumed.update(_request(canary, failed), {})
        fresh.update(_request(canary, failed), {})
    for name, test in resumed.tests.items():
        assert test.value == pytest.approx(whole.tests[name].value * fresh.tests[name].value, rel=1e-9)


def _split(course) -> SplitTests:
    tests = SplitTests(design_margins(), "harm")
    for canary, failed in course:
        tests.update(_request(canary, failed), {})
    return tests


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 10, 50]), st.booleans(), st.booleans()), max_size=30))
def test_the_total_is_the_budgets_sum_over_stages_and_metrics(requests):
    """Σ v (.2 E_shadow + .5 E_from10 + .3 E_from50), parts not begun 1, worked out from tests that are fed by hand."""
    harm, margins, weights = Harm(design_margins(), 2), design_margins(), []
    oracle: dict[int, SplitTests] = {}
    for weight, canary, failed in sorted(requests, key=lambda one: one[0]):
        if weight == 0:
            continue
        if weight not in weights:
            weights.append(weight)
            harm.begin(weight)
            oracle[weight] = SplitTests(margins, "harm")
        seen = _request(canary, failed, weight / 100)
        harm.update(seen, {}, shadow=False)
        for tests in oracle.values():
            tests.update(seen, {})
    shares = dict(zip(weights, (0.5, 0.3), strict=False))
    parts = [
        (share * BUDGET[name], min(test.value, 1.0) if oracle[weight].bad.get(name, 3) < 3 else test.value)
        for weight, share in shares.items()
        for name, test in oracle[weight].tests.items()
    ]
    assert harm.total()[0] == pytest.approx(weighted_mean(parts), rel=1e-9)
