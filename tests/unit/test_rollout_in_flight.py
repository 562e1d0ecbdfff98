"""Requests under way and answers of another model: what the judge is told of them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from components.core.protocols import OPEN, Decision
from components.rollout.observations import Observation, observe
from components.rollout.tallies import Tallies
from components.rollout.traffic import Traffic
from tests.fakes.rollout_case import small_recipe
from tests.fakes.verdict_traffic import design_margins

VERSIONS, LABELS = {"stable": "1", "canary": "2"}, ("no", "yes")


def _decision(drawn: str, seconds: float = 0.02, **changes: object) -> Decision:
    values = {
        "http_status": 200, "status": "ok", "label": "no", "score": 0.1, "model_version": VERSIONS.get(drawn, ""),
        "drawn": drawn, "answered_by": drawn or "none", "weight": 0.5, "seconds": seconds, "model_seconds": seconds,
    }  # fmt: skip
    return Decision(**(values | changes))


def _open(drawn: str, seconds: float) -> Decision:
    return _decision(
        drawn, seconds, http_status=0, status=OPEN, label=None, score=None, model_version="", answered_by="none"
    )


class Scripted:
    """A stack that is asked twice: two answers, then a canary that hangs and an answer behind it."""

    def decide(self, rows, rate, stop=None, under_way=None):
        """Gives all but what hangs."""
        answered = [_decision("stable"), _decision("canary")]
        assert not stop(answered)
        assert not under_way([_open("", 0.1)])
        assert not stop(answered)
        assert under_way([_open("canary", 3.0), _decision("stable"), _open("", 0.2)])
        return [*answered, _decision("canary", 5.0, status="fallback", answered_by="stable", failure="timeout")]


def test_what_is_under_way_is_shown_after_what_has_ended_with_its_draw_and_age_and_can_end_the_drive() -> None:
    """Each look ahead begins behind the last that ended; ages count, outcomes do not; the hang comes back last."""
    row = {"row_id": "r", "entities": {"shop": "corner"}}
    replay = SimpleNamespace(draw=lambda count: [row] * count, evaluated={}, outcomes={})
    traffic = Traffic(Scripted(), replay, small_recipe(), VERSIONS, lambda: 0.0)
    ended: list[Observation] = []
    ahead: list[list[Observation]] = []

    def look_ahead(waiting):
        ahead.append(list(waiting))
        return len(ahead) == 2

    seen = traffic.drive(9, lambda fresh: bool(ended.extend(fresh)), look_ahead)
    assert [one.drawn_arm for one in ended] == ["stable", "canary"]
    told = [[(one.drawn_arm, one.open, one.own.seconds) for one in waiting] for waiting in ahead]
    assert told == [[("", True, 0.1)], [("canary", True, 3.0), ("stable", False, 0.02), ("", True, 0.2)]]
    assert not any(one.own.failed or one.own.invalid or one.user_failed for waiting in ahead for one in waiting)
    assert [one.own.failed for one in seen] == [False, False, True]
    assert (traffic.requests, traffic.failed_requests) == (3, 0)


@pytest.mark.parametrize(("drawn", "rule"), [("canary", ("version", "canary")), ("stable", None)])
def test_an_answer_of_another_model_is_a_surprise_of_the_arm_that_was_drawn(drawn, rule) -> None:
    """The canary's ends the rollout without statistics; stable's shows that the routing is not what it should be."""
    tallies = Tallies(design_margins())
    fallback = {"status": "fallback", "answered_by": "stable", "model_version": "1"}
    tallies.add(observe(_decision(drawn, failure="wrong_model", **fallback), VERSIONS, LABELS), 50)
    found = tallies.hard_failure()
    assert (found is None) == (rule is None)
    assert found is None or (found[0], found[1].split()[0]) == rule
    assert bool(tallies.stable_surprise) == (drawn == "stable")


@pytest.mark.parametrize(
    ("failure", "failed", "invalid", "surprise"),
    [("invalid", False, True, False), ("http_500", True, False, False), ("wrong_model", True, False, True)],
)
def test_a_mirrored_answer_tells_how_it_failed(failure, failed, invalid, surprise) -> None:
    """Malformed answers count as invalid, not as errors; another model is the canary's surprise."""
    decision = _decision("stable", shadow_ok=False, shadow_failure=failure, shadow_seconds=0.1, weight=0.0)
    seen = observe(decision, VERSIONS, LABELS)
    assert (seen.mirrored.failed, seen.mirrored.invalid) == (failed, invalid)
    assert seen.surprise.startswith("canary") == surprise
    assert math.isclose(seen.mirrored.seconds, 0.1)
