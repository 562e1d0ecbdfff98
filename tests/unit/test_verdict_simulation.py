"""Operating characteristics of the laptop rollout at 30 requests a second; the larger counts are marked slow."""

from __future__ import annotations

import random
from collections import Counter
from statistics import median

import pytest

from components.rollout.comparisons import SplitTests
from components.rollout.observations import ArmOutcome, Observation
from tests.fakes.fake_serving import Behaviour
from tests.fakes.rollout_traffic import Simulated, laptop_margins, simulate

BAD = {
    "all fail": (Behaviour(error_rate=1.0), {"errors", "failures_in_a_row"}, 1.5),
    "a fifth fail": (Behaviour(error_rate=0.2), {"errors", "failures_in_a_row"}, 6.0),
    "all hang": (Behaviour(hang=True), {"errors", "latency_p50", "latency_p95", "failures_in_a_row"}, 2.0),
    "latency x3": (Behaviour(latency_factor=3.0), {"latency_p50", "latency_p95"}, 6.0),
    "latency x5": (Behaviour(latency_factor=5.0), {"latency_p50", "latency_p95"}, 4.0),
    "scores +0.15": (Behaviour(score_shift=0.15), {"score_up"}, 12.0),
    "scores constant 0.5": (Behaviour(constant_score=0.5), {"score_up", "label_flips"}, 6.0),
}
HEALTHY = {
    "identical": {},
    "another week's model": {"canary": Behaviour(score_noise=0.1)},
    "heavy latency tails": {"spread": 0.8},
    "half a percent of errors in both": {"canary": Behaviour(error_rate=0.005), "stable": Behaviour(error_rate=0.005)},
}


def _outcomes(runs: int, **settings: object) -> list[Simulated]:
    settings = {"canary": Behaviour(), **settings}
    return [simulate(seed, **settings) for seed in range(runs)]  # type: ignore[arg-type] - one dict for all keywords


def _check_healthy(runs: int, settings: dict[str, object], passed_at_least: float, aborted_at_most: float) -> None:
    ended = _outcomes(runs, **settings)
    counts = Counter(end.verdict.outcome for end in ended)
    assert counts["pass"] >= passed_at_least * runs, counts
    assert counts["fail"] <= aborted_at_most * runs, counts
    assert median(end.requests for end in ended) / 30 < 40


@pytest.mark.parametrize("name", HEALTHY)
def test_a_canary_like_stable_passes_well_before_the_deadline(name):
    """Of 12 A/A rollouts all pass, in a median of under 40 s of traffic (the deadline is 150 s a stage)."""
    _check_healthy(12, HEALTHY[name], passed_at_least=1.0, aborted_at_most=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_false_aborts_over_a_whole_rollout_stay_below_alpha(name):
    """Of 150 A/A rollouts, looked at every half second, at most 2 % are aborted (alpha is 5 %) and 97 % pass."""
    _check_healthy(150, HEALTHY[name], passed_at_least=0.97, aborted_at_most=0.02)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_canary_on_split_traffic_is_aborted_in_seconds_by_the_rule_that_names_it(name):
    """All of 9 are aborted, at the median within the stated seconds of traffic at 50 %."""
    behaviour, rules, seconds = BAD[name]
    ended = _outcomes(9, canary=behaviour, weights=(50,))
    assert {end.verdict.outcome for end in ended} == {"fail"}
    assert {end.verdict.rule for end in ended} <= rules
    assert median(end.seconds for end in ended) <= seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_canaries_never_pass_in_a_hundred_rollouts(name):
    """With shadow and step: 100 of 100 are aborted."""
    behaviour, rules, _ = BAD[name]
    ended = _outcomes(100, canary=behaviour)
    assert {end.verdict.outcome for end in ended} == {"fail"}
    assert {end.verdict.rule for end in ended} <= rules


@pytest.mark.slow
def test_a_canary_at_the_error_margin_passes_at_most_once_in_twenty():
    """+5 pp of errors is the margin: over 200 rollouts at most 5 % pass (with three standard errors of tolerance)."""
    ended = _outcomes(200, canary=Behaviour(error_rate=0.05), weights=(50,))
    assert sum(end.verdict.outcome == "pass" for end in ended) <= 200 * 0.05 + 3 * (200 * 0.05 * 0.95) ** 0.5


@pytest.mark.slow
def test_a_long_watch_of_an_equal_canary_rarely_reaches_the_threshold():
    """Single metrics over 8,000 requests and 60 courses with a drifting base rate: at most alpha ever reach 20."""
    crossed: Counter[str] = Counter()
    courses, requests = 60, 8_000
    for seed in range(courses):
        source, harm, over = random.Random(seed), SplitTests(laptop_margins(), "harm"), set()
        for number in range(requests):
            rate = 0.002 + 0.1 * (number % 3000 < 300)  # incidents that both share
            seen = _request(source.random() < 0.5, source.random() < rate)
            slow = source.random() < 0.05
            harm.update(seen, {"latency_p95": (slow, None)})
            over |= {name for name in ("errors", "latency_p95") if harm.tests[name].value >= 20}
        crossed.update(over)
    assert all(count <= 0.05 * courses + 3 for count in crossed.values()), crossed


def _request(canary: bool, failed: bool) -> Observation:
    own = ArmOutcome(failed, False, 0.02, None if failed else 0.1)
    return Observation("canary" if canary else "stable", 0.5, own, None, False, 0.02, expected=0.1)


def test_five_percent_errors_are_stopped_though_passing_would_allow_up_to_five_points():
    """Harm is tested at a tenth of the pass margin: 5 % errors end in an abort in nearly all of 10 rollouts."""
    ended = _outcomes(10, canary=Behaviour(error_rate=0.05), weights=(50,))
    assert sum(end.verdict.outcome == "fail" for end in ended) >= 8
