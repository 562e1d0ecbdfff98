"""Labels that arrive while a rollout is under way: from POST /v1/feedback's records to the verdict."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from components.core.protocols import ArrivedLabel
from components.rollout.labels import Labelled, labelled
from components.serving.decision_log import DecisionLog, labels_after
from tests.fakes.decision_record import record
from tests.fakes.fake_serving import FakeServing
from tests.fakes.rollout_case import make_case

SLOWLY = {"shadow_requests": 0, "min_canary_requests": 2_000, "deadline_seconds": 200}


class Callers(FakeServing):
    """Callers beside the replay, five a second, whose outcomes are known; `score` by the arm that answered."""

    score: ClassVar = {"stable": 0.5, "canary": 0.5}
    known_before = 0
    their_ids = "caller"

    def labels(self, after: int) -> list[ArrivedLabel]:
        """All that have arrived by this moment of the fake's clock: the outcome is always yes."""
        draws = random.Random(1)
        arms = [draws.choice(("stable", "canary")) for _ in range(self.known_before + int(self.clock.seconds * 5))]
        every = [
            ArrivedLabel(seq, f"{self.their_ids}{seq}", "yes", arm, 0.5, self.score[arm])
            for seq, arm in enumerate(arms, 1)
        ]
        return [label for label in every if label.seq > after]


def test_a_canary_that_callers_prove_wrong_is_aborted_by_its_labels(tmp_path) -> None:
    """Well on the replayed rows; by the outcomes of callers' own requests it is far worse: log loss ends it."""
    stack = Callers()
    stack.score = {"stable": 0.9, "canary": 0.2}
    report = make_case(tmp_path, **SLOWLY).run(stack)
    assert report.outcome == "rolled_back"
    assert "log_loss" in report.reason


def test_labels_that_speak_for_neither_end_nothing(tmp_path) -> None:
    """Equal losses: what ends it is its time, as without labels."""
    assert "log_loss:" not in make_case(tmp_path, **SLOWLY).run(Callers()).reason


def test_labels_from_before_and_of_replayed_rows_are_not_counted_again(tmp_path) -> None:
    """A thousand bad ones that were there when the controller began, and those of decisions that it sent itself."""

    class Before(Callers):
        known_before = 1000
        score: ClassVar = {"stable": 0.9, "canary": 0.2}

        def labels(self, after):
            return [label for label in super().labels(after) if label.seq <= self.known_before]

    class Sent(Callers):
        score: ClassVar = {"stable": 0.9, "canary": 0.2}
        their_ids = ""

        def labels(self, after):
            return [
                ArrivedLabel(label.seq, "", label.label, label.drawn, 0.5, label.score)
                for label in super().labels(after)
            ]  # the fake's decisions have the empty id

    for stack in (Before(), Sent()):
        report = make_case(tmp_path / type(stack).__name__, **SLOWLY).run(stack)
        assert "log_loss" not in report.reason, report.reason


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (ArrivedLabel(1, "d", "yes", "canary", 0.1, 0.7), Labelled(1, 0.7, 0.7, "canary", 0.1)),
        (ArrivedLabel(1, "d", "no", "stable", 0.0, 0.7, 0.2), Labelled(0, 0.7, 0.2)),
        (ArrivedLabel(1, "d", "no", "canary", 0.5, None), Labelled(0, None, None, "canary", 0.5)),
        (ArrivedLabel(1, "d", "no", "stable", 0.0, 0.7, None), None),
        (ArrivedLabel(1, "d", "no", "canary", 1.0, 0.7), None),
        (ArrivedLabel(1, "d", "maybe", "canary", 0.5, 0.7), None),
    ],
)
def test_what_a_label_tells_of_two_versions(label, told) -> None:
    """Split: the drawn arm's score, a failed one counts as expected; mirrored: both; at 100 % and unknown: nothing."""
    assert labelled(label, ("no", "yes")) == told


def test_feedback_in_the_decision_log_comes_back_once_in_its_order_of_arrival(tmp_path) -> None:
    """Of this run only; a score of the arm that was drawn, none where stable answered in its place."""
    path = tmp_path / "decisions.db"
    assert labels_after(path, "run-1", 0) == []
    for run in ("run-0", "run-1"):
        log = DecisionLog(path, run)
        try:
            for number in range(3):
                given = {"drawn": "canary", "answered_by": "canary", "weight": 0.5, "score": 0.4}
                stood_in = {"status": "fallback", "answered_by": "stable"} if number == 2 else {}
                log.decision(**record(f"{run}-{number}", **(given | stood_in)))
            for number in (2, 0):
                log.feedback(decision_id=f"{run}-{number}", label="yes", observed_at="2026-01-01T00:00:00Z").result(10)
        finally:
            log.close()
    found = labels_after(path, "run-1", 0)
    told = [(one.decision_id, one.label, one.drawn, one.weight, one.score) for one in found]
    assert told == [("run-1-2", "yes", "canary", 0.5, None), ("run-1-0", "yes", "canary", 0.5, 0.4)]
    assert labels_after(path, "run-1", found[0].seq) == found[1:]
