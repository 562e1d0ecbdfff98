"""No evidence never passes: whatever is missing, NaN or out of range, and in whatever order it comes."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from components.core.protocols import Decision
from components.rollout.golden import golden_rules
from components.rollout.observations import observe, valid_score
from components.rollout.slo import slo_rules, upper_bound
from components.rollout.verdict import FAIL, PASS, Judge
from tests.fakes.rollout_case import small_recipe
from tests.fakes.rollout_traffic import laptop_margins

VERSIONS = {"stable": "1", "canary": "2"}
LABELS = ("no", "yes")
NO_SCORE = st.sampled_from([None, math.nan, math.inf, -math.inf, -0.01, 1.01, "0.5"])
NO_TIME = st.sampled_from([None, math.nan, math.inf, -1.0])
GOOD = Decision(
    http_status=200, status="ok", label="no", score=0.1, model_version="1", drawn="stable",
    answered_by="stable", weight=0.5, seconds=0.02,
)  # fmt: skip


def _judge(weight: int) -> Judge:
    judge = Judge(laptop_margins(pairs=20, canary_requests=20), 1)
    if weight:
        judge.begin_step(weight)
    else:
        judge.begin_shadow()
    return judge


def _canary(**changes: object) -> Decision:
    return replace(GOOD, drawn="canary", answered_by="canary", model_version="2", **changes)


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from([0, 50]), st.integers(0, 300))
def test_a_canary_that_never_gives_a_valid_score_never_passes(data, weight, requests):
    """Every canary answer lacks a probability in some way: pass is out of reach at any number of requests."""
    judge = _judge(weight)
    for number in range(requests):
        score = data.draw(NO_SCORE) if number < 40 else None
        if weight == 0:
            decision = replace(GOOD, weight=0.0, shadow_score=score, shadow_ok=True, shadow_seconds=0.02)
        else:
            decision = _canary(score=score) if number % 2 else GOOD
        judge.add(observe(decision, VERSIONS, LABELS))
        assert judge.verdict(number / 30, 150).outcome != PASS
    assert judge.verdict(150, 150).outcome != PASS


@settings(max_examples=15, deadline=None)
@given(NO_TIME, st.integers(1, 200))
def test_a_canary_whose_latency_is_unknown_never_passes(seconds, pairs):
    """No time, NaN and negative times count as slow, not as fast."""
    judge = Judge(laptop_margins(canary_requests=20), 1)
    judge.baseline([observe(GOOD, VERSIONS, LABELS)] * 60)
    judge.begin_step(50)
    for _ in range(pairs):
        judge.add(observe(GOOD, VERSIONS, LABELS))
        judge.add(observe(_canary(seconds=seconds), VERSIONS, LABELS))
    assert judge.verdict(150, 150).outcome != PASS


@given(st.floats(allow_nan=True), st.floats(allow_nan=True), st.sampled_from([0, 50]))
@example(math.nan, math.nan, 50)
def test_an_empty_stage_never_passes_at_any_time(elapsed, deadline, weight):
    """Whatever the clock and the deadline say."""
    assert _judge(weight).verdict(elapsed, deadline).outcome not in (PASS, FAIL)


@settings(max_examples=80, deadline=None)
@given(
    st.builds(
        Decision,
        http_status=st.sampled_from([0, 200, 204, 429, 500, 503]),
        status=st.sampled_from(["ok", "fallback", "refused", ""]),
        label=st.sampled_from(["no", "yes", None, "", "maybe", "Yes"]),
        score=st.one_of(NO_SCORE, st.floats(0, 1)),
        model_version=st.sampled_from(["1", "2", "", "7"]),
        drawn=st.sampled_from(["stable", "canary", "", "other"]),
        answered_by=st.sampled_from(["stable", "canary", "baseline", "none", ""]),
        weight=st.sampled_from([0.0, 0.1, 0.5, 1.0, math.nan]),
        seconds=st.one_of(NO_TIME, st.floats(0, 10)),
        shadow_score=st.one_of(NO_SCORE, st.floats(0, 1)),
        shadow_ok=st.sampled_from([None, True, False]),
        shadow_seconds=st.one_of(NO_TIME, st.floats(0, 10)),
    ),
    st.sampled_from([0, 50]),
)
def test_whatever_a_decision_holds_it_is_read_and_counted_once(decision, weight):
    """No field's value breaks the reading; a failed or invalid side has no score; the judge takes it in."""
    seen = observe(decision, VERSIONS, LABELS)
    for side in (seen.own, seen.mirrored):
        assert side is None or (side.score is not None) == (not side.failed and not side.invalid)
        assert side is None or side.score is None or valid_score(side.score)
        assert side is None or side.seconds >= 0
    assert seen.user_failed or (decision.http_status < 300 and decision.label in LABELS)
    judge = _judge(weight)
    judge.add(seen)
    assert judge.verdict(1, 150).outcome != PASS
    assert all(rule.observed is None or math.isfinite(rule.observed) for rule in judge.verdict(1, 150, last=True).rules)


@given(st.lists(st.one_of(NO_SCORE, st.floats(0, 1)), max_size=12), st.lists(st.floats(0, 1), max_size=12))
def test_golden_answers_pass_only_where_each_row_has_its_own_score_again(served, evaluated):
    """Oracle: both rules pass exactly where the lists agree in length, validity and value, and are not empty."""
    rules = golden_rules(served, evaluated, 0.001, "golden set")
    agrees = (
        len(evaluated) > 0
        and len(served) >= len(evaluated)
        and all(valid_score(one) and abs(one - two) <= 0.001 for one, two in zip(served, evaluated, strict=False))
    )
    assert ({rule.outcome for rule in rules} == {"pass"}) == agrees


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 200))
def test_the_first_versions_check_passes_only_within_its_limits_and_with_enough_requests(good, late):
    """Oracle by scipy's exact binomial bound; nothing seen is insufficient throughout."""
    from scipy.stats import beta

    rollout = small_recipe(slo_requests=100).rollout
    seen = [observe(GOOD, VERSIONS, LABELS)] * good + [observe(replace(GOOD, seconds=2.0), VERSIONS, LABELS)] * late
    outcomes = {rule.rule: rule.outcome for rule in slo_rules(seen, rollout)}
    total = good + late
    bound = 1.0 if total == late else beta.ppf(0.95, late + 1, good)
    assert math.isclose(upper_bound(late, total), bound, abs_tol=1e-9)
    assert (outcomes["latency_p95"] == "pass") == (bound <= 0.05)
    assert (outcomes["samples"] == "pass") == (total >= 100)
    if not total:
        assert set(outcomes.values()) == {"insufficient"}
