"""The judge beyond a plain step: bake, extension, sticky draws, hangs, late labels, a controller that died, 100 %."""

from __future__ import annotations

import json

import pytest

from components.core.errors import IntegrityError, UserError
from components.rollout.absolute import Absolute
from components.rollout.labels import Labelled
from components.rollout.margins import BUDGET, Margins
from components.rollout.observations import ArmOutcome, Observation
from components.rollout.verdict import CONTINUE, FAIL, INCONCLUSIVE, PASS, Judge
from tests.fakes.rollout_case import small_recipe
from tests.fakes.verdict_traffic import design_margins

CANDIDATE, STABLE = "a" * 64, "b" * 64


def _seen(arm: str, weight: float = 0.5, failed: bool = False, seconds: float = 0.1, **more: object) -> Observation:
    own = ArmOutcome(failed, False, seconds, None if failed else 0.1)
    return Observation(arm, weight, own, None, False, seconds, expected=0.1, **more)  # type: ignore[arg-type]


def _judge(steps: int = 1, baseline_failed: int = 0, **margins: object) -> Judge:
    judge = Judge(design_margins(**margins), steps, (CANDIDATE, STABLE))
    judge.baseline([_seen("stable", seconds=0.1 + 0.001 * n, failed=n < baseline_failed) for n in range(60)])
    return judge


def _feed(judge: Judge, requests: int, every: int = 2, weight: float = 0.5, **canary: object) -> None:
    """Each `every`-th request goes to the canary."""
    for number in range(requests):
        drawn = number % every == every - 1
        seconds = {"seconds": 0.1 + 0.001 * (number // every % 60)}
        judge.add(_seen("canary", weight, **(seconds | canary)) if drawn else _seen("stable", weight, **seconds))  # type: ignore[arg-type]


def test_a_bake_is_held_to_its_end_and_needs_nothing_new_to_be_proved():
    """At 95 % for 60 s: open before its end, a pass at it, by the rule that says so."""
    judge = _judge()
    judge.begin_bake(95)
    for number in range(600):
        judge.add(_seen("stable" if number % 20 == 0 else "canary", 0.95))
    assert judge.verdict(59.0, 60.0).outcome == CONTINUE
    verdict = judge.verdict(60.0, 60.0)
    assert (verdict.outcome, verdict.rule) == (PASS, "held")
    assert "bake 95 %" in verdict.text
    assert {rule.rule for rule in verdict.rules} == {"samples", "routing", "harm"}


@pytest.mark.parametrize("requests", [0, 90])
def test_a_bake_without_enough_requests_is_inconclusive(requests):
    """No data never passes, however long it was held."""
    judge = _judge()
    judge.begin_bake(95)
    _feed(judge, requests, every=1, weight=0.95)
    assert judge.verdict(60.0, 60.0).outcome == INCONCLUSIVE


def test_harm_that_began_in_a_step_goes_on_in_the_bake():
    """The process of the step counts the bake's failures: a canary that turns bad at 95 % is aborted."""
    judge = _judge(failures_in_a_row=10**9)
    judge.begin_step(50)
    _feed(judge, 100)
    judge.begin_bake(95)
    for number in range(260):
        judge.add(_seen("stable" if number % 20 == 0 else "canary", 0.95, failed=number % 20 != 0 and number % 2 == 0))
    verdict = judge.verdict(13.0, 60.0)
    assert (verdict.outcome, verdict.rule) == (FAIL, "errors")


def test_the_deadline_is_extended_once_where_data_came_and_not_where_none_did():
    """150 + 60 s: open at 160 with some requests, over at 210; over at 150 with none."""
    judge = _judge(extend_seconds=60.0)
    judge.begin_step(50)
    assert judge.verdict(150.0, 150.0).outcome == INCONCLUSIVE
    _feed(judge, 40)
    assert judge.verdict(160.0, 150.0).outcome == CONTINUE
    assert "extended by 60 s" in judge.verdict(160.0, 150.0).text
    assert judge.verdict(210.0, 150.0).outcome == INCONCLUSIVE


def test_with_sticky_draws_an_entity_counts_once_however_often_it_comes():
    """Ten entities with 100 requests each are ten samples, and the line says that entities are counted."""
    judge = _judge(sticky=True)
    judge.begin_step(50)
    for number in range(1000):
        unit = number % 10
        judge.add(_seen("canary" if unit % 2 else "stable", unit=f"customer {unit}"))
    assert judge.tallies.samples(50) == 5
    verdict = judge.verdict(10, 150)
    assert verdict.outcome == CONTINUE
    assert "counted by entity" in verdict.text


def test_with_sticky_draws_a_dead_canary_is_stopped_by_its_row_of_failures_all_the_same():
    """The rules without statistics look at every request, also those that repeat a draw."""
    judge = _judge(sticky=True)
    judge.begin_step(50)
    for _ in range(30):
        judge.add(_seen("stable", unit="one"))
    for _ in range(5):
        judge.add(_seen("canary", failed=True, unit="two"))
        judge.add(_seen("stable", unit="one"))
    assert judge.verdict(2, 150).rule == "failures_in_a_row"


def test_hanging_requests_are_slow_once_their_age_passes_the_limit_without_having_ended():
    """No canary request ever ends: looks at the open ones alone abort it, by latency; fast ones behind wait."""
    judge, arrivals = _judge(), []
    judge.begin_step(50)
    for number in range(80):
        arm = "canary" if number % 2 else "stable"
        hangs = arm == "canary"
        age = (80 - number) * 0.05
        own = ArmOutcome(False, False, age if hangs else 0.1, None if hangs else 0.1)
        arrivals.append(Observation(arm, 0.5, own, None, False, own.seconds, expected=0.1, open=hangs))
    judge.open(arrivals[:2])
    assert judge.verdict(0.1, 150).outcome == CONTINUE
    judge.open(arrivals)
    verdict = judge.verdict(4.0, 150)
    assert verdict.outcome == FAIL
    assert verdict.rule.startswith("latency")


def test_a_request_whose_draw_is_not_known_yet_holds_up_those_behind_it():
    """What is open without a draw may belong to either arm: nothing behind it counts yet."""
    judge = _judge()
    judge.begin_step(50)
    hanging = ArmOutcome(False, False, 60.0, None)
    late = Observation("canary", 0.5, hanging, None, False, 60.0, open=True)
    judge.open([Observation("", 0.0, hanging, None, False, 60.0, open=True), *[late] * 50])
    assert judge.total_evidence()[0] == pytest.approx(1.0)


def test_labels_that_arrive_after_the_shadow_stop_a_canary_that_orders_wrongly():
    """In a step, labels of mirrored requests come in: stable is right, the canary's order is reversed; AUC says so."""
    judge = _judge(log_loss=0.99)
    judge.begin_shadow()
    judge.begin_step(50)
    for number in range(1200):
        outcome = number % 2
        score = 0.5 + (0.1 if outcome else -0.1)
        judge.label(Labelled(outcome, score, 1 - score))
    verdict = judge.verdict(10, 150)
    assert (verdict.outcome, verdict.rule) == (FAIL, "auc")
    assert "AUC canary 0.000, stable 1.000 on 600 pairs" in verdict.text


def test_a_label_counts_in_the_processes_that_its_request_belonged_to():
    """A label of a 10 % request does not reach the process that began at 50 %; one of a 50 % request reaches both."""
    judge = _judge(steps=2)
    judge.begin_step(10)
    judge.begin_step(50)
    for weight, moved in ((0.1, [True, False]), (0.5, [True, True])):
        before = [one["tests"]["log_loss"] for one in judge.memory()["harm"]]
        judge.label(Labelled(1, None, 0.01, "canary", weight, 0.9))
        after = [one["tests"]["log_loss"] for one in judge.memory()["harm"]]
        assert [one != two for one, two in zip(before, after, strict=True)] == moved


def test_evidence_of_harm_survives_the_death_of_its_controller():
    """Through JSON: the total is the same, the interrupted step is not begun twice, and little more ends it."""
    judge = _judge(steps=2, failures_in_a_row=10**9)
    judge.begin_step(10)
    for number in range(400):
        judge.add(_seen("canary" if number % 10 == 0 else "stable", 0.1, failed=number in (50, 100, 150)))
    memory = json.loads(json.dumps(judge.memory()))
    again = Judge.resume(design_margins(), 2, (CANDIDATE, STABLE), memory)
    assert again.total_evidence() == (pytest.approx(judge.total_evidence()[0]), judge.total_evidence()[1])
    again.begin_step(10)
    assert len(again.memory()["harm"]) == 1
    assert again.total_evidence()[0] == pytest.approx(judge.total_evidence()[0])
    assert again.tallies.samples(10) == 0
    again.begin_step(50)
    assert len(again.memory()["harm"]) == 2


def test_evidence_for_a_pass_goes_on_in_the_interrupted_stage_alone_and_needs_its_samples_again():
    """Half proved at 10 % when the controller died: the stages before are skipped, then it goes on where it was."""
    judge = _judge(steps=2)
    for begin in (judge.begin_shadow, lambda: judge.begin_step(10)):
        begin()
    for number in range(600):
        judge.add(_seen("canary" if number % 10 == 0 else "stable", 0.1))
    kept = judge.evidence_for("errors")
    assert kept > 1.5
    again = Judge.resume(design_margins(), 2, (CANDIDATE, STABLE), json.loads(json.dumps(judge.memory())))
    again.begin_shadow()
    assert again.evidence_for("errors") == 1.0
    again.begin_step(10)
    assert again.evidence_for("errors") == pytest.approx(kept)
    assert again.tallies.samples(10) == 0
    again.begin_step(50)
    assert again.evidence_for("errors") == 1.0


def test_a_sticky_draw_that_was_counted_before_the_controller_died_is_not_counted_again():
    """The same customers come back to the same step: their draws are known, only new ones are samples."""
    judge = _judge(sticky=True)
    judge.begin_step(50)
    for number in range(20):
        judge.add(_seen("canary" if number % 2 else "stable", unit=f"customer {number}"))
    memory = json.loads(json.dumps(judge.memory()))
    assert "customer" not in json.dumps(memory)
    again = Judge.resume(design_margins(sticky=True), 1, (CANDIDATE, STABLE), memory)
    again.begin_step(50)
    for number in range(26):
        again.add(_seen("canary" if number % 2 else "stable", unit=f"customer {number}"))
    assert again.tallies.samples(50) == 3


def test_a_new_digest_forgets_all_evidence():
    """Another candidate is judged by its own requests."""
    judge = _judge()
    judge.begin_step(50)
    _feed(judge, 40, failed=True)
    again = Judge.resume(design_margins(), 1, ("c" * 64, STABLE), judge.memory())
    assert again.total_evidence() == (1.0, "")


@pytest.mark.parametrize("memory", [{}, {"harm": None}, {"harm": [{"weight": 10}]}, {"harm": [], "steps": 3}])
def test_a_damaged_memory_is_an_integrity_error_and_never_a_fresh_start(memory):
    """Evidence of harm that cannot be read is not taken for none."""
    with pytest.raises(IntegrityError, match="rollout"):
        Judge.resume(design_margins(), 1, (CANDIDATE, STABLE), {"digests": [CANDIDATE, STABLE], "steps": 1} | memory)


def test_a_stable_that_fails_since_the_canary_came_ends_inconclusive_and_never_passes():
    """Both fail at 5 %, stable did not before: they may share a machine; the reason names the figures."""
    judge = _judge(stable_errors=0.5, errors=0.2, step_errors=(), latency_ratio=4.0)
    judge.baseline([_seen("stable") for _ in range(400)])
    judge.begin_step(50)
    for number in range(4000):
        judge.add(_seen("canary" if number % 2 else "stable", failed=number // 2 % 20 == 0))
    assert judge.verdict(100, 150).outcome == CONTINUE
    verdict = judge.verdict(150, 150)
    assert (verdict.outcome, verdict.rule) == (INCONCLUSIVE, "stable")
    assert "stable fails since the canary came: 100/2000, before 0/400" in verdict.text


def test_each_step_asks_for_its_own_margin():
    """+2 pp at 10 %, +1 pp at 50 %, and harm beyond half a point in both."""
    judge = _judge(steps=2)
    for weight, asked in ((10, "margin +2 pp to pass"), (50, "margin +1 pp to pass")):
        judge.begin_step(weight)
        text = judge.tallies.text("errors", weight)
        assert asked in text
        assert "+0.5 pp to fail" in text


def test_a_verdict_names_the_two_versions_by_digest_and_holds_in_one_line():
    """All that was promised: what, where, counts with intervals, margin, evidence, time, guarantee, action, digests."""
    judge = _judge(failures_in_a_row=10**9)
    judge.begin_step(50)
    _feed(judge, 60, failed=True)
    text = judge.verdict(3.0, 150).text
    for part in (
        "FAIL, step 50 %, errors: canary 30/30 (100.0%, ",
        "stable 0/30",
        "+0.5 pp to fail",
        " ≥ 20",
        "3.0 of 150 s",
        "α 0.05 for the whole rollout at any number of looks",
        "traffic back on stable",
        "candidate aaaaaaaaaaaa against stable bbbbbbbbbbbb",
    ):
        assert part in text
    assert "\n" not in text


def test_the_budget_is_the_designs():
    """Errors .40, latency .25, invalid .15, scores and flips .10, labels .10."""
    groups = {"errors": 0.4, "invalid": 0.15, "latency": 0.25, "score": 0.08, "label": 0.02, "log_loss": 0.05}
    for prefix, share in (groups | {"auc": 0.05}).items():
        assert sum(v for name, v in BUDGET.items() if name.startswith(prefix)) == pytest.approx(share)


@pytest.mark.parametrize(
    "asked", [{"error_margins": (0.02, 0.01)}, {"error_margins": (0.0,)}, {"error_margin": 0.01, "harm_margin": 0.02}]
)
def test_margins_that_contradict_each_other_are_refused_by_name(asked):
    """Two margins for one step, a margin of nothing, a pass beyond what aborts."""
    with pytest.raises(UserError, match=r"rollout\.error_margins"):
        Margins.of(small_recipe(**asked))


def _full(requests: int, bad: int, **how: object) -> Absolute:
    watch = Absolute(small_recipe().rollout, CANDIDATE)
    for number in range(requests):
        watch.add(_seen("canary", 1.0, **(how if number < bad else {})))  # type: ignore[arg-type]
    return watch


def test_at_full_traffic_limits_are_absolute():
    """Within the limits it stays, beyond it goes by the rule that names it, and without requests nothing is said."""
    assert _full(200, 0).verdict(10, 60).outcome == CONTINUE
    assert _full(200, 0).verdict(60, 60).outcome == PASS
    assert _full(10, 0).verdict(60, 60).outcome == INCONCLUSIVE
    assert _full(0, 0).verdict(60, 60).outcome == INCONCLUSIVE
    failing, late = _full(40, 20, failed=True).verdict(2, 60), _full(60, 40, seconds=3.0).verdict(3, 60)
    assert (failing.outcome, failing.rule) == (FAIL, "errors")
    assert (late.outcome, late.rule) == (FAIL, "latency_p95")
    assert "20/40 failed" in failing.text
    other = _full(1, 1, surprise="canary answered as '7', not '2'").verdict(1, 60)
    assert (other.outcome, other.rule) == (FAIL, "version")


def test_two_bad_answers_at_full_traffic_are_no_reason():
    """However improbable: a limit is not broken by two requests."""
    assert _full(2, 2, failed=True).verdict(1, 60).outcome == CONTINUE
