"""Twenty rollouts with users asking all the while: passed, aborted, and with one process killed after the other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from components.core.paths import PROJECT_ROOT
from components.core.processes import end, spawn, wait_until
from pipelines.rollouts import abort
from tests.fakes.reference_rollouts import TIMEOUT_SECONDS, Served2, answering, served_by_reference
from tests.fakes.vllm_pair import Caller

KINDS = ("passes", "is aborted", "its canary is killed", "its controller is killed", "its route writer is killed")
ENDS = {"is aborted": "rolled_back", "its canary is killed": "rolled_back"}
RATE, RUN_SECONDS = 20.0, 180.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served2]:
    """Two servers of the reference engine and a stack before them."""
    with served_by_reference(tmp_path_factory.mktemp("twenty")) as found:
        yield found


@pytest.mark.full
def test_no_request_fails_in_twenty_rollouts_aborts_and_kills(served: Served2, tmp_path: Path) -> None:
    """Four of each kind, each to its end; the users' requests and those that the rollouts sent: none failed.

    The controller is a process of its own, so that it dies alone, as a pod does. The route writer is killed between its
    two writes: Envoy has the new weight, the scoring service the old one. Who was killed is started again.
    """
    told = []
    with answering(served.stack) as address, ExitStack() as meanwhile:
        _rollout(served, address, tmp_path / "first.log", "first", "passes")  # brings stable up
        users = meanwhile.enter_context(Caller(served.stack.url, served.pair.rows, RATE, TIMEOUT_SECONDS + 1))
        assert wait_until(lambda: len(users.decisions) > 20, 60.0)
        for number in range(20):
            kind = KINDS[number % len(KINDS)]
            said = _rollout(served, address, tmp_path / f"{number}.log", f"run-{number}", kind)
            told.append(f"{kind}: {said}")
            print(f"{number + 1}: {told[-1]}", flush=True)
            assert said.startswith(ENDS.get(kind, "passed")), told
            assert " 0 failed" in said, told
    failed = [one for one in users.decisions if one.http_status != 200 or one.label not in ("no", "yes")]
    by_canary = sum(one.answered_by == "canary" for one in users.decisions)
    instead = sum(one.drawn == "canary" and one.answered_by == "stable" for one in users.decisions)
    print(
        f"users: {len(users.decisions)} requests, {len(failed)} failed, {by_canary} answered by a canary, "
        f"{instead} by stable in its place"
    )
    assert failed == []
    assert by_canary > 100


def _rollout(served: Served2, address: str, log: Path, run_id: str, kind: str) -> str:
    """One rollout, disturbed by its kind; what its last controller said."""
    first = _controller(served, address, log, run_id, half=kind == "its route writer is killed")
    try:
        if kind == "its route writer is killed":
            assert first.wait(RUN_SECONDS) < 0
            assert served.stack.router.weights()["canary"] == 50
            assert _weight(served) == 0.0
        elif disturb := _DISTURBANCES.get(kind):
            _in_the_step(served, run_id, first)
            disturb(served, first)
        if first.wait(RUN_SECONDS) < 0:
            first = _controller(served, address, log, run_id)
            first.wait(RUN_SECONDS)
        assert first.returncode == 0, log.read_text()[-2000:]
    finally:
        end(first)
    return log.read_text().splitlines()[-1]


def _abort(served: Served2, _: subprocess.Popen[bytes]) -> None:
    abort(served.pair.home, "too slow", "alice")


def _kill_canary(served: Served2, _: subprocess.Popen[bytes]) -> None:
    psutil.Process(served.stack.served("canary").pid).kill()


def _kill_controller(served: Served2, controller: subprocess.Popen[bytes]) -> None:
    controller.kill()
    controller.wait(10)
    time.sleep(1.0)  # users meet the weight that it left
    assert _weight(served) == 0.5


_DISTURBANCES: dict[str, Callable[[Served2, subprocess.Popen[bytes]], None]] = {
    "is aborted": _abort, "its canary is killed": _kill_canary, "its controller is killed": _kill_controller,
}  # fmt: skip


def _controller(served: Served2, address: str, log: Path, run_id: str, half: bool = False) -> subprocess.Popen[bytes]:
    words = [str(served.pair.root), address, served.stack.url, run_id, *(["half"] if half else [])]
    return spawn([sys.executable, "-m", "tests.fakes.remote_controller", *words], log=log, cwd=PROJECT_ROOT)


def _in_the_step(served: Served2, run_id: str, controller: subprocess.Popen[bytes]) -> None:
    """Half of the traffic is the canary's."""
    there = lambda: served.pair.state(run_id) == "step 50 %" and _weight(served) == 0.5  # noqa: E731
    assert wait_until(lambda: there() or controller.poll() is not None, RUN_SECONDS, every=0.02)
    assert controller.poll() is None


def _weight(served: Served2) -> float:
    return float(served.stack.health()["weight"])
