"""Failure 20: the controller is killed and what it started goes on: abort turns its traffic back from outside."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from components.core import processes
from components.core.errors import TransientError
from components.core.ledger import Ledger
from components.rollout import journal as book
from components.rollout import steering
from components.serving.control import read_state
from components.serving.scoring_service import ServiceConfig
from pipelines.rollouts import abort, status
from tests.fakes.serving_case import rows
from tests.integration.test_rollout_real_stack import Place


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Place]:
    """A rollout at 50 % whose controller is gone, its processes being none that die with their parent."""
    place = Place(tmp_path, wants=10_000)
    with _at_half(place, _run_to_be_killed) as child:
        child.kill()
        child.join()
        with closing(Ledger(place.home.ledger_url)) as ledger:
            assert not ledger.holder(book.lease_name("tiny")), "a dead controller holds nothing"
        yield place


@contextmanager
def _at_half(place: Place, target: Callable[[Place], None]) -> Iterator[multiprocessing.Process]:
    """A controller in a process of its own, seen at 50 %; in the end nothing of it is left."""
    child = multiprocessing.get_context("fork").Process(target=target, args=(place,))
    child.start()
    try:
        with closing(Ledger(place.home.ledger_url)) as ledger:
            deadline = time.monotonic() + 90
            while not any(entry.payload.get("state") == "step 50 %" for entry in ledger.entries(book.KIND)):
                assert time.monotonic() < deadline
                assert child.is_alive()
                time.sleep(0.05)
        while _health(place).get("weight") != 0.5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child
    finally:
        child.kill()
        processes.end_leftovers(place.home.root)


def _run_to_be_killed(place: Place) -> None:
    processes.die_with_parent = lambda: None  # as on a system that does not tell children
    processes.adopt(place.home.root)
    place.run()


def _run_to_hang(place: Place) -> None:
    book.LEASE_SECONDS = steering.LEASE_SECONDS = 8.0
    steering.RENEW_SECONDS = 1.0
    processes.adopt(place.home.root)
    with (place.home.root / "run.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as `pilotline run` does
        (place.root / "outcome").write_text(place.run().outcome)


def _config(place: Place) -> ServiceConfig:
    return ServiceConfig.read(place.home.run("run-1") / "serving" / "service.json")


def _health(place: Place) -> dict[str, object]:
    return httpx.get(f"http://127.0.0.1:{_config(place).port}/healthz", timeout=10, trust_env=False).json()


def _serving(place: Place) -> dict[str, psutil.Process]:
    """The model servers that live, by the version in their served name."""
    found = {}
    for pid in processes.owned_by(place.home.root):
        words = psutil.Process(pid).cmdline()
        if "tests.fakes.fake_model_server" in words:
            found[words[words.index("--served-model-name") + 1]] = psutil.Process(pid)
    return found


def test_failure20_abort_without_a_controller_turns_living_traffic_back_and_nobody_notices(left) -> None:
    """Callers go on all the while: every answer is 200; weight 0 within 5 s, the canary ended, stable answers."""
    url, statuses, over = f"http://127.0.0.1:{_config(left).port}", list[int](), threading.Event()

    def users() -> None:
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            while not over.is_set():
                for row in rows(5):
                    body = {"entities": row["entities"], "input": {"text": row["text"]}}
                    statuses.append(client.post("/v1/decisions", json=body).status_code)
                    time.sleep(0.02)

    asking = threading.Thread(target=users)
    asking.start()
    try:
        assert len(_serving(left)) == 2
        began = time.monotonic()
        told = abort(left.home, "too slow", "alice")
        assert time.monotonic() - began < 15
        health = _health(left)
        assert (health["weight"], health["shadow"]) == (0.0, False)
        assert len(_serving(left)) == 1
        time.sleep(0.5)
    finally:
        over.set()
        asking.join()
    assert (told["state"], told["outcome"], told["weight"]) == ("aborted", "rolled_back", 0)
    assert "alice: too slow; no controller leads it, all traffic on stable" in told["reason"]
    assert len(statuses) > 20
    assert set(statuses) == {200}


def test_failure20_a_stable_that_does_not_answer_gets_no_traffic_and_the_abort_stays_asked_for(left) -> None:
    """TransientError naming stable and the way on; the end is not written, and the canary goes on answering."""
    state = read_state(left.home.run("run-1") / "serving" / "state.json")
    stable = _serving(left)[state.arms["stable"].served_name]
    stable.kill()
    stable.wait(10)
    with pytest.raises(TransientError, match="stable does not answer"):
        abort(left.home, "too slow", "alice")
    told = status(left.home)
    assert told["state"] == "step 50 %"
    assert told["abort"]["who"] == "alice"
    assert _health(left)["weight"] == 0.5


def test_failure20_a_controller_that_hangs_loses_its_canary_all_the_same(tmp_path: Path) -> None:
    """SIGSTOP while it holds lease and home: weight 0 before its lease is over; awake, it ends as the ledger says."""
    place = Place(tmp_path, wants=10_000)
    with _at_half(place, _run_to_hang) as child:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        told: list[dict[str, object]] = []
        asking = threading.Thread(target=lambda: told.append(abort(place.home, "it hangs", "alice")))
        asking.start()
        assert processes.wait_until(lambda: _health(place)["weight"] == 0.0, 30.0, every=0.05)
        asking.join(60)
        assert (told[0]["state"], told[0]["outcome"]) == ("aborted", "rolled_back")
        assert "all traffic on stable, which answers" in str(told[0]["reason"])
        assert (_health(place)["weight"], len(_serving(place))) == (0.0, 1)
        os.kill(child.pid, signal.SIGCONT)
        child.join(60)
        assert (place.root / "outcome").read_text() == "rolled_back"
