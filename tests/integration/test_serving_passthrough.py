"""The OpenAI-compatible pass-through: split by weight, streamed, mirrored, logged, and a stream that hangs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from components.core.processes import wait_until
from components.serving.decision_log import read_decisions
from components.serving.scoring import ARM_HEADER
from tests.fakes.arms_server import Scoring, scoring

TEXT = {"model": "tiny", "prompt": "my card", "max_tokens": 8}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "my card"}]}
LATE = {"request_timeout_seconds": 1.0}
PATHS = {"/v1/completions": TEXT, "/v1/chat/completions": CHAT}


def post(service: Scoring, path: str, **more: Any) -> httpx.Response:
    """One request of the path's kind."""
    return httpx.post(f"{service.url}{path}", json=PATHS[path] | more, timeout=20)


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_handed_on_split_and_logged_by_their_arm(tmp_path: Path, path: str) -> None:
    """The share is the weight's, each arm is asked by its own name, and each record names the version."""
    with scoring(tmp_path, weight=0.5) as service:
        found = [post(service, path) for _ in range(60)]
        assert {(arm, sent["model"]) for arm, _, sent, _ in service.arms.seen} == {
            ("stable", "tiny-stable"), ("canary", "tiny-canary"),
        }  # fmt: skip
        assert {asked for _, asked, _, _ in service.arms.seen} == {path}
    assert {answer.status_code for answer in found} == {200}
    share = sum(answer.json()["model"] == "canary" for answer in found) / 60
    assert abs(share - 0.5) < 5 * (0.25 / 60) ** 0.5
    logged = {row["id"]: row for row in read_decisions(service.log)}
    for answer in found:
        row, arm = logged[answer.headers["x-request-id"]], answer.json()["model"]
        assert (row["drawn"], row["answered_by"], row["status"], row["weight"]) == (arm, arm, "ok", 0.5)
        assert (row["version"], row["kind"], row["intact"]) == (
            "12"[arm == "canary"], "chat" if "chat" in path else "completion", True,
        )  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_is_handed_on_event_by_event(tmp_path: Path, path: str) -> None:
    """The bytes of the arm, as server-sent events, the first before the last was made."""
    with scoring(tmp_path, weight=1.0) as service:
        answer = post(service, path, stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line for line in answer.text.split("\n\n") if line]
        assert events == [f'data: {{"model": "canary", "part": {part}}}' for part in range(3)] + ["data: [DONE]"]
        service.arms.does["canary"] = "stall"
        started = time.perf_counter()
        with httpx.stream("POST", f"{service.url}{path}", json=PATHS[path] | {"stream": True}, timeout=20) as live:
            assert next(live.iter_raw()).startswith(b"data: ")
            assert time.perf_counter() - started < 2


@pytest.mark.parametrize(("does", "failure"), [("stall", "timeout"), ("cut", "broken")])
def test_a_stream_that_hangs_or_breaks_ends_with_an_error_event(tmp_path: Path, does: str, failure: str) -> None:
    """Bounded by the time for an answer; said to the caller, and logged as what it was."""
    with scoring(tmp_path, weight=1.0, serving=LATE) as service:
        service.arms.does["canary"] = does
        started = time.perf_counter()
        answer = post(service, "/v1/completions", stream=True)
        assert time.perf_counter() - started < 3
    events = [line for line in answer.text.split("\n\n") if line]
    assert events[0] == 'data: {"model": "canary", "part": 0}'
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "broken_stream"
    (row,) = read_decisions(service.log)
    assert (row["status"], row["failure"], row["drawn"], row["answered_by"]) == ("refused", failure, "canary", "none")


@pytest.mark.parametrize(("longest", "failure"), [(600.0, ""), (1.5, "too_long")])
def test_a_stream_that_is_slow_but_alive_outlives_the_time_for_an_answer(
    tmp_path: Path, longest: float, failure: str
) -> None:
    """Three events and the end, 0.6 s apart, where an answer has 1 s: through Envoy too, up to `stream_seconds`."""
    with scoring(tmp_path, serving=LATE | {"stream_seconds": longest}, envoy=True) as service:
        service.arms.does["stable"] = "drip:0.6"
        started = time.perf_counter()
        answer = post(service, "/v1/completions", stream=True)
        assert time.perf_counter() - started > 1.2
    events = [line for line in answer.text.split("\n\n") if line]
    assert len(events) == 4
    assert "too long" in events[-1] if failure else events[-1] == "data: [DONE]"
    (row,) = read_decisions(service.log)
    assert (row["status"], row["failure"]) == ("refused" if failure else "ok", failure)


def test_envoy_bounds_silence_and_the_whole_of_a_stream(tmp_path: Path) -> None:
    """For callers that come past the service: no first byte is 504, a stream that never ends is cut."""
    with scoring(tmp_path, serving=LATE | {"stream_seconds": 0.2}, envoy=True) as service:
        asked: dict[str, Any] = {"json": TEXT | {"stream": True}, "headers": {ARM_HEADER: "stable"}, "timeout": 20}
        service.arms.does["stable"] = "hang"
        assert httpx.post(f"{service.router_url}/v1/completions", **asked).status_code == 504
        service.arms.does["stable"] = "drip:0.6"
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{service.router_url}/v1/completions", **asked)


@pytest.mark.parametrize(("does", "failure"), [("error", "http_500"), ("hang", "timeout")])
def test_before_the_first_byte_stable_answers_for_the_canary(tmp_path: Path, does: str, failure: str) -> None:
    """Credited to the canary's draw; where stable fails as well it is 503."""
    with scoring(tmp_path, weight=1.0, serving=LATE) as service:
        service.arms.does["canary"] = does
        answer = post(service, "/v1/chat/completions", stream=True)
        assert '"model": "stable"' in answer.text
        service.arms.does["stable"] = "error"
        refused = post(service, "/v1/completions")
    assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
    first, second = read_decisions(service.log)
    assert (first["status"], first["failure"], first["drawn"], first["answered_by"], first["version"]) == (
        "fallback", failure, "canary", "stable", "1",
    )  # fmt: skip
    assert (second["status"], second["failure"], second["answered_by"]) == ("refused", failure, "none")


def test_a_callers_fault_is_handed_on_and_logged_as_such(tmp_path: Path) -> None:
    """A 400 of the model server is the caller's, not the arm's: no fall-back, and no success in the log."""
    with scoring(tmp_path) as service:
        service.arms.does["stable"] = "bad"
        answer = post(service, "/v1/completions")
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": "bad"}})
    (row,) = read_decisions(service.log)
    assert (row["status"], row["failure"], row["answered_by"]) == ("refused", "http_400", "none")


def test_a_caller_that_leaves_is_logged_and_lets_the_arm_go(tmp_path: Path) -> None:
    """The connection to the arm ends with the caller's."""
    with scoring(tmp_path) as service:
        service.arms.does["stable"] = "stall"
        with httpx.stream("POST", f"{service.url}/v1/completions", json=TEXT | {"stream": True}, timeout=20) as live:
            next(live.iter_raw())

        def logged() -> bool:
            return service.log.exists() and bool(read_decisions(service.log))

        assert wait_until(logged, 5.0, every=0.05)
        (row,) = read_decisions(service.log)
    assert (row["status"], row["failure"]) == ("refused", "caller_gone")


def test_in_shadow_the_canary_is_asked_the_same(tmp_path: Path) -> None:
    """Not as a stream; its failure is recorded and reaches no caller."""
    with scoring(tmp_path, shadow=True) as service:

        def mirrored(*wanted: int) -> bool:
            return [row["shadow_ok"] for row in read_decisions(service.log)] == list(wanted)

        assert post(service, "/v1/completions", stream=True).status_code == 200
        assert wait_until(lambda: mirrored(1), 20.0, every=0.05)
        service.arms.does["canary"] = "error"
        assert post(service, "/v1/chat/completions").json()["model"] == "stable"
        assert wait_until(lambda: mirrored(1, 0), 20.0, every=0.05)
        asked = [(path, sent["stream"]) for arm, path, sent, _ in service.arms.seen if arm == "canary"]
    assert asked == [("/v1/completions", False), ("/v1/chat/completions", False)]


@pytest.mark.parametrize("body", [
    {"model": "other", "prompt": "x"}, {"model": "tiny"}, {"model": "tiny", "prompt": "x", "chat_template": "{{7*7}}"},
    {"model": "tiny", "prompt": "x" * 50_001}, {"model": "tiny", "prompt": "x", "max_tokens": 0}, [], "x",
])  # fmt: skip
def test_what_does_not_fit_reaches_no_arm(tmp_path: Path, body: Any) -> None:
    """4xx problems; keys that steer the server are not handed on."""
    with scoring(tmp_path) as service:
        answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=20)
        assert answer.status_code in (404, 422)
        assert answer.headers["content-type"] == "application/problem+json"
        assert service.arms.seen == []
