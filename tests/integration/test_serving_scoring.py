"""The scoring service before two arms that misbehave on demand: deadline, stand-ins, review band, keys, shedding."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from components.core.errors import UserError
from components.core.protocols import Decision
from components.serving.admission import KEYS_VARIABLE, read_clients
from components.serving.decision_log import read_decisions
from components.serving.load import Drive
from components.serving.rules import Patience
from tests.fakes.arms_server import Scoring, scoring
from tests.fakes.serving_case import rows

GOOD = {"entities": {"shop": "shop-1"}, "input": {"text": "my card"}}
SLOW = b"POST /v1/decisions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
LATE = {"request_timeout_seconds": 1.0}


def ask(service: Scoring, body: Any = GOOD, **more: Any) -> httpx.Response:
    """One decision."""
    return httpx.post(f"{service.url}/v1/decisions", json=body, timeout=20, **more)


def test_a_canary_that_hangs_is_answered_by_stable_within_the_deadline(tmp_path: Path) -> None:
    """Credited to the canary's draw; both arms hanging is a refusal, within the deadline too."""
    with scoring(tmp_path, weight=1.0, serving=LATE) as service:
        service.arms.does["canary"] = "hang"
        started = time.perf_counter()
        found = ask(service).json()
        assert time.perf_counter() - started < 1.0
        assert (found["status"], found["drawn"], found["answered_by"], found["failure"]) == (
            "fallback", "canary", "stable", "timeout",
        )  # fmt: skip
        service.arms.does["stable"] = "hang"
        started = time.perf_counter()
        refused = ask(service)
        assert time.perf_counter() - started < 1.5
        assert (refused.status_code, refused.json()["decision"]["status"]) == (503, "refused")


def test_a_hung_canary_costs_its_callers_what_the_recipe_gives_it_and_one_record(tmp_path: Path) -> None:
    """`canary_seconds` of a long deadline; the draw's failure is in the one record, and stable's late answer is not."""
    times = {"request_timeout_seconds": 30.0, "canary_seconds": 0.3}
    with scoring(tmp_path, weight=1.0, serving=times) as service:
        service.arms.does["canary"] = "hang"
        started = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            found = [answer.json() for answer in pool.map(lambda _: ask(service), range(8))]
        assert 0.3 <= time.perf_counter() - started < 10  # half of the deadline is 15
        service.arms.ended.set()  # what hung answers now, and nobody waits for it
    told = {(one["status"], one["drawn"], one["answered_by"], one["failure"], one["label"] is None) for one in found}
    assert told == {("fallback", "canary", "stable", "timeout", False)}
    logged = read_decisions(service.log)
    assert sorted(row["id"] for row in logged) == sorted(one["decision_id"] for one in found)
    assert {(row["drawn"], row["answered_by"], row["failure"], row["status"]) for row in logged} == {
        ("canary", "stable", "timeout", "fallback")
    }


@pytest.mark.parametrize(("asked", "waited"), [(0.0, 5.0), (2.0, 2.0), (9.0, 5.0)])
def test_stable_always_has_half_of_what_is_left(asked: float, waited: float) -> None:
    """Whatever the recipe gives to the canary."""
    assert Patience(asked).seconds(10.0) == waited


def test_what_is_in_flight_is_told_with_its_draw_and_age_while_it_hangs(tmp_path: Path) -> None:
    """All that arrived behind what has ended, in order: what ended as it ended, what hangs as it was drawn."""
    ended: list[Decision] = []
    looks: list[tuple[int, list[Decision]]] = []

    def stop(seen: Sequence[Decision]) -> bool:
        ended[:] = seen
        return False

    def enough(rest: Sequence[Decision]) -> bool:
        looks.append((len(ended), list(rest)))
        return rest[0].is_open and rest[0].seconds > 0.5 and len(rest) > 3

    with scoring(tmp_path, weight=0.5, serving={"request_timeout_seconds": 20.0}) as service:
        service.arms.does["canary"] = "hang"
        ender = threading.Timer(3.0, service.arms.ended.set)  # what hangs answers, so that the drive can end
        ender.start()
        found = Drive(service.url, rows(400), 20.0, 21.0, stop, enough).run()
        ender.join()
        assert httpx.get(f"{service.url}/in-flight").json() == {"requests": []}
    first, rest = looks[-1]
    assert len(found) < 400, "it was ended by what was under way"
    assert (rest[0].drawn, rest[0].weight, rest[0].score, rest[0].status) == ("canary", 0.5, None, "open")
    for told, came in zip(rest, found[first:], strict=False):
        assert told == came if not told.is_open else (told.drawn, told.weight) in {("", 0.0), (came.drawn, came.weight)}
    ages = [one.seconds for one in rest if one.is_open]
    assert ages == sorted(ages, reverse=True)


def test_a_label_is_observed_after_its_decision_and_not_in_the_future(tmp_path: Path) -> None:
    """Either is the caller's mistake, and the right time can be told afterwards."""
    with scoring(tmp_path) as service:
        told = {"decision_id": ask(service).json()["decision_id"], "label": "yes"}

        def say(minutes: float) -> tuple[int, str]:
            at = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
            answer = httpx.post(f"{service.url}/v1/feedback", json=told | {"observed_at": at}, timeout=20)
            return answer.status_code, str(answer.json().get("detail"))

        assert say(10) == (422, "observed_at: is in the future")
        assert say(-60 * 24 * 365) == (422, "observed_at: is before the decision")
        assert say(0)[0] == 200


@pytest.mark.parametrize("body", [
    GOOD, {"items": [GOOD, {"entities": {"shop": 7}, "input": {"event_timestamp": "2026-01-31T09:30:00Z"}}]},
    {"entities": {"shop": "unknown"}}, {"items": []}, {"entities": {}}, {"items": [GOOD], "entities": {}}, 7,
])  # fmt: skip
def test_the_short_way_through_the_service_answers_as_the_long_one(tmp_path: Path, body: Any) -> None:
    """JSON in UTF-16 goes the long way: the same status, and all but ids and times alike."""
    with scoring(tmp_path, serving={"unknown_entity": "refuse"}) as service:
        found, counted = [], []
        for encoding in ("utf-8", "utf-16"):
            content = json.dumps(body).encode(encoding)
            headers = {"content-type": "application/json"}
            answer = httpx.post(f"{service.url}/v1/decisions", content=content, headers=headers, timeout=20)
            told = re.sub(r'"(decision_id|seconds)":("[0-9a-f]{32}"|{[^}]*})', "", answer.text)
            found.append((answer.status_code, answer.headers["content-type"], told))
            counted.append(_problems(service.url))
    assert found[0] == found[1]
    assert len(read_decisions(service.log)) % 2 == 0
    problem = [str(found[0][0])] if found[0][0] >= 400 else []
    assert counted[1] - counted[0] == Counter(problem)
    assert set(counted[0]) >= set(problem)


def _problems(url: str) -> Counter[str]:
    """Answers so far that were errors, by status; of this process, where Feast set prometheus_client up so."""
    lines = httpx.get(f"{url}/metrics").text
    found = re.findall(r'^pilotline_http_problems_total{status="(\d+)"} (\S+)$', lines, re.MULTILINE)
    return Counter({status: int(float(count)) for status, count in found})


def test_a_caller_that_writes_its_whole_body_before_it_reads_sees_the_refusal(tmp_path: Path) -> None:
    """413 and 401 of megabytes, over a plain socket: no reset before the problem document was read."""
    body = b'{"entities": {"shop": "a"}, "input": {"text": "' + b"x" * 8_000_000 + b'"}}'
    head = f"POST /v1/decisions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with scoring(tmp_path) as service:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0), timeout=20) as connection:
                connection.sendall(f"{head}\r\n\r\n".encode() + body)
                answer = b""
                while part := connection.recv(65536):
                    answer += part
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"application/problem+json" in answer


@pytest.mark.parametrize("headers", [
    {"content-type": "text/plain"}, {"content-type": ""}, {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "application/json", "content-encoding": "gzip"},
])  # fmt: skip
def test_a_body_that_does_not_say_that_it_is_json_is_refused_as_such(tmp_path: Path, headers: dict[str, str]) -> None:
    """415, and what to send instead; a path with a slash too many is not there and leads nowhere."""
    with scoring(tmp_path) as service:
        answer = httpx.post(f"{service.url}/v1/decisions", content=b"{}", headers=headers, timeout=20)
        assert (answer.status_code, "send the body" in answer.json()["detail"]) == (415, True)
        assert httpx.post(f"{service.url}/v1/decisions/", json=GOOD, timeout=20).status_code == 404


@pytest.mark.parametrize(
    ("does", "failure"), [("error", "http_500"), ("garbage", "invalid"), ("hang", "timeout"), ("bad", "http_400")]
)
def test_each_answer_joins_to_its_request_version_and_true_status(tmp_path: Path, does: str, failure: str) -> None:
    """Failure 22: an error is never logged as success, and each record names who answered, of which version."""
    with scoring(tmp_path, weight=0.5, serving={"request_timeout_seconds": 0.5}) as service:
        service.arms.does["canary"] = does
        answers = [ask(service).json() for _ in range(12)]
        service.arms.does["stable"] = does
        answers += [ask(service).json()["decision"] for _ in range(4)]
    logged = {row["id"]: row for row in read_decisions(service.log)}
    assert len(logged) == len(answers) == 16
    for told in answers:
        row = logged[told["decision_id"]]
        assert row["intact"]
        assert (row["status"], row["drawn"], row["answered_by"]) == (told["status"], told["drawn"], told["answered_by"])
        assert (row["score"], row["label"], row["failure"]) == (told["score"], told["label"], told["failure"])
        expected = {"stable": ("1", "digest-stable"), "canary": ("2", "digest-canary"), "none": ("", "")}
        assert (row["version"], row["digest"]) == expected[row["answered_by"]]
        assert row["failure"] == ("" if row["status"] == "ok" else failure)
    assert {row["status"] for row in logged.values()} == {"ok", "fallback", "refused"}


@pytest.mark.parametrize("shop", ["shop-1", "shop-broken"])
def test_the_baseline_stands_in_where_the_recipe_says_so(tmp_path: Path, shop: str) -> None:
    """No arm, or no features: the recipe's score, its label, answered by nobody's version, and logged as such."""
    rules = LATE | {"fallback": "baseline", "baseline_score": 0.7}
    with scoring(tmp_path, serving=rules) as service:
        service.arms.does["stable"] = "error"
        answer = ask(service, GOOD | {"entities": {"shop": shop}})
        found = answer.json()
    assert answer.status_code == 200
    assert (found["status"], found["answered_by"], found["rule"], found["model"]) == (
        "fallback", "baseline", "baseline", None,
    )  # fmt: skip
    assert (found["score"], found["label"]) == (0.7, "yes")
    assert found["failure"] == ("http_500" if shop == "shop-1" else "features")
    (row,) = read_decisions(service.log)
    assert (row["rule"], row["version"], row["status"], row["intact"]) == ("baseline", "", "fallback", True)


def test_the_last_known_answer_stands_in_for_the_same_question_only(tmp_path: Path) -> None:
    """Another text is another question: refused."""
    with scoring(tmp_path, serving=LATE | {"fallback": "last_known"}) as service:
        first = ask(service).json()
        service.arms.does["stable"] = "error"
        again, other = ask(service), ask(service, GOOD | {"input": {"text": "another"}})
    found = again.json()
    assert (found["status"], found["rule"], found["answered_by"]) == ("fallback", "last_known", "baseline")
    assert (found["score"], found["label"]) == (first["score"], first["label"])
    assert (other.status_code, other.json()["decision"]["failure"]) == (503, "http_500")


def test_last_known_features_are_used_and_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails after a first read: the same values, not fresh; an entity never read is refused."""
    from tests.fakes.serving_case import FixedFeatures

    with scoring(tmp_path, serving=LATE | {"fallback": "last_known"}) as service:
        first = ask(service).json()

        def gone(*_: Any) -> Any:
            raise RuntimeError("the store is gone")

        monkeypatch.setattr(FixedFeatures, "read", gone)
        found = ask(service, GOOD | {"input": {"text": "another"}}).json()
        assert ask(service, {"entities": {"shop": "shop-2"}}).status_code == 503
    assert (found["status"], found["rule"], found["answered_by"]) == ("fallback", "last_known", "stable")
    assert {name: about["value"] for name, about in found["features"].items()} == {
        name: about["value"] for name, about in first["features"].items()
    }
    assert not any(about["fresh"] for about in found["features"].values())


@pytest.mark.parametrize(("policy", "status", "said"), [
    ("score", 200, "ok"), ("refuse", 422, "refused"), ("fallback", 200, "fallback"),
])  # fmt: skip
def test_an_unknown_entity_is_treated_as_the_recipe_says(tmp_path: Path, policy: str, status: int, said: str) -> None:
    """Scored without history, the caller's fault, or the baseline; each is in the log with its status."""
    rules = {"unknown_entity": policy, "fallback": "baseline", "baseline_score": 0.1}
    with scoring(tmp_path, serving=rules) as service:
        answer = ask(service, {"entities": {"shop": "nobody"}})
        assert ask(service).json()["status"] == "ok"
    assert answer.status_code == status
    assert read_decisions(service.log)[0]["status"] == said


def test_scores_in_the_review_band_are_marked(tmp_path: Path) -> None:
    """From the lower bound on, below the upper one; in the answer and in the log."""
    with scoring(tmp_path, serving={"review_from": 0.45, "review_below": 0.55}) as service:
        found = [ask(service, GOOD | {"input": {"text": row["text"]}}).json() for row in rows(40)]
        metrics = httpx.get(f"{service.url}/metrics").text
    assert [answer["review"] for answer in found] == [0.45 <= answer["score"] < 0.55 for answer in found]
    assert {answer["review"] for answer in found} == {True, False}
    assert [bool(row["review"]) for row in read_decisions(service.log)] == [answer["review"] for answer in found]
    marked = sum(answer["review"] for answer in found)
    assert f'pilotline_reviews_total{{version="1"}} {marked}.0' in metrics


def test_sticky_draws_show_one_entity_one_version_and_follow_the_weight(tmp_path: Path) -> None:
    """The same shop is drawn alike each time; over many shops the share is the weight's."""
    with scoring(tmp_path, weight=0.3, rollout={"sticky": True}) as service:
        items = [{"entities": {"shop": f"shop-{i}"}} for i in range(64)]
        drawn = [[item["drawn"] for item in ask(service, {"items": items}).json()["items"]] for _ in range(3)]
        many = [{"entities": {"shop": f"shop-{i}"}} for i in range(64, 64 + 448)]
        found = [ask(service, {"items": many[i : i + 64]}).json()["items"] for i in range(0, 448, 64)]
    assert drawn[0] == drawn[1] == drawn[2]
    share = sum(item["drawn"] == "canary" for batch in found for item in batch) / 448
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / 448) ** 0.5


def test_more_than_can_be_answered_is_told_to_come_again(tmp_path: Path) -> None:
    """429 with Retry-After at once for what is over the limit; what is taken is answered; then all is well again."""
    with scoring(tmp_path, serving={"max_in_flight": 4}) as service:
        service.arms.does["stable"] = "slow:0.5"
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: ask(service), range(12)))
        service.arms.does["stable"] = "ok"
        assert ask(service).status_code == 200
        assert httpx.get(f"{service.url}/healthz").status_code == 200
        assert 'pilotline_http_problems_total{status="429"}' in httpx.get(f"{service.url}/metrics").text
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert len(answers) - len(refused) >= 4
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(answer.headers["content-type"] == "application/problem+json" for answer in refused)


def test_a_client_that_sends_its_body_slowly_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """408 after the time for a body; it takes no place from anybody meanwhile."""
    monkeypatch.setattr("components.serving.problems.BodyLimit.__init__.__defaults__", (256 << 10, 0.5))
    with scoring(tmp_path, serving={"max_in_flight": 1}) as service:
        port = int(service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
            slow.sendall(SLOW)
            assert ask(service).status_code == 200
            started = time.perf_counter()
            answer = slow.recv(4096)
            assert time.perf_counter() - started < 5
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"application/problem+json" in answer


@pytest.mark.parametrize("begun", [b"", b"POST /v1/decisions HTTP/1.1\r\nhost: x\r\nx-a: "])
def test_a_connection_that_never_sends_a_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """Nothing, or half the headers: closed after the time for them; a connection that is used stays open."""
    monkeypatch.setattr("components.serving.slow_headers.HEADER_SECONDS", 0.5)
    with scoring(tmp_path) as service, httpx.Client() as client:
        assert client.get(f"{service.url}/healthz").status_code == 200
        port = int(service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
            slow.sendall(begun)
            assert slow.recv(100) == b""
        time.sleep(0.6)
        assert client.post(f"{service.url}/v1/decisions", json=GOOD).status_code == 200


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scoring]:
    """Two clients: one for everything, one for feedback only."""
    lines = ["# clients", f"shop {hashlib.sha256(b'key-1').hexdigest()}"]
    lines += ["", f"labels {hashlib.sha256(b'key-2').hexdigest()} feedback"]
    (tmp_path / "clients").write_text("\n".join(lines))
    monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path / "clients"))
    with scoring(tmp_path) as service:
        yield service


def test_only_known_clients_are_let_in_and_only_to_what_they_may(keyed: Scoring) -> None:
    """401 without a known key, 403 outside its scopes; health stays open; the log names the client."""
    headers: list[dict[str, str]] = [{}, {"authorization": "Bearer key-3"}, {"x-api-key": ""}]
    headers += [{"authorization": "key-1"}, {"authorization": "Bearer " + "x" * 5000}]
    for sent in headers:
        refused = ask(keyed, headers=sent)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.headers["content-type"] == "application/problem+json"
    assert ask(keyed, headers={"authorization": "Bearer key-2"}).status_code == 403
    found = ask(keyed, headers={"authorization": "Bearer key-1"})
    assert found.status_code == 200
    assert ask(keyed, headers={"x-api-key": "key-1"}).status_code == 200
    told = {"decision_id": found.json()["decision_id"], "label": "yes", "observed_at": datetime.now(UTC).isoformat()}
    url = f"{keyed.url}/v1/feedback"
    assert httpx.post(url, json=told, headers={"x-api-key": "key-2"}).status_code == 200
    assert httpx.get(f"{keyed.url}/healthz").status_code == 200
    assert {row["client"] for row in read_decisions(keyed.log)} == {"shop"}
    assert b"key-1" not in keyed.log.read_bytes()


@pytest.mark.parametrize("line", ["shop key-1", "shop " + "a" * 64 + " everything", "a" * 64])
def test_a_key_file_with_a_key_in_the_clear_is_refused_without_repeating_it(tmp_path: Path, line: str) -> None:
    """The line's number is told, nothing of its content."""
    (tmp_path / "clients").write_text("# clients\n" + line)
    with pytest.raises(UserError, match="line 2") as caught:
        read_clients(tmp_path / "clients")
    assert "key-1" not in str(caught.value)


def test_traces_reach_the_collector_and_hold_no_text_or_entity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One trace from the caller's header over features and arm to the model server; bounded by its processor."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    trace = "0af7651916cd43dd8448eb211c80319c"
    try:
        with scoring(tmp_path) as service:
            body = {"entities": {"shop": "shop-secret"}, "input": {"text": "my secret"}}
            found = ask(service, body, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"}).json()
            onward = {name.lower(): value for name, value in service.arms.seen[0][3].items()}["traceparent"]
    finally:
        collector.shutdown()
        collector.server_close()
    spans: dict[str, dict[str, str]] = {}
    for sent in bodies:
        message = ExportTraceServiceRequest.FromString(sent)
        for span in message.resource_spans[0].scope_spans[0].spans:
            assert span.trace_id.hex() == trace
            spans[span.name] = {item.key: item.value.string_value for item in span.attributes}
    assert {"POST /v1/decisions", "decide", "features", "ask"} <= set(spans)
    assert spans["decide"]["decision_id"] == found["decision_id"]
    assert (spans["decide"]["version"], spans["ask"]["arm"]) == ("1", "stable")
    assert onward.split("-")[1] == trace
    assert not any(b"secret" in sent for sent in bodies)


def test_a_collector_that_is_gone_costs_nobody_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come as quickly as without, and the service ends in time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with scoring(tmp_path) as service:
        started = time.perf_counter()
        assert [ask(service).status_code for _ in range(5)] == [200] * 5
        assert time.perf_counter() - started < 3
        leaving = time.perf_counter()
    assert time.perf_counter() - leaving < 15


def test_sigterm_loses_no_record(tmp_path: Path) -> None:
    """Whatever was answered is in the log when the service has ended."""
    with scoring(tmp_path) as service, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ask(service).json()["decision_id"], range(200)))
    assert {row["id"] for row in read_decisions(service.log)} == set(found)
