"""The controller is killed before and after all that it writes, and started again: the same end, counted once."""

from __future__ import annotations

from contextlib import closing

import pytest

from components.core.errors import TransientError
from components.core.ledger import Ledger
from components.core.records import RolloutReport
from components.rollout import journal as book
from tests.fakes.fake_serving import Behaviour, FakeServing
from tests.fakes.killed_rollout import RUN, entries, moments, run_and_die
from tests.fakes.rollout_case import Case, make_case

BAKED = {"steps": (10, 50), "min_canary_requests": 50, "bake_seconds": 25.0, "warm_seconds": 7.0}
GOOD, BAD = Behaviour(), Behaviour(error_rate=1.0, healthy_requests=300)
BAD_AGAIN = Behaviour(error_rate=1.0, healthy_requests=70)  # well through the golden set only
# Every entry that the rollout of each kind writes; a test below holds that these are all.
PASSES = (
    "1:begin", "1:golden", "1:shadow", "passed:shadow", "1:step 10 %", "passed:step 10 %", "1:step 50 %",
    "passed:step 50 %", "1:bake", "passed:bake", "1:full", "end",
)  # fmt: skip
FAILS = ("1:begin", "1:golden", "1:shadow", "passed:shadow", "1:step 50 %", "1:aborting", "end")
WHEN = pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.full), pytest.param(True, id="after")]
)
FIRST = ("1:begin", "1:golden", "1:slo", "passed:slo", "1:full", "end")


def _rules(report: RolloutReport) -> set[tuple[str, str, str]]:
    return {(rule.subject, rule.rule, rule.outcome) for rule in report.rules}


@pytest.mark.parametrize(
    ("written", "settings", "canary", "champion"),
    [(PASSES, BAKED, GOOD, True), (FAILS, {}, BAD, True), (FIRST, {}, GOOD, False)],
)
def test_the_entries_are_those_that_are_tried_below(tmp_path, written, settings, canary, champion) -> None:
    """An undisturbed rollout writes exactly these, besides the memory of its evidence."""
    case = make_case(tmp_path, champion=champion, **settings)
    case.run(FakeServing({"canary": canary}), run_id=RUN)
    assert [key for key in moments(case) if "memory" not in key] == list(written)


def _killed_and_again(case: Case, at: str, after: bool, canary: Behaviour) -> tuple[RolloutReport, FakeServing]:
    run_and_die(case, at, after, {"canary": canary})
    stack = FakeServing({"canary": BAD_AGAIN if canary is BAD else canary})
    return case.run(stack, run_id=RUN), stack


@WHEN
@pytest.mark.parametrize("at", PASSES)
def test_a_pass_stays_a_pass_wherever_the_controller_is_killed(tmp_path, at, after) -> None:
    """Passed, the same stages proved, and one end; the second controller counts only what it saw itself."""
    case = make_case(tmp_path, **BAKED)
    report, stack = _killed_and_again(case, at, after, GOOD)
    assert report.outcome == "passed"
    subjects = {rule.subject for rule in report.rules}
    assert {"shadow", "step 10 %", "step 50 %", "bake 95 %"} <= subjects
    assert [key for key in moments(case) if key == "end"] == ["end"]
    if at == "end" and after:
        assert stack.calls == []  # it was over: published again, nothing served
    else:
        assert report.requests == len(stack.answered) > 0
        assert stack.weight == 100
        told = any("the one before ended" in event.text for event in report.timeline)
        assert told == ((at, after) != (PASSES[0], False))


@pytest.mark.parametrize("at", PASSES[2:9])
def test_samples_for_a_pass_are_never_carried_over_a_death(tmp_path, at) -> None:
    """The stage that was interrupted needs its requests again, whatever was proved of it before."""
    case = make_case(tmp_path, **BAKED)
    report, stack = _killed_and_again(case, at, True, GOOD)
    before = {e.payload["state"] for e in entries(case) if e.payload["event"] == "passed" and e.payload["start"] == 1}
    served = {decision.weight for decision in stack.answered if decision.drawn == "canary"}
    for weight in (10, 50):
        assert (weight / 100 in served) == (f"step {weight} %" not in before)
        if f"step {weight} %" not in before:
            drawn = sum(d.drawn == "canary" for d in stack.answered if d.weight == weight / 100)
            samples = [r for r in report.rules if (r.rule, r.subject) == ("samples", f"step {weight} %")]
            assert 50 <= samples[0].observed <= drawn


@WHEN
@pytest.mark.parametrize("at", FAILS)
def test_a_bad_canary_is_stopped_wherever_the_controller_is_killed(tmp_path, at, after) -> None:
    """Rolled back, all traffic on stable, no canary left, one end; a verdict that was written is not changed."""
    case = make_case(tmp_path)
    report, stack = _killed_and_again(case, at, after, BAD)
    assert report.outcome == "rolled_back"
    assert stack.weight == 0
    assert not stack.shadow
    assert "canary" not in stack.replicas
    assert [key for key in moments(case) if key == "end"] == ["end"]
    if (at, after) in (("1:aborting", True), ("end", False)):
        assert stack.answered == []  # the verdict stood: only the way back was left


@WHEN
@pytest.mark.parametrize("at", FIRST)
def test_a_first_version_ends_the_same_wherever_the_controller_is_killed(tmp_path, at, after) -> None:
    """Passed on its service level, once."""
    report, _ = _killed_and_again(make_case(tmp_path, champion=False), at, after, GOOD)
    assert (report.outcome, report.stable_version) == ("passed", "")


def test_controllers_that_die_again_and_again_end_in_no_pass(tmp_path) -> None:
    """After five deaths in a comparing stage it is inconclusive: something ends them."""
    case = make_case(tmp_path)
    for start in range(1, 6):
        run_and_die(case, f"{start}:shadow", True, {})
    report = case.run(FakeServing(), run_id=RUN)
    assert report.outcome == "inconclusive"
    assert "5 controllers ended" in report.reason


def test_evidence_of_harm_outlives_the_controller(tmp_path) -> None:
    """What the shadow saw against the canary is in the judge of the second controller too."""
    case = make_case(tmp_path)
    run_and_die(case, "passed:shadow", True, {})
    kept = [entry.payload["memory"] for entry in entries(case) if entry.payload["event"] == "passed"]
    assert kept[-1]["harm"]
    assert case.run(FakeServing(), run_id=RUN).outcome == "passed"


def test_a_second_controller_is_refused_while_one_leads(tmp_path) -> None:
    """One writer by lease: TransientError, and nothing was served."""
    case, stack = make_case(tmp_path), FakeServing()
    refused = pytest.raises(TransientError, match="is deciding")
    with closing(Ledger(case.ledger_url)) as ledger, ledger.hold(book.lease_name("case")), refused:
        case.run(stack, run_id=RUN)
    assert stack.calls == []


def test_a_controller_whose_lease_was_taken_over_decides_nothing_more(tmp_path) -> None:
    """Another took its token in the middle of a step: TransientError, its canary stopped, no end written."""
    case = make_case(tmp_path)

    class Overtaken(FakeServing):
        def set_weight(self, percent):
            super().set_weight(percent)
            if percent == 50:
                from sqlalchemy import text

                with closing(Ledger(case.ledger_url)) as ledger, ledger._transaction() as connection:
                    connection.execute(text("UPDATE ledger_leases SET token = token + 1, holder = 'elsewhere:1:x'"))

    stack = Overtaken()
    with pytest.raises(TransientError, match="took over"):
        case.run(stack, run_id=RUN)
    assert stack.weight == 0
    assert "canary" not in stack.replicas
    assert "end" not in moments(case)


def test_a_rollout_left_half_way_is_ended_when_another_of_the_model_begins(tmp_path) -> None:
    """New code or a new recipe names another rollout: the old one is inconclusive, not open for ever."""
    case = make_case(tmp_path)
    run_and_die(case, "1:step 50 %", True, {})
    assert case.run(FakeServing(), run_id="run-2").outcome == "passed"
    with closing(Ledger(case.ledger_url)) as ledger:
        ends = {book.about_of(found).run_id: book.report_of(found) for found in book.rollouts(ledger).values()}
    assert ends[RUN].outcome == "inconclusive"
    assert "another rollout began" in ends[RUN].reason
