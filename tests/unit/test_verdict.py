"""The judge: what passes, what fails by which rule, what stays open, and what it says."""

from __future__ import annotations

import math

import pytest

from components.core.errors import UserError
from components.rollout.margins import BUDGET, SHADOW_SHARE, Margins, step_shares
from components.rollout.observations import ArmOutcome, Observation
from components.rollout.verdict import CONTINUE, FAIL, INCONCLUSIVE, PASS, Judge, Verdict
from tests.fakes.rollout_case import small_recipe
from tests.fakes.rollout_traffic import laptop_margins

GOOD = ArmOutcome(failed=False, invalid=False, seconds=0.02, score=0.1)
FAILED = ArmOutcome(failed=True, invalid=False, seconds=0.02, score=None)
INVALID = ArmOutcome(failed=False, invalid=True, seconds=0.02, score=None)


def _seen(
    arm: str,
    own: ArmOutcome = GOOD,
    weight: float = 0.5,
    mirrored: ArmOutcome | None = None,
    surprise: str = "",
    outcome: int | None = None,
) -> Observation:
    return Observation(arm, weight, own, mirrored, False, own.seconds, surprise, 0.1, outcome)


def _step(baseline: bool = True, **margins: object) -> Judge:
    judge = Judge(laptop_margins(**margins), 1)
    usual = [ArmOutcome(False, False, 0.02 + 0.0001 * number, 0.1) for number in range(60 * baseline)]
    judge.baseline([_seen("stable", own) for own in usual])
    judge.begin_step(50)
    return judge


def _feed(judge: Judge, requests: int, canary: ArmOutcome = GOOD, stable: ArmOutcome = GOOD) -> Verdict:
    for number in range(requests):
        jitter = 0.0001 * (number % 60)
        arm, own = ("canary", canary) if number % 2 else ("stable", stable)
        judge.add(_seen(arm, ArmOutcome(own.failed, own.invalid, own.seconds + jitter, own.score)))
    return judge.verdict(requests / 30, 150)


def test_an_equal_canary_passes_once_every_metric_has_its_evidence():
    """200 requests a side: pass, each rule of the table passes, and the line says counts, margin and guarantee."""
    verdict = _feed(_step(), 400)
    assert verdict.outcome == PASS
    assert {rule.outcome for rule in verdict.rules} == {"pass"}
    assert {"errors", "invalid", "latency_p50", "latency_p95", "score_up", "score_down", "samples", "routing"} <= {
        rule.rule for rule in verdict.rules
    }
    for part in ("PASS, step 50 %", "canary 0/200", "stable 0/200", "margin +5 pp", "α 0.05", "150 s"):
        assert part in verdict.text
    assert "\n" not in verdict.text


def test_the_minimum_of_canary_requests_is_asked_for_whatever_the_evidence():
    """With all the evidence in the world, 100 asked-for canary requests less one go on."""
    judge = _step(canary_requests=1000)
    assert _feed(judge, 1998).outcome == CONTINUE
    assert "999 of 1000 canary requests" in judge.verdict(1, 150).text


def test_no_traffic_is_inconclusive_at_the_deadline_and_open_before():
    """Nothing was seen: never a pass, and the rules say insufficient."""
    judge = _step()
    assert judge.verdict(1.0, 150).outcome == CONTINUE
    verdict = judge.verdict(150.0, 150)
    assert (verdict.outcome, verdict.rule) == (INCONCLUSIVE, "deadline")
    assert "not proven bad" in verdict.text
    assert "pass" not in {rule.outcome for rule in verdict.rules if rule.rule in BUDGET}


def test_a_clock_that_gives_nan_ends_the_stage_rather_than_running_for_ever():
    """NaN seconds count as past the deadline."""
    assert _step().verdict(math.nan, 150).outcome == INCONCLUSIVE


@pytest.mark.parametrize(
    ("canary", "rule"),
    [
        (FAILED, "errors"),
        (INVALID, "invalid"),
        (ArmOutcome(False, False, 0.09, 0.1), "latency_p50"),
        (ArmOutcome(False, False, math.inf, 0.1), "latency_p50"),
        (ArmOutcome(False, False, 0.02, 0.6), "score_up"),
    ],
)
def test_each_harm_is_named_by_its_rule(canary, rule):
    """A canary that is bad in one way fails by that way's rule, which is in the table as failed."""
    judge = _step(failures_in_a_row=10**9)
    verdict = next(v for _ in range(100) if (v := _feed(judge, 10, canary)).outcome != CONTINUE)
    assert verdict.outcome == FAIL
    assert verdict.rule in {rule, rule.replace("p50", "p95")}
    assert {row.rule for row in verdict.rules if row.outcome == "fail"} == {verdict.rule, "harm"}
    assert "traffic back on stable" in verdict.text


def test_two_bad_answers_never_abort_by_statistics():
    """However likely it looks: two failures of a canary's first two requests go on, a few more do not."""
    judge = _step(failures_in_a_row=10**9)
    outcomes = []
    for _ in range(8):
        judge.add(_seen("stable"))
        judge.add(_seen("canary", FAILED))
        outcomes.append(judge.verdict(1, 150).outcome)
    assert outcomes[:2] == [CONTINUE, CONTINUE]
    assert outcomes[-1] == FAIL


def test_an_incident_that_both_arms_share_does_not_count_as_a_row_of_canary_failures():
    """Stable fails in the same window: no hard rule; where stable goes on answering, five in a row end it."""
    judge = _step()
    for _ in range(30):
        judge.add(_seen("stable"))
    for _ in range(6):
        judge.add(_seen("canary", FAILED))
        judge.add(_seen("stable", FAILED))
    assert judge.tallies.hard_failure() is None
    for _ in range(25):
        judge.add(_seen("stable"))
    judge.add(_seen("canary", GOOD))
    for _ in range(5):
        judge.add(_seen("canary", FAILED))
        judge.add(_seen("stable"))
    assert judge.tallies.hard_failure()[0] == "failures_in_a_row"


def test_another_versions_answer_ends_it_at_once():
    """One answer by the wrong version needs no statistics."""
    judge = _step()
    judge.add(_seen("canary", surprise="canary answered as '7', not '2'"))
    verdict = judge.verdict(0.5, 150)
    assert (verdict.outcome, verdict.rule) == (FAIL, "version")
    assert "'7'" in verdict.text


def test_a_stable_that_answers_as_another_version_proves_nothing():
    """Inconclusive, by routing."""
    judge = _step()
    judge.add(_seen("stable", surprise="stable answered as '7', not '1'"))
    verdict = judge.verdict(0.5, 150)
    assert (verdict.outcome, verdict.rule) == (INCONCLUSIVE, "routing")


def test_shares_that_are_not_the_weight_are_inconclusive_not_a_pass():
    """400 draws of which 50 went to the canary at 50 %: routing."""
    judge = _step(canary_requests=10)
    for number in range(400):
        judge.add(_seen("canary" if number % 8 == 0 else "stable"))
    verdict = judge.verdict(1, 150)
    assert (verdict.outcome, verdict.rule) == (INCONCLUSIVE, "routing")


def test_decisions_made_at_another_weight_are_left_out():
    """While a weight is being changed the draws tell nothing: they are no samples."""
    judge = _step(canary_requests=10)
    for number in range(400):
        judge.add(_seen("canary" if number % 2 else "stable", weight=0.1))
    assert judge.verdict(150, 150).outcome == INCONCLUSIVE


@pytest.mark.parametrize("stable", [FAILED, ArmOutcome(False, False, 3.0, 0.1)])
def test_both_arms_unwell_is_inconclusive(stable):
    """A canary that is as bad as a bad stable neither passes nor is blamed."""
    judge = _step(baseline=False)
    verdict = next(v for _ in range(30) if (v := _feed(judge, 20, stable, stable)).outcome != CONTINUE)
    assert (verdict.outcome, verdict.rule) == (INCONCLUSIVE, "stable")


def test_a_stable_that_slowed_since_the_canary_came_prevents_a_pass():
    """The canary is as fast as stable now, but stable was five times as fast before."""
    slow = ArmOutcome(False, False, 0.1, 0.1)
    judge = _step()
    assert _feed(judge, 1500, slow, slow).outcome == CONTINUE
    assert "stable slowed" in judge.verdict(1, 150).text


def test_many_requests_without_a_draw_prevent_a_pass():
    """Answers that never came tell about neither arm; above one in a hundred nothing is proved."""
    judge = _step()
    for _ in range(20):
        judge.add(_seen("", FAILED))
    assert _feed(judge, 400).outcome == CONTINUE
    assert "without a draw" in judge.verdict(1, 150).text


def _shadow(canary: ArmOutcome, pairs: int, outcome: int | None = None) -> Verdict:
    judge = Judge(laptop_margins(), 1)
    judge.begin_shadow()
    for number in range(pairs):
        own = ArmOutcome(False, False, 0.02 + 0.0001 * (number % 60), 0.1)
        judge.add(_seen("stable", own, 0.0, canary, outcome=outcome))
        verdict = judge.verdict(number / 30, 150)
        if verdict.outcome != CONTINUE:
            break
    return verdict


def test_shadow_passes_on_the_pairs_asked_for_and_not_before():
    """200 equal pairs pass, at the 200th."""
    verdict = _shadow(GOOD, 400)
    assert verdict.outcome == PASS
    assert "0/200" in verdict.text


def test_shadow_without_mirrored_answers_never_passes():
    """Stable answers, the mirror does not come: no pairs, however long."""
    judge = Judge(laptop_margins(), 1)
    judge.begin_shadow()
    for _ in range(1000):
        judge.add(_seen("stable", GOOD, 0.0, None))
    assert judge.verdict(150, 150).outcome == INCONCLUSIVE


def test_flipped_labels_are_stopped_although_the_mean_score_hardly_moves():
    """Scores of .499 become .501 at a threshold of .5: labels flip, means stay."""
    judge = Judge(laptop_margins(), 1)
    judge.begin_shadow()
    for number in range(200):
        own = ArmOutcome(False, False, 0.02, 0.499)
        judge.add(_seen("stable", own, 0.0, ArmOutcome(False, False, 0.02, 0.501)))
        if (verdict := judge.verdict(number / 30, 150)).outcome != CONTINUE:
            break
    assert (verdict.outcome, verdict.rule) == (FAIL, "label_flips")


def test_known_outcomes_stop_a_canary_that_predicts_the_opposite():
    """Same mean score, wrong way round: the log loss on replayed rows tells."""
    judge = Judge(laptop_margins(label_flips=0.9), 1)
    judge.begin_shadow()
    for number in range(400):
        happened = number % 2
        stable, canary = (0.8, 0.2) if happened else (0.2, 0.8)
        own = ArmOutcome(False, False, 0.02, stable)
        judge.add(_seen("stable", own, 0.0, ArmOutcome(False, False, 0.02, canary), outcome=happened))
        if (verdict := judge.verdict(number / 30, 150)).outcome != CONTINUE:
            break
    assert (verdict.outcome, verdict.rule) == (FAIL, "log_loss")


def test_the_budget_is_spent_once_over_metrics_and_stages():
    """Shares of metrics sum to 1, shares of shadow and steps too; with two steps they are .2, .5 and .3."""
    assert sum(BUDGET.values()) == pytest.approx(1)
    for steps in range(1, 6):
        assert SHADOW_SHARE + sum(step_shares(steps)) == pytest.approx(1)
    assert step_shares(2) == pytest.approx((0.5, 0.3))


def test_evidence_of_an_earlier_step_still_counts_in_a_later_one():
    """A little harm at 10 % and a little at 50 % add up: the process that began at 10 % goes on."""
    judge = Judge(laptop_margins(), 2)
    judge.begin_step(10)
    for number in range(100):
        judge.add(_seen("canary" if number % 10 == 0 else "stable", FAILED if number in (10, 50) else GOOD, 0.1))
    before, _ = judge.total_evidence()
    judge.begin_step(50)
    assert judge.tallies.samples(50) == 0
    fresh = {rule.rule: rule.outcome for rule in judge.verdict(0, 150, last=True).rules}
    assert fresh["errors"] == "insufficient"
    _feed(judge, 20, FAILED)
    assert judge.total_evidence()[0] > before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 0.0),
        ("alpha", 0.5),
        ("error_margin", 0.0),
        ("score_shift", 0.0),
        ("latency_ratio", 0.5),
        ("steps", (100,)),
    ],
)
def test_settings_that_could_prove_nothing_are_refused_by_name(key, value):
    """One line with the key and what to give."""
    with pytest.raises(UserError, match=f"rollout.{key}"):
        Margins.of(small_recipe(**{key: value}))
