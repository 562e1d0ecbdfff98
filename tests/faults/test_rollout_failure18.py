"""Failure 18: SIGTERM drops requests in flight. Drain first; a long request survives."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from components.serving.stack import LocalStack
from tests.fakes.serving_case import open_fake, start_arm

BODY = {"entities": {"shop": "shop-1"}, "input": {"text": "my card"}}


class Asking:
    """One long request from another thread."""

    def __init__(self, stack: LocalStack) -> None:
        self.answer: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._ask, args=(f"{stack.url}/v1/decisions",))
        self._thread.start()
        time.sleep(0.5)

    def _ask(self, url: str) -> None:
        self.answer = httpx.post(url, json=BODY, timeout=20).json()

    def ended(self) -> dict[str, Any]:
        """The answer, once it is there."""
        self._thread.join()
        return self.answer


@pytest.mark.parametrize("arm", ["canary", "stable"])
def test_failure18_a_long_request_survives_the_stop_of_its_arm(tmp_path, arm) -> None:
    """2 s at the server, the arm is stopped after 0.5 s: answered by that very arm, and only then its process ends."""
    with open_fake(tmp_path, {arm: "slow:2"}) as stack:
        start_arm(stack, tmp_path, "stable", "1")
        start_arm(stack, tmp_path, "canary", "2")
        stack.set_weight(100 if arm == "canary" else 0)
        began, asking = time.monotonic(), Asking(stack)
        stack.stop(arm)
        assert time.monotonic() - began > 2.0
        told = asking.ended()
    assert (told["status"], told["answered_by"]) == ("ok", arm)


def test_failure18_a_long_request_survives_the_switch_to_the_next_version(tmp_path) -> None:
    """It was under way at the old stable when the new version took over: the old version answers it."""
    with open_fake(tmp_path, {"stable": "slow:2"}) as stack:
        start_arm(stack, tmp_path, "stable", "1")
        start_arm(stack, tmp_path, "canary", "2")
        asking = Asking(stack)
        old = stack.take_over()
        old.stop(lambda: 0)
        told = asking.ended()
        assert (told["status"], told["model"]["version"]) == ("ok", "1")
        assert httpx.post(f"{stack.url}/v1/decisions", json=BODY, timeout=20).json()["model"]["version"] == "2"


def test_failure18_a_request_on_its_way_to_the_router_is_waited_for(tmp_path) -> None:
    """One look that finds nothing in flight is not enough: it has to be quiet for a while."""
    with open_fake(tmp_path) as stack:
        start_arm(stack, tmp_path, "stable", "1")
        looks: list[int] = []
        busy_at = (3, 4)

        def in_flight() -> int:
            looks.append(1)
            return int(len(looks) in busy_at)

        assert stack._replicas["stable"].replica.drain(in_flight, 0.5)
        assert len(looks) > busy_at[-1] + 5


def test_failure18_the_log_of_a_replica_outlives_it(tmp_path) -> None:
    """What a server said is there after it ended, and a second start appends to it."""
    with open_fake(tmp_path, {"stable": "exit"}) as stack:
        for _ in range(2):
            with pytest.raises(Exception, match="truncated"):
                start_arm(stack, tmp_path, "stable", "1")
        log = tmp_path / "home" / "runs" / "run-1" / "logs" / "fake-stable.log"
        assert log.read_text().count("model file is truncated") == 2
