"""The way back from any state: whatever call of the stack fails, traffic ends on stable and the canary is stopped."""

from __future__ import annotations

import shutil
import threading

import pytest

from components.core.errors import TransientError
from tests.fakes.fake_serving import Behaviour, FakeServing
from tests.fakes.rollout_case import make_case


class Killed(BaseException):
    """As KeyboardInterrupt or SystemExit: no Exception."""


def _calls(tmp_path) -> list[tuple[str, int]]:
    """Every call of an undisturbed rollout as (method, how manieth), alive apart from its first few."""
    stack, counts, found = FakeServing(), {}, []
    make_case(tmp_path / "count").run(stack)
    for name, _ in stack.calls:
        counts[name] = counts.get(name, 0) + 1
        if name != "alive" or counts[name] in (1, 2, 40, 100):
            found.append((name, counts[name]))
    return found


def _safe(stack: FakeServing) -> bool:
    return stack.weight == 0 and not stack.shadow and "canary" not in stack.replicas


@pytest.mark.parametrize("error", [TransientError("the proxy is gone"), Killed(), ValueError("a bug")])
def test_whatever_call_fails_the_end_is_stable_and_nothing_is_published(tmp_path, error):
    """Each call of a rollout raises once: the error gets out (or the candidate is blamed), the state is safe."""
    case = make_case(tmp_path)
    for name, call in _calls(tmp_path):
        stack = FakeServing(breaks={name: call}, error=error)
        try:
            report = case.run(stack)
        except type(error):
            assert not (tmp_path / "report").exists(), (name, call)
        else:
            assert report.outcome == "rolled_back", (name, call)
            assert name == "start", (name, call)
            assert isinstance(error, TransientError)
            shutil.rmtree(tmp_path / "report")
        assert _safe(stack), (name, call)
        assert all(decision.http_status == 200 for decision in stack.answered)


def test_a_rollout_run_again_after_a_failure_ends_as_an_undisturbed_one(tmp_path):
    """Killed in the step with the canary at 50 %: the second run on the same stack passes like a first."""
    case = make_case(tmp_path)
    stack = FakeServing(breaks={"alive": 60}, error=Killed())
    with pytest.raises(Killed):
        case.run(stack)
    assert case.run(stack).outcome == "passed"


def test_what_a_killed_controller_left_behind_is_put_right_before_anything_else(tmp_path):
    """SIGKILL leaves weight 50, mirroring on and a canary: the next rollout starts from stable alone."""
    stack = FakeServing()
    stack.start("canary", tmp_path, "9", "old")
    stack.weight, stack.shadow, stack.calls = 50, True, []
    report = make_case(tmp_path).run(stack)
    assert stack.calls[:3] == [("set_weight", 0), ("set_shadow", False), ("stop", "canary")]
    assert report.outcome == "passed"


@pytest.mark.parametrize("stuck", ["set_weight", "set_shadow"])
def test_a_stack_that_cannot_take_the_weight_back_still_loses_the_canary_and_says_so(tmp_path, stuck):
    """After the verdict the call fails for good: TransientError naming it, canary stopped, so that stable answers."""

    class Stuck(FakeServing):
        reached = False

        def _call(self, name, argument):
            super()._call(name, argument)
            self.reached = self.reached or self.weight == 50
            if name == stuck and self.reached and argument in (0, False):
                raise TransientError("the proxy is gone")

    stack = Stuck({"canary": Behaviour(error_rate=1, healthy_requests=300)})
    with pytest.raises(TransientError, match="the proxy is gone"):
        make_case(tmp_path).run(stack)
    assert "canary" not in stack.replicas


def test_failure19_a_stack_that_answers_nothing_at_all_is_no_pass(tmp_path):
    """decide returns nothing: inconclusive at the deadline, and every user counts as failed."""

    class Silent(FakeServing):
        def decide(self, rows, rate, stop=None, under_way=None):
            self.clock.seconds += len(rows) / rate
            return []

    stack = Silent()
    report = make_case(tmp_path, deadline_seconds=5).run(stack)
    assert report.outcome == "inconclusive"
    assert report.failed_requests == report.requests > 0
    assert _safe(stack)


def test_a_stack_that_dies_with_its_canary_is_the_canarys_doing(tmp_path):
    """The load driver fails because the canary took the stack down: rolled back, not an error."""

    class Dragged(FakeServing):
        def decide(self, rows, rate, stop=None, under_way=None):
            if self.weight == 50:
                self.replicas["canary"].alive = False
                raise TransientError("connection refused")
            return super().decide(rows, rate, stop)

    report = make_case(tmp_path).run(Dragged())
    assert report.outcome == "rolled_back"
    assert "alive" in report.reason


def test_a_canary_that_answers_no_golden_row_any_more_does_not_keep_the_verdict_waiting(tmp_path):
    """Well, then failing, and deaf to the rows asked beside the traffic: rolled back while that asking still waits."""
    released, waited = threading.Event(), []

    class Deaf(FakeServing):
        def score_arm(self, arm, rows):
            if arm == "canary" and self.weight:
                waited.append(released.wait(60))
            return super().score_arm(arm, rows)

    case = make_case(tmp_path, shadow_requests=0, min_canary_requests=10_000)
    report = case.run(Deaf({"canary": Behaviour(error_rate=1.0, healthy_requests=400)}))
    asked = [thread for thread in threading.enumerate() if thread.name == "rollout-sentinel"]
    assert report.outcome == "rolled_back"
    assert {rule.rule for rule in report.rules if rule.outcome == "fail"} & {"errors", "failures_in_a_row"}
    assert len(asked) == 1, "one asking at a time, and it still waits"
    assert waited == []
    released.set()
    asked[0].join(10)


def test_a_stack_that_ignores_stop_is_judged_on_everything_at_the_end(tmp_path):
    """A simple adapter may send all requests and return: the verdict is the same kind."""

    class Plain(FakeServing):
        def decide(self, rows, rate, stop=None, under_way=None):
            return super().decide(rows, rate)

    assert make_case(tmp_path, deadline_seconds=30).run(Plain()).outcome == "passed"
    bad = Plain({"canary": Behaviour(error_rate=0.3, healthy_requests=1000)})
    assert make_case(tmp_path / "bad", deadline_seconds=30).run(bad).outcome == "rolled_back"
