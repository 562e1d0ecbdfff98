"""Failure 20: from any state, abort returns all traffic to stable, also after the controller died."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from components.core.home import Home
from components.core.ledger import Ledger
from components.rollout import journal as book
from components.rollout.page import page_markdown, timeline_svg
from pipelines import cli
from pipelines.rollouts import abort, status
from tests.fakes.fake_serving import FakeServing
from tests.fakes.killed_rollout import RUN, moments, run_and_die
from tests.fakes.rollout_case import Case, make_case

BAKED = {"steps": (10, 50), "min_canary_requests": 50, "bake_seconds": 25.0, "warm_seconds": 7.0}
STATES = ("golden", "shadow", "step 10 %", "step 50 %", "bake", "full")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A case whose ledger is the home's."""
    case = make_case(tmp_path, **BAKED)
    monkeypatch.setenv("PILOTLINE_LEDGER_URL", case.ledger_url)
    return case


def _rollout(case: Case) -> str:
    with closing(Ledger(case.ledger_url)) as ledger:
        return next(iter(book.rollouts(ledger)))


def _ask_when(monkeypatch: pytest.MonkeyPatch, case: Case, state: str) -> None:
    """Somebody asks as soon as this state is in the ledger."""
    enter = book.Journal.enter

    def asked(self, name, text, weight=0, **more):
        enter(self, name, text, weight, **more)
        if name == state:
            with closing(Ledger(case.ledger_url)) as ledger:
                book.ask_abort(ledger, self.about.id, "alice", "customers call")
            time.sleep(0.6)  # the watch looks twice a second of real time; the fake's seconds cost none

    monkeypatch.setattr(book.Journal, "enter", asked)


@pytest.mark.parametrize("state", STATES)
def test_failure20_abort_returns_all_traffic_from_any_state(case, monkeypatch, state) -> None:
    """Rolled back by the rule that says who and why; weight 0, no mirroring, canary stopped, stable lives."""
    _ask_when(monkeypatch, case, state)
    stack = FakeServing()
    report = case.run(stack, run_id=RUN)
    assert report.outcome == "rolled_back"
    assert "alice: customers call" in report.reason
    assert [rule.rule for rule in report.rules if rule.outcome == "fail"] == ["aborted"]
    assert (stack.weight, stack.shadow) == (0, False)
    assert "canary" not in stack.replicas
    assert report.failed_requests == 0
    assert moments(case)[-2:] == ["1:aborting", "end"]


@pytest.mark.parametrize("state", STATES)
def test_failure20_abort_after_the_controller_died(case, tmp_path, state) -> None:
    """No controller lives: abort records the end itself; the run started again returns it and serves nothing."""
    run_and_die(case, f"1:{state}", True, {})
    home = Home.at(tmp_path / "home")
    assert status(home)["state"] == state
    assert status(home)["controller"] == ""
    began = time.monotonic()
    told = abort(home, "too slow", "bob")
    assert time.monotonic() - began < 10
    assert (told["state"], told["outcome"], told["weight"]) == ("aborted", "rolled_back", 0)
    stack = FakeServing()
    report = case.run(stack, run_id=RUN)
    assert report.outcome == "rolled_back"
    assert "asked for by bob: too slow; no controller leads it" in report.reason
    assert stack.calls == []
    assert [event.stage for event in report.timeline][-2:] == [state, "retreat"]
    assert "<svg" in timeline_svg(report)  # the run's page shows it
    assert state in page_markdown(report)


def test_failure20_a_controller_that_died_on_its_way_back_goes_it_to_the_end(case, tmp_path, monkeypatch) -> None:
    """Asked, then killed before the end was written: started again it is rolled back with the first one's words."""
    run_and_die(case, "1:step 50 %", True, {})
    with closing(Ledger(case.ledger_url)) as ledger:
        book.ask_abort(ledger, _rollout(case), "alice", "first")
        book.ask_abort(ledger, _rollout(case), "bob", "second")
    report = case.run(stack := FakeServing(), run_id=RUN)
    assert report.outcome == "rolled_back"
    assert "alice: first" in report.reason
    assert (stack.weight, stack.answered) == (0, [])


def test_failure20_whoever_is_first_has_it(case) -> None:
    """An abort after the last state is refused with the way that is left; status says how it ended."""
    case.run(FakeServing(), run_id=RUN)
    home = Home.at(case.root / "home")
    assert cli.main(["rollout", "abort", "--home", str(home.root)]) == 2
    assert status(home)["state"] == "done"
    assert status(home)["weight"] == 100


def test_failure20_the_command_prints_json_and_its_exit_status(case, capsys) -> None:
    """abort: 0 and the end as JSON; status the same; where nothing is under way 2 with one line."""
    run_and_die(case, "1:shadow", True, {})
    home = str(case.root / "home")
    assert cli.main(["rollout", "abort", "--reason", "wrong week", "--home", home, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["state"], told["outcome"]) == ("aborted", "rolled_back")
    assert told["abort"]["reason"] == "wrong week"
    assert cli.main(["rollout", "status", "--home", home, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == told
    assert cli.main(["rollout", "status", "--home", home]) == 0
    assert "rolled_back" in capsys.readouterr().out
    assert cli.main(["rollout", "abort", "--home", home, "--json"]) == 0  # again: it is so
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == told
    assert cli.main(["rollout", "abort", "--home", home, "--name", "another"]) == 2
    assert "no rollout is under way" in capsys.readouterr().err


def test_failure20_a_hanging_stack_still_loses_its_weight_at_once(case, monkeypatch) -> None:
    """The controller is stuck in a call of the stack: the weight is 0 within two seconds of the request."""
    zero_after: list[float] = []

    class Stuck(FakeServing):
        asked_at = 0.0

        def decide(self, rows, rate, stop=None, under_way=None):
            if self.weight == 50 and not self.asked_at:
                self.asked_at = time.monotonic()
                with closing(Ledger(case.ledger_url)) as ledger:
                    book.ask_abort(ledger, _rollout(case), "alice", "stuck")
                released.wait(20)
            return super().decide(rows, rate, stop)

        def set_weight(self, percent):
            super().set_weight(percent)
            if self.asked_at and percent == 0 and not zero_after:
                zero_after.append(time.monotonic() - self.asked_at)
                released.set()

    released = threading.Event()
    report = case.run(Stuck(), run_id=RUN)
    assert report.outcome == "rolled_back"
    assert zero_after[0] < 2.0
