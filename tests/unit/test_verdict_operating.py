"""Operating characteristics on simulated live traffic at 20 requests a second, against the design's figures.

The short tests are seeded and small. Those marked `full` have the counts of the design: hundreds of whole rollouts.
Bounds on counts allow three standard errors, so that a test does not fail by its own chance.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from components.rollout.evalues import TwoArmRate
from components.rollout.verdict import CONTINUE, FAIL, INCONCLUSIVE, PASS, Judge
from tests.fakes.verdict_table import PROVED, TABLE, clairvoyant_seconds, measure, proved_seconds
from tests.fakes.verdict_traffic import Arm, Ended, LiveTraffic, design_margins, step_alone

ALPHA = 0.05
AT_MARGIN = Arm(errors=0.01, invalid=0.005, slower=1.25, shift=0.03)  # +.5 pp, +.5 pp, x1.25, +.03: the nulls' edge
CELLS = [(row, weight) for row in TABLE for weight in row.seconds]
NAMES = [f"{row.change} at {weight}" for row, weight in CELLS]
QUICK = [(row, weight) for row, weight in CELLS if row.seconds[weight][0] < 10]


def _at_most(share: float, runs: int) -> float:
    return share * runs + 3 * math.sqrt(share * (1 - share) * runs)


def _rollouts(
    name: str, runs: int, canary: Arm, deadline: float = 1800.0, through: tuple[str, ...] = ()
) -> list[Ended]:
    return [
        LiveTraffic(f"{name} {run}", canary).rollout(Judge(design_margins(), 2), (0, 10, 50), deadline, through)
        for run in range(runs)
    ]


def _outcomes(ends: list[Ended]) -> Counter[str]:
    return Counter(end.verdict.outcome for end in ends)


def test_an_identical_canary_is_promoted():
    """Of 8 whole rollouts (shadow, 10 %, 50 %) all pass, at the design's median of 329 s within half as much again."""
    ends = _rollouts("identical", 8, Arm())
    assert _outcomes(ends) == {PASS: 8}
    assert sorted(end.seconds for end in ends)[4] <= 1.5 * 329


@pytest.mark.parametrize(("row", "weight"), QUICK, ids=[f"{row.change} at {weight}" for row, weight in QUICK])
def test_what_the_design_finds_in_seconds_is_found_in_seconds(row, weight):
    """40 runs a cell: all aborted, the median within 1.6 times the design's and half a second, p90 within twice."""
    measured = measure(row, weight, 40)
    median, p90 = row.seconds[weight]
    assert measured.outcomes == {FAIL: 40}
    assert measured.median <= 1.6 * median + 0.5
    assert p90 is None or measured.p90 <= 2 * p90


def test_looking_after_every_request_with_a_z_test_aborts_equal_canaries_and_this_does_not():
    """300 A/A courses of 20,000 requests, half to each, looked at every 100: the z-test aborts over a third."""
    draws, courses, requests, aborted = np.random.default_rng(5), 300, 20_000, 0
    for _ in range(courses):
        arm, bad = draws.random(requests) < 0.5, draws.random(requests) < 0.05
        looks = slice(99, None, 100)
        (n, k), (m, j) = ([np.cumsum(who)[looks], np.cumsum(who & bad)[looks]] for who in (arm, ~arm))
        pooled = (k + j) / (n + m)
        z = np.abs(k / n - j / m) / np.sqrt(np.maximum(pooled * (1 - pooled) * (1 / n + 1 / m), 1e-12))
        aborted += bool((z > 1.96).any())
    assert aborted > courses / 3
    ours = sum(_crosses("z", course, 4_000, 0.05) for course in range(60))
    assert ours <= _at_most(ALPHA, 60)


def _crosses(name: str, course: int, requests: int, rate: float) -> bool:
    """Whether one metric alone, with no margin, ever reaches 20 between equal arms."""
    draws, test = random.Random(f"{name} {course}"), TwoArmRate("worse", 0.0)
    for _ in range(requests):
        test.update(draws.random() < 0.5, draws.random() < rate, 0.5)
        if test.value >= 1 / ALPHA:
            return True
    return False


def test_an_incident_that_both_arms_share_is_not_blamed_on_the_canary():
    """3 % of errors in both, .5 % before: none of 10 steps of 100 s is aborted (fixed thresholds would abort each)."""
    for run in range(10):
        traffic, judge = LiveTraffic(f"incident {run}", Arm(errors=0.03), Arm(errors=0.03)), Judge(design_margins(), 1)
        judge.baseline(LiveTraffic(f"before {run}", Arm()).baseline())
        judge.begin_step(50)
        assert traffic.stage(judge, 50, 100.0).verdict.outcome != FAIL


def test_with_twenty_requests_in_all_mirroring_finds_a_dead_canary_and_a_tenth_of_them_does_not():
    """Mirrored: 40 of 40; at 10 % it takes three draws of the canary, which come in about a third of 200 cases."""
    dead, found = Arm(errors=1.0), {0: 0, 10: 0}
    for weight, runs in ((0, 40), (10, 200)):
        for run in range(runs):
            traffic, judge = LiveTraffic(f"tiny {run} {weight}", dead), Judge(design_margins(), 2)
            judge.baseline(traffic.baseline())
            judge.begin_step(weight) if weight else judge.begin_shadow()
            for one in traffic.requests(weight, 20):
                judge.add(one)
            found[weight] += judge.verdict(1.0, 150.0).outcome == FAIL
    assert found[0] == 40
    assert 0.2 * 200 < found[10] < 0.45 * 200


def test_a_canary_at_the_pass_margin_rarely_passes():
    """+1 pp at 50 %, where +1 pp is the margin: of 20 steps of 200 s at most chance passes (true share under 5 %)."""
    passed = sum(step_alone(f"margin {run}", 50, Arm(errors=0.015), 200.0).verdict.outcome == PASS for run in range(20))
    assert passed <= _at_most(ALPHA, 20)


def test_the_best_test_that_knows_both_rates_is_not_far_ahead():
    """5 % errors against .5 % at 50 %: at most twice the seconds of the likelihood ratio that knows both rates."""
    row = next(row for row in TABLE if row.change.endswith("→ 5 %"))
    assert measure(row, 50, 30).median <= 2 * clairvoyant_seconds(200, 0.5)


@pytest.mark.full
def test_whole_rollouts_of_an_identical_canary_are_aborted_less_often_than_alpha_and_promoted_in_98_of_100():
    """300 rollouts of the design: at most α aborted, at least 96 % promoted, median within 1.3 times 329 s."""
    ends = _rollouts("a/a", 300, Arm())
    outcomes = _outcomes(ends)
    print("A/A, 300 rollouts:", outcomes, "median", sorted(end.seconds for end in ends)[150], "s")
    assert outcomes[FAIL] <= ALPHA * 300
    assert outcomes[PASS] >= 0.96 * 300
    assert sorted(end.seconds for end in ends)[150] <= 1.3 * 329


@pytest.mark.full
def test_whole_rollouts_with_every_metric_at_its_margin_are_aborted_at_most_in_one_of_twenty():
    """150 rollouts driven through all stages, 300 s each, at the edge of every null at once (the design saw .036)."""
    through = (PASS, INCONCLUSIVE)
    outcomes = _outcomes(_rollouts("edge", 150, AT_MARGIN, 300.0, through))
    print("every metric at its margin, 150 rollouts:", outcomes)
    assert outcomes[FAIL] <= _at_most(ALPHA, 150)


@pytest.mark.full
@pytest.mark.parametrize(("weight", "excess"), [(10, 0.02), (50, 0.01)])
def test_a_canary_at_the_pass_margin_passes_at_most_in_one_of_twenty(weight, excess):
    """150 steps of 600 s with the errors exactly at the step's margin."""
    passed = sum(
        step_alone(f"at {run}", weight, Arm(errors=0.005 + excess), 600.0).verdict.outcome == PASS for run in range(150)
    )
    print(f"false passes at +{excess * 100:g} pp, {weight} %: {passed} of 150")
    assert passed <= _at_most(ALPHA, 150)


@pytest.mark.full
@pytest.mark.parametrize(("weight", "margin"), [(0.1, 0.02), (0.5, 0.01)])
def test_the_evidence_for_a_pass_alone_reaches_20_at_the_margin_in_at_most_one_of_twenty(weight, margin):
    """400 courses of 12,000 requests of the errors' proof, without the aborts that would come first."""
    crossed = 0
    for course in range(400):
        draws, test = random.Random(f"proof {course} {weight}"), TwoArmRate("no_worse", margin)
        for _ in range(12_000):
            canary = draws.random() < weight
            test.update(canary, draws.random() < 0.005 + margin * canary, weight)
            if test.value >= 1 / ALPHA:
                crossed += 1
                break
    print(f"proof alone at the margin, weight {weight}: {crossed} of 400")
    assert crossed <= _at_most(ALPHA, 400)


@pytest.mark.full
def test_a_canary_with_two_percent_of_errors_is_never_promoted():
    """300 rollouts, .5 % against 2 %: none passes."""
    outcomes = _outcomes(_rollouts("two", 300, Arm(errors=0.02)))
    print("2 % of errors, 300 rollouts:", outcomes)
    assert outcomes[PASS] == 0
    assert outcomes[CONTINUE] == 0


@pytest.mark.full
def test_a_single_metric_between_equal_arms_reaches_20_in_at_most_one_of_twenty_over_100_000_requests():
    """100 courses with no margin at .5 % errors (the design saw .018 to .036)."""
    crossed = sum(_crosses("long", course, 100_000, 0.005) for course in range(100))
    print(f"A/A, one metric, 100,000 requests: {crossed} of 100")
    assert crossed <= _at_most(ALPHA, 100)


@pytest.mark.full
@pytest.mark.parametrize(("row", "weight"), CELLS, ids=NAMES)
def test_the_table_of_the_design_is_reached_within_a_factor_of_1_3(row, weight):
    """Medians of 100 runs a cell (40 where minutes pass), all aborts but by chance; half a second for looks."""
    runs = 40 if row.seconds[weight][0] > 200 else 100
    measured = measure(row, weight, runs)
    print(
        f"{row.change} at {weight} %: {measured.median:.1f} s (p90 {measured.p90:.1f}), design {row.seconds[weight][0]}"
    )
    assert measured.outcomes[FAIL] + measured.rules["routing"] == runs
    assert measured.rules["routing"] <= _at_most(0.001, runs)  # draws as strange as that happen once in a thousand
    assert measured.median <= 1.3 * row.seconds[weight][0] + 0.5


@pytest.mark.full
@pytest.mark.parametrize(("metric", "weight", "margin"), PROVED)
def test_an_identical_canary_is_proved_in_the_designs_time(metric, weight, margin):
    """Medians of 60 runs, one metric at a time, within 1.3 times the design's."""
    seconds = proved_seconds(metric, weight, margin, 60)
    print(f"{metric} proved at {weight} %, margin {margin}: {seconds:.0f} s, design {PROVED[metric, weight, margin]}")
    assert seconds <= 1.3 * PROVED[metric, weight, margin]
