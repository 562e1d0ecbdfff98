"""What Envoy keeps from the model servers: other paths, large and slow bodies, callers' own retries, failing arms."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.serving.router.envoy import Envoy
from components.serving.router.envoy_config import Limits
from components.serving.router.interface import ALLOWED, ARM_HEADER, Backend
from tests.fakes.recording_server import RecordingServer

HIDDEN = ("/tokenize", "/detokenize", "/metrics", "/invocations", "/generative_scoring", "/scale_elastic_ep", "/docs",
          "/openapi.json", "/health", "/version", "/ping", "/v1/load_lora_adapter", "/v1/embeddings", "/score",
          "/v1/models/x", "/v1/chat", "/v1")  # fmt: skip
STABLE = {ARM_HEADER: "stable"}
CLIENT = httpx.Client(trust_env=False)


@contextmanager
def _routed(
    folder: Path, server: RecordingServer, seconds: float = 5.0, limits: Limits | None = None
) -> Iterator[Envoy]:
    envoy = Envoy(folder / "envoy", folder / "envoy.log", seconds, limits=limits)
    try:
        envoy.start()
        envoy.set_arm("stable", Backend("127.0.0.1", server.port))
        yield envoy
    finally:
        envoy.close()


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    """The client's connections end with this file."""
    yield
    CLIENT.close()


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Envoy, RecordingServer]]:
    """Stable behind Envoy, which answers whatever it is asked."""
    with RecordingServer("stable") as server, _routed(tmp_path_factory.mktemp("routed"), server) as envoy:
        yield envoy, server


def _send(envoy: Envoy, head: bytes, wait: float = 3.0, all_of_it: bool = False) -> bytes:
    """A request byte by byte; the first answer, or all that came before the time was over."""
    with socket.create_connection(("127.0.0.1", envoy.port), timeout=wait) as connection:
        connection.sendall(head)
        found = b""
        try:
            while (all_of_it or b"\r\n\r\n" not in found) and (part := connection.recv(65536)):
                found += part
        except (TimeoutError, ConnectionError):
            pass
    return found


def _post(envoy: Envoy, seconds: float = 10.0) -> httpx.Response:
    """A completion of stable, on the caller's one client (making a client costs a tenth of a second)."""
    return CLIENT.post(f"{envoy.url}/v1/completions", headers=STABLE, timeout=seconds)


def _tricks(path: str) -> st.SearchStrategy[str]:
    """One path, spelt in the ways that proxies and servers read differently."""
    word = path.lstrip("/")
    fixed = [
        path, path + "/", "/" + path, f"//{word}", f"/./{word}", f"/%2e/{word}", f"/x/../{word}", f"/x/%2e%2e/{word}",
        f"/v1/completions/..{path}", f"/v1/completions/%2e%2e/%2e%2e{path}", f"/v1/completions/..%2f..%2f{word}",
        f"/v1/completions%2f..%2f..%2f{word}", f"/v1/completions;{path}", f"/v1/completions;x=1/..{path}",
        f"/v1/completions/..;{path}", f"/v1/completions%00{path}", f"/v1/completions%5c..%5c{word}",
        f"/v1/completions\\..\\{word}", f"/v1/completions%23{path}", f"/v1/completions%3f{path}", f"/v1/models{path}",
        path.upper(), path.replace("o", "%6f"), path.replace("e", "%65"), f"/{word}%20", f"/{word};x", f"/{word}%2f",
        f"/%2f{word}", f"/%252e%252e{path}", f"/v1/completions/%252e%252e/%252e%252e{path}", f"{path}%0d%0ax:y",
        f"http://other{path}", f"http://other/v1/completions/../..{path}",
    ]  # fmt: skip
    encoded = st.lists(st.sampled_from(list(path)), min_size=1, max_size=3).map(
        lambda letters: "".join(f"%{ord(c):02X}" if c in letters and c != "/" else c for c in path)
    )
    dotted = st.lists(st.sampled_from(["/.", "/..", "/%2e%2e", "//", "/v1", "/;a", "/%2e"]), max_size=6).map(
        lambda parts: "".join(parts) + path
    )
    return st.sampled_from(fixed) | encoded | dotted


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    path=st.sampled_from(HIDDEN).flatmap(_tricks),
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "PATCH", "TRACE"]),
    arm=st.sampled_from(["", "x-pilotline-arm: stable\r\n"]),
    extra=st.sampled_from(["", "x-envoy-original-path: /tokenize\r\n", "x-original-url: /tokenize\r\n",
                           "x-rewrite-url: /tokenize\r\n", "x-http-method-override: PUT\r\n"]),
)  # fmt: skip
def test_whatever_the_spelling_only_a_listed_path_reaches_the_model_server(
    routed: tuple[Envoy, RecordingServer], path: str, method: str, arm: str, extra: str
) -> None:
    """The model server's own record is the judge: exact path and method are on the list, or nothing arrived."""
    envoy, server = routed
    server.seen.clear()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{arm}{extra}content-length: 0\r\nconnection: close\r\n\r\n"
    found = _send(envoy, head.encode())
    for seen_method, seen_path, _ in server.seen:
        assert (seen_path.partition("?")[0], seen_method) in ALLOWED
    assert server.seen or not found.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", HIDDEN)
def test_the_model_servers_other_endpoints_are_not_found(routed: tuple[Envoy, RecordingServer], path: str) -> None:
    """By every method, with an arm and without."""
    envoy, server = routed
    server.seen.clear()
    for method in ("GET", "POST", "PUT", "DELETE"):
        for headers in ({}, STABLE):
            assert CLIENT.request(method, f"{envoy.url}{quote(path)}", headers=headers).status_code == 404
    assert not server.seen


def test_a_second_request_hidden_in_a_body_is_not_one(routed: tuple[Envoy, RecordingServer]) -> None:
    """Two lengths, a length beside chunks, and a tunnel: refused, and nothing else reaches the server."""
    envoy, server = routed
    hidden = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
    start = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-pilotline-arm: stable\r\n"
    heads = (
        start + b"content-length: 0\r\ncontent-length: 35\r\n\r\n" + hidden,
        start + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
        start + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden,
        b"CONNECT /metrics HTTP/1.1\r\nhost: x:80\r\n\r\n" + hidden,
        start + b"upgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 0\r\n\r\n" + hidden,
    )
    for head in heads:
        server.seen.clear()
        _send(envoy, head, 0.5, all_of_it=True)
        assert {seen[1] for seen in server.seen} <= {"/v1/completions"}, head


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not(tmp_path: Path) -> None:
    """Also in chunks, where no length is said; nothing of it reaches the server."""
    with RecordingServer("stable") as server, _routed(tmp_path, server, limits=Limits(body_bytes=1000)) as envoy:
        url = f"{envoy.url}/v1/completions"
        assert CLIENT.post(url, content=b"x" * 1000, headers=STABLE).status_code == 200
        assert CLIENT.post(url, content=b"x" * 1001, headers=STABLE).status_code == 413
        assert CLIENT.post(url, content=iter([b"x" * 600, b"x" * 600]), headers=STABLE).status_code == 413
        assert len(server.seen) == 1


def test_a_hanging_server_is_a_timeout_and_a_slow_sender_is_cut_off(tmp_path: Path) -> None:
    """504 after the router's own time; a caller that never ends its headers or its body is dropped, unserved."""
    with RecordingServer("stable", hold=threading.Event()) as server, _routed(tmp_path, server, 0.6) as envoy:
        began = time.monotonic()
        assert CLIENT.post(f"{envoy.url}/v1/completions", headers=STABLE, timeout=10).status_code == 504
        assert 0.5 < time.monotonic() - began < 4
        assert server.hold is not None
        server.hold.set()
        server.seen.clear()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-pilotline-arm: stable\r\ncontent-length: 10\r\n\r\nab"
        found = _send(envoy, head, 14.0)
        assert found.startswith((b"HTTP/1.1 408", b"HTTP/1.1 504"))
        assert not server.seen


@pytest.mark.parametrize("headers", [
    {}, {"x-envoy-retry-on": "5xx,gateway-error,reset", "x-envoy-max-retries": "5"},
    {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "5", "x-forwarded-for": "127.0.0.1"},
    {"x-envoy-retry-on": "5xx", "x-envoy-internal": "true"},
])  # fmt: skip
def test_a_request_that_reached_the_server_is_never_sent_again(tmp_path: Path, headers: dict[str, str]) -> None:
    """Neither after a 500 or 503 nor after a broken connection, whatever the caller's headers ask for."""
    with RecordingServer("stable") as server, _routed(tmp_path, server) as envoy:
        for server.status, server.broken, told in ((500, False, 500), (503, False, 503), (200, True, 503)):
            server.seen.clear()
            answer = CLIENT.post(f"{envoy.url}/v1/completions", json={}, headers=STABLE | headers)
            assert answer.status_code == told
            assert len(server.seen) == 1
            assert not [name for name in server.seen[0][2] if name.startswith("x-envoy-retry")]


def test_a_callers_timeout_header_does_not_lengthen_the_routers_own(tmp_path: Path) -> None:
    """x-envoy-upstream-rq-timeout-ms of a stranger is not obeyed."""
    with RecordingServer("stable", hold=threading.Event()) as server, _routed(tmp_path, server, 0.6) as envoy:
        began = time.monotonic()
        headers = STABLE | {"x-envoy-upstream-rq-timeout-ms": "20000"}
        assert CLIENT.post(f"{envoy.url}/v1/completions", headers=headers, timeout=15).status_code == 504
        assert time.monotonic() - began < 5


def test_a_connection_that_was_refused_is_tried_again(tmp_path: Path) -> None:
    """It reached nobody, so trying again is safe; the caller gets 503 in the end."""
    with RecordingServer("stable") as server:
        gone = server.port
    with RecordingServer("other") as server, _routed(tmp_path, server) as envoy:
        envoy.set_arm("stable", Backend("127.0.0.1", gone))
        assert CLIENT.post(f"{envoy.url}/v1/completions", headers=STABLE).status_code == 503
        assert envoy.counter("stable", "upstream_rq_retry") == 2


def test_an_arm_that_keeps_failing_is_ejected_and_comes_back(tmp_path: Path) -> None:
    """After five timeouts in a row callers are told without asking it again; a second later it is tried again."""
    limits = Limits(eject_after=5, eject_seconds=1)
    with RecordingServer("stable", hold=threading.Event()) as server, _routed(tmp_path, server, 0.3, limits) as envoy:
        assert [_post(envoy).status_code for _ in range(5)] == [504] * 5
        assert _post(envoy).status_code == 503
        assert len(server.seen) == 5
        assert envoy.counter("stable", "outlier_detection.ejections_enforced_total") == 1
        assert server.hold is not None
        server.hold.set()
        until = time.monotonic() + 10
        while _post(envoy).status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_requests_that_break_the_model_do_not_take_the_arm_from_others(tmp_path: Path) -> None:
    """A 500 counts against no arm: twenty in a row, and the next request is served."""
    with RecordingServer("stable", status=500) as server, _routed(tmp_path, server) as envoy:
        url = f"{envoy.url}/v1/completions"
        assert {CLIENT.post(url, headers=STABLE).status_code for _ in range(20)} == {500}
        server.status = 200
        assert CLIENT.post(url, headers=STABLE).status_code == 200


def test_more_requests_than_an_arm_may_have_and_keep_waiting_are_told_so_at_once(tmp_path: Path) -> None:
    """The circuit breaker: four in flight and two waiting keep their turn, the seventh and eighth get 503."""
    limits = Limits(requests=4, waiting=2)
    with (
        RecordingServer("stable", hold=threading.Event()) as server,
        _routed(tmp_path, server, 20, limits) as envoy,
        ThreadPoolExecutor(6) as pool,
    ):
        waiting = []
        for count in range(6):
            waiting.append(pool.submit(_post, envoy, 20.0))
            _until(lambda: len(server.seen) == min(count + 1, 4))  # noqa: B023 - called before the loop goes on
        _until(lambda: envoy.counter("stable", "upstream_rq_pending_active") == 2)
        assert len(server.seen) == 4
        over = [_post(envoy) for _ in range(2)]
        assert [answer.status_code for answer in over] == [503, 503]
        assert over[0].headers["x-envoy-overloaded"] == "true"
        assert server.hold is not None
        server.hold.set()
        assert [answer.result().status_code for answer in waiting] == [200] * 6


def _until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/drain_listeners"), ("POST", "/quitquitquit"), ("POST", "/logging?level=trace"), ("GET", "/runtime"),
     ("POST", "/healthcheck/fail"), ("POST", "/reset_counters"), ("POST", "/stats/recentlookups/enable"),
     ("GET", "/memory"), ("POST", "/%64rain_listeners"), ("POST", "/stats/../drain_listeners")],
)  # fmt: skip
def test_the_admin_port_takes_no_orders(routed: tuple[Envoy, RecordingServer], method: str, path: str) -> None:
    """Whoever reaches it on this machine can neither drain nor end the router."""
    envoy, _ = routed
    request = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", envoy.admin_port), timeout=5) as connection:
        connection.sendall(request)
        assert connection.recv(4096).split(b" ")[1] in (b"403", b"404")
    assert envoy.health().ok
    assert _post(envoy).status_code == 200
