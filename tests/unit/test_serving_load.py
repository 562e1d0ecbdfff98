"""The open-loop driver against small servers in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.protocols import Decision
from components.serving.load import Drive, Latencies, as_decision, nearest_rank, read_rows


@contextmanager
def service(
    seconds: float = 0.0, serial: bool = False, status: int = 200, stall: tuple[int, float] | None = None
) -> Iterator[tuple[str, list[float]]]:
    """A scoring service that takes a fixed time; yields its URL and the arrival times it saw."""
    arrivals: list[float] = []
    lock = threading.Lock() if serial else threading.Semaphore(10_000)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            arrivals.append(time.perf_counter())
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = int(asked["input"]["text"])
                time.sleep(stall[1] if stall and number == stall[0] else seconds)
            body = json.dumps(answer(asked["input"]["text"])).encode()
            with suppress(ConnectionError):  # the caller gave up
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", arrivals
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(text: str) -> dict[str, Any]:
    """A decision whose id is the text."""
    return {
        "decision_id": text, "status": "ok", "label": "yes", "score": 0.5, "model": {"name": "m", "version": "3"},
        "drawn": "stable", "answered_by": "stable", "weight": 0.25, "failure": "", "features": {},
        "seconds": {"total": 0.001, "model": 0.0005},
    }  # fmt: skip


def rows(count: int) -> list[dict[str, Any]]:
    """Numbered rows."""
    return [{"entities": {"shop": "a"}, "text": str(number)} for number in range(count)]


def test_requests_leave_on_schedule_and_come_back_in_order_of_arrival() -> None:
    """40 a second: the spacing is kept, the answers are whole, and row i is answer i."""
    with service() as (url, arrivals):
        found = Drive(url, rows(40), 40.0, 5.0).run()
    assert [decision.decision_id for decision in found] == [str(number) for number in range(40)]
    assert 0.8 < arrivals[-1] - arrivals[0] < 3.0
    assert (found[0].weight, found[0].model_version, found[0].model_seconds) == (0.25, "3", 0.0005)


def test_latency_counts_from_the_scheduled_arrival_so_that_overload_shows() -> None:
    """A server that does 20 a second, asked 100 a second, is seen to fall behind; a closed loop would report 50 ms."""
    with service(0.05, serial=True) as (url, _):
        found = Drive(url, rows(40), 100.0, 10.0).run()
    assert found[-1].seconds > 1.0
    assert found[-1].seconds > 4 * found[0].seconds


def test_percentiles_under_overload_are_those_of_the_arithmetic() -> None:
    """A server that takes s a request, asked every 1/r < s: request i waits i (s - 1/r) before its own s."""
    s, rate, count = 0.05, 40.0, 60
    with service(s, serial=True) as (url, _):
        found = Latencies.of(Drive(url, rows(count), rate, 30.0).run())
    exact = [s + i * (s - 1 / rate) for i in range(count)]
    assert found.requests == count
    for measured, rank in ((found.p50, 30), (found.p95, 57), (found.p99, 60), (found.longest, 60)):
        assert exact[rank - 1] <= measured < 1.5 * exact[rank - 1] + 0.2


def test_a_stall_shows_in_every_request_that_was_to_leave_during_it() -> None:
    """One answer of 2 s at 50 a second: 100 arrivals wait, evenly from 2 s down to nothing; p50 of 200 is half that.

    A closed loop would see one slow request of 101 and report a 99th percentile of a few milliseconds.
    """
    with service(0.0, serial=True, stall=(0, 2.0)) as (url, _):
        decisions = Drive(url, rows(150), 50.0, 30.0).run()
    exact = sorted(max(0.0, 2.0 - i / 50.0) for i in range(150))
    found = Latencies.of(decisions)
    for measured, rank in ((found.p50, 75), (found.p95, 143), (found.p99, 149)):
        assert exact[rank - 1] - 0.01 <= measured < exact[rank - 1] + 0.5
    assert found.p99 > 1.9


def test_requests_without_an_answer_count_with_the_time_they_were_waited_for() -> None:
    """Half of them time out: the upper percentiles are the time-out, not the quick ones'."""
    with service(1.5, serial=True) as (url, _):
        found = Latencies.of(Drive(url, rows(4), 50.0, 0.5).run())
    assert (found.requests, found.unanswered, found.refused) == (4, 4, 4)
    assert 0.5 <= found.p50 < 1.0


@pytest.mark.parametrize(("share", "rank"), [(0.5, 50), (0.95, 95), (0.99, 99), (0.001, 1), (1.0, 100)])
def test_a_percentile_is_a_measured_value(share: float, rank: int) -> None:
    """Nearest rank of 1 to 100."""
    assert nearest_rank([float(i) for i in range(1, 101)], share) == rank


def test_a_file_of_requests_is_read_line_by_line(tmp_path: Path) -> None:
    """Entities, text and the other inputs; a line that is none is named by its number and not repeated."""
    path = tmp_path / "requests.jsonl"
    path.write_text('{"entities": {"shop": "a"}, "input": {"text": "t", "product": "card"}}\n\n{"entities": {}}\n')
    assert list(read_rows(path)) == [
        {"entities": {"shop": "a"}, "text": "t", "request": {"product": "card"}},
        {"entities": {}, "text": "", "request": {}},
    ]
    for line in ("{", "[]", "3", '{"input": {"text": "secret"}}', '{"entities": 3}'):
        path.write_text('{"entities": {}}\n' + line)
        with pytest.raises(UserError, match="line 2") as caught:
            list(read_rows(path))
        assert "secret" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        list(read_rows(tmp_path / "none"))


def test_slow_answers_do_not_hold_back_later_requests() -> None:
    """Every request takes 0.5 s; 20 of them at 50 a second take far less than 10 s in all."""
    with service(0.5) as (url, arrivals):
        started = time.perf_counter()
        Drive(url, rows(20), 50.0, 5.0).run()
        assert time.perf_counter() - started < 3.0
    assert arrivals[-1] - arrivals[0] < 1.5


def test_stop_sees_growing_prefixes_in_order_of_arrival_and_ends_the_run_early() -> None:
    """No answer is shown before all earlier ones, none is lost, and few are sent after the stop."""
    seen: list[int] = []

    def enough(decisions: Sequence[Decision]) -> bool:
        assert [decision.decision_id for decision in decisions] == [str(i) for i in range(len(decisions))]
        seen.append(len(decisions))
        return len(decisions) >= 30

    with service(0.02) as (url, _):
        found = Drive(url, rows(1000), 100.0, 5.0, enough).run()
    assert all(before <= after for before, after in pairwise(seen))
    assert 30 <= len(found) < 300


def test_an_error_in_stop_ends_the_run_and_is_raised() -> None:
    """The load does not go on behind a caller that failed."""

    def broken(_: Sequence[Decision]) -> bool:
        raise RuntimeError("judge is broken")

    with service() as (url, arrivals):
        with pytest.raises(RuntimeError, match="judge is broken"):
            Drive(url, rows(1000), 50.0, 5.0, broken).run()
        count = len(arrivals)
        time.sleep(0.2)
        assert len(arrivals) == count


def test_no_answer_a_late_answer_and_an_error_are_refused_decisions_with_a_reason() -> None:
    """Nothing that is not an answer counts as one."""
    none = Drive("http://127.0.0.1:9", rows(2), 50.0, 2.0).run()
    with service(1.0) as (url, _):
        late = Drive(url, rows(2), 50.0, 0.2).run()
    with service(status=503) as (url, _):
        failed = Drive(url, rows(2), 50.0, 2.0).run()
    for decisions, status in ((none, 0), (late, 0), (failed, 503)):
        assert len(decisions) == 2
        assert {(d.http_status, d.status) for d in decisions} == {(status, "refused")}


@pytest.mark.parametrize("answered", [None, [], "x", {}, {"detail": "no"}])
def test_answers_of_other_shapes_are_refused_decisions(answered: Any) -> None:
    """A 200 without a decision in it is not a decision."""
    decision = as_decision(200, answered, 0.1)
    assert (decision.status, decision.score, decision.label, decision.drawn) == ("refused", None, None, "")


def test_a_rate_that_is_not_positive_is_an_error() -> None:
    """Zero would wait for ever."""
    with pytest.raises(ValueError, match="rate"):
        Drive("http://127.0.0.1:9", rows(1), 0.0, 1.0).run()
