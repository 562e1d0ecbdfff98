"""E-processes have expectation at most 1 under their nulls; the oracle sums over every possible course."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.rollout.evalues import (
    ArmShare,
    PairedMean,
    RateLimit,
    RunningQuantile,
    TwoArmRate,
    UnpairedMean,
    rate_interval,
    weighted_mean,
)

SHARES = st.floats(0.02, 0.98)
WEIGHTS = st.sampled_from([0.05, 0.1, 0.5, 0.8])
STEPS = 4


def _expectation(make, courses, rates, weight) -> float:
    """Sum of probability x final e-value over all sequences of (canary?, failed?)."""
    total = 0.0
    for course in itertools.product(courses, repeat=len(rates)):
        test, probability = make(), 1.0
        for (canary, failed), (p_canary, p_stable) in zip(course, rates, strict=True):
            rate = p_canary if canary else p_stable
            probability *= (weight if canary else 1 - weight) * (rate if failed else 1 - rate)
            test.update(canary, failed, weight)
        total += probability * test.value
    return total


COURSES = [(canary, failed) for canary in (False, True) for failed in (False, True)]


@settings(max_examples=25, deadline=None)
@given(st.lists(SHARES, min_size=STEPS, max_size=STEPS), SHARES, WEIGHTS, st.sampled_from([0.0, 0.005, 0.1]))
def test_worse_is_rarely_shown_of_a_canary_that_is_within_the_margin(base, part, weight, margin):
    """With a base rate that changes at every request and an excess up to the margin, E has expectation at most 1."""
    rates = [(min(rate + part * margin, 1.0), rate) for rate in base]
    assert _expectation(lambda: TwoArmRate("worse", margin), COURSES, rates, weight) <= 1 + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.0, 0.9), min_size=STEPS, max_size=STEPS), SHARES, WEIGHTS, st.sampled_from([0.0, 0.05]))
def test_no_worse_is_rarely_shown_of_a_canary_that_is_worse_by_the_margin(base, more, weight, margin):
    """With an excess of the margin or more at each request, the evidence for a pass has expectation at most 1."""
    rates = [(min(rate + margin + more * (1 - rate - margin), 1.0), rate) for rate in base]
    alternatives = (0.75, 0.5, 0.25, 0.05) if margin == 0 else ()
    assert _expectation(lambda: TwoArmRate("no_worse", margin, alternatives), COURSES, rates, weight) <= 1 + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SHARES, st.floats(0, 1)), min_size=3, max_size=3), st.sampled_from([1, -1]), WEIGHTS)
def test_split_scores_that_differ_by_the_margin_give_no_evidence_of_more(rows, sign, weight):
    """Scores are 0 or 1 with means exactly at the margin; whatever the expected score of the row, E stays at 1."""
    margin = 0.05
    total = 0.0
    for course in itertools.product([(c, y) for c in (False, True) for y in (0.0, 1.0)], repeat=len(rows)):
        test, probability = UnpairedMean(sign, margin), 1.0
        for (canary, value), (expected, base) in zip(course, rows, strict=True):
            stable = 0.05 + 0.9 * base
            mean = stable + sign * margin if canary else stable
            probability *= (weight if canary else 1 - weight) * (mean if value else 1 - mean)
            test.update(canary, value, weight, expected)
        total += probability * test.value
    assert total <= 1 + 1e-9


@given(st.floats(0.0, 0.9), st.sampled_from([1, -1]), st.sampled_from([0.05, -0.05, 0.0]))
def test_paired_differences_at_the_margin_give_no_evidence(spread, sign, margin):
    """Two-point differences whose signed mean is the margin: one step has expectation 1, so any number has."""
    low, high = margin - spread * (margin + 1), margin + spread * (1 - margin)
    probability_high = (margin - low) / (high - low) if high > low else 1.0
    total = 0.0
    for value, probability in ((high, probability_high), (low, 1 - probability_high)):
        test = PairedMean(sign, margin)
        test.update(sign * value)
        total += probability * test.value
    assert total == pytest.approx(1.0, abs=1e-9)


@given(st.sampled_from(["above", "below"]), st.floats(0.01, 0.6))
def test_a_rate_at_its_limit_gives_no_evidence(direction, limit):
    """One step at the limit has expectation 1; two steps too."""
    total = 0.0
    for first, second in itertools.product((False, True), repeat=2):
        test = RateLimit(direction, limit)
        test.update(first)
        test.update(second)
        total += math.prod(limit if happened else 1 - limit for happened in (first, second)) * test.value
    assert total == pytest.approx(1.0)


@given(WEIGHTS, st.integers(1, 9))
def test_fair_draws_give_no_evidence_against_the_routing(weight, draws):
    """The Bayes factor sums to 1 over all courses of fair draws."""
    total = 0.0
    for drawn in range(draws + 1):
        test = ArmShare()
        for number in range(draws):
            test.update(number < drawn, weight)
        total += math.comb(draws, drawn) * weight**drawn * (1 - weight) ** (draws - drawn) * test.value
    assert total == pytest.approx(1.0)


def test_a_draw_that_cannot_be_is_a_surprise_at_once():
    """A canary draw at weight 0 exceeds any threshold."""
    test = ArmShare()
    test.update(True, 0.0)
    assert test.value > 1e9


@given(st.lists(st.tuples(st.floats(0.01, 0.2), st.floats(0.1, 1e6)), min_size=1, max_size=5))
def test_the_weighted_mean_rejects_whenever_weighted_bonferroni_does(pairs):
    """If any single e-value reaches 1 / (its share of alpha), the weighted mean reaches 1 / alpha."""
    alpha = 0.05
    if any(value >= 1 / (alpha * weight) for weight, value in pairs):
        assert weighted_mean(pairs) >= 1 / alpha - 1e-6


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 200))
def test_the_interval_holds_exactly_the_rates_that_the_mixture_does_not_reject(failures, more):
    """Against a grid of rates and a numerically integrated mixture (Jeffreys' prior)."""
    requests = failures + more
    low, high = rate_interval(failures, requests)
    assert 0 <= low <= high <= 1
    if requests == 0:
        assert (low, high) == (0.0, 1.0)
        return
    points = [math.sin(math.pi * (number + 0.5) / 4000) ** 2 for number in range(2000)]  # quantiles of Jeffreys' prior
    log = lambda rate: failures * math.log(rate) + more * math.log1p(-rate)  # noqa: E731 - the likelihood, twice used
    top = max(log(point) for point in points)
    mixture = top + math.log(sum(math.exp(log(point) - top) for point in points) / len(points))
    for rate in (0.003, 0.05, 0.2, 0.5, 0.8, 0.97):
        inside = log(rate) >= mixture + math.log(0.05) - 1e-9
        if abs(rate - low) > 1e-3 and abs(rate - high) > 1e-3:
            assert inside == (low <= rate <= high)


def test_the_running_quantile_settles_where_the_share_above_is_what_was_asked():
    """After a warm-up of 50 the p95 estimate leaves about 5 % above; infinite and missing times do no harm."""
    import random

    source, tracker = random.Random(3), RunningQuantile(0.95)
    for _ in range(49):
        tracker.update(math.exp(source.gauss(0, 0.5)))
    assert tracker.seconds is None
    above = 0
    for number in range(4000):
        seconds = math.exp(source.gauss(0, 0.5))
        above += number > 500 and seconds > (tracker.seconds or 0)
        tracker.update(seconds)
    assert 0.03 < above / 3500 < 0.07
    tracker.update(math.inf)
    tracker.update(math.nan)
    assert tracker.seconds is not None
    assert math.isfinite(tracker.seconds)
