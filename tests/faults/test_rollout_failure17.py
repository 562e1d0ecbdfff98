"""Failure 17: no traffic to a server that is still loading or already stopping; ready is a scored golden request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from components.core.errors import IntegrityError, TransientError
from components.core.protocols import Decision, GoldenRow
from components.models.files import model_digest
from components.serving.stack import LocalStack
from tests.fakes.serving_case import expected_score, make_shell, open_fake, rows, start_arm


def _golden(model: Path, shift: float = 0.0) -> GoldenRow:
    row = rows(1)[0]
    return GoldenRow(row["features"], row["text"], expected_score(model, row) + shift, 0.001)


@contextmanager
def _traffic(stack: LocalStack, rate: float = 30.0) -> Iterator[list[Decision]]:
    """Decisions asked for all the while, from another thread."""
    found: list[Decision] = []
    ended = threading.Event()
    asking = threading.Thread(target=lambda: found.extend(stack.decide(rows(3000), rate, lambda _: ended.is_set())))
    asking.start()
    try:
        yield found
    finally:
        ended.set()
        asking.join()


def test_failure17_ready_means_the_golden_request_was_scored_as_registered(tmp_path) -> None:
    """A replica that scores otherwise than registered never gets an arm: named with both scores, ended, not routed."""
    model = make_shell(tmp_path / "model")
    with open_fake(tmp_path) as stack:
        with pytest.raises(TransientError, match=r"scores the golden request 0\.\d+, registered is 0\.\d+"):
            stack.start("stable", model, "1", model_digest(model), _golden(model, 0.1))
        assert not stack.alive("stable")
        assert stack.router.arms()["stable"] is None
        stack.start("stable", model, "1", model_digest(model), _golden(model))
        assert stack.decide(rows(2), 20.0)[0].status == "ok"


def test_failure17_a_canary_that_loads_or_stops_costs_no_request(tmp_path) -> None:
    """Launch, become ready, 50 %, stop, and one that never gets ready: every decision answered by a ready version."""
    with open_fake(tmp_path, serving={"start_timeout_seconds": 20.0}) as stack:
        start_arm(stack, tmp_path, "stable", "1")
        with _traffic(stack) as found:
            start_arm(stack, tmp_path, "canary", "2")
            stack.set_weight(50)
            time.sleep(1.5)
            stack.stop("canary")
            stack.choice.engine.faults["canary"] = "exit"
            with pytest.raises(TransientError):
                start_arm(stack, tmp_path, "canary", "3")
    assert len(found) > 60
    assert {decision.http_status for decision in found} == {200}
    assert {decision.status for decision in found} == {
        "ok"
    }  # not one fell back: nobody was asked too early or too late
    assert {decision.model_version for decision in found} == {"1", "2"}


def test_failure17_a_new_champion_takes_over_and_back_without_a_lost_request(tmp_path) -> None:
    """Stable 1 → 2 → 1 through the router in live traffic, the second time without a start: all answered, in order."""
    with open_fake(tmp_path) as stack:
        first = start_arm(stack, tmp_path, "stable", "1")
        with _traffic(stack) as found:
            start_arm(stack, tmp_path, "canary", "2")
            old = stack.take_over()
            assert old.alive
            time.sleep(0.5)
            assert stack.bring_back(old).pid == first.pid
            newer = stack.take_over()
            newer.stop(lambda: 0)
            time.sleep(0.5)
        assert {decision.status for decision in found} == {"ok"}
        versions = [decision.model_version for decision in found if decision.drawn == decision.answered_by == "stable"]
        changes = [one for one, before in zip(versions, ["", *versions], strict=False) if one != before]
        assert changes == ["1", "2", "1"]
        assert stack.router.weights() == {"stable": 100, "canary": 0}
        assert stack.score_arm("stable", rows(1))[0] is not None


def test_failure17_what_is_started_again_is_checked_again(tmp_path) -> None:
    """Signature and bytes are looked at before each launch, also of a version that was served a moment ago."""
    model = make_shell(tmp_path / "model")
    digest, checked = model_digest(model), []
    with open_fake(tmp_path) as stack:
        stack._check = checked.append
        stack.start("stable", model, "1", digest)
        stack.start("stable", model, "1", digest)  # lives: not started again
        assert checked == [model]
        stack.stop("stable")
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(IntegrityError, match="restore the files"):
            stack.start("stable", model, "1", digest)
        assert checked == [model, model]
