"""Both arms behind one port, as the router shows them: what an arm does is set by the test, at any time.

Behaviours: `ok`, `hang`, `error` (500), `bad` (400), `garbage`, `slow:SECONDS`, and for streams `stall` (one event,
then nothing), `cut` (one event, then the connection ends) and `drip:SECONDS` (each event so long after the one before).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from components.core.processes import free_port, wait_until
from components.core.recipe import Recipe
from components.serving.control import ArmState, ServingState, write_state
from components.serving.router.envoy import Backend, Envoy
from components.serving.router.envoy_config import Limits
from components.serving.scoring import ARM_HEADER
from components.serving.scoring_service import ServiceConfig, create_app, server_options
from tests.fakes.fake_model_server import fake_logprobs
from tests.fakes.serving_case import FixedFeatures, make_shell, tiny_recipe


class ArmsServer(ThreadingHTTPServer):
    """`does` tells each arm's behaviour, `seen` lists (arm, path, body, headers); `ended` ends what hangs."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.does = {"stable": "ok", "canary": "ok"}
        self.seen: list[tuple[str, str, dict[str, Any], dict[str, str]]] = []
        self.ended = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that gave up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ArmsServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        arm = self.headers[ARM_HEADER]
        self.server.seen.append((arm, self.path, asked, dict(self.headers)))
        does, _, number = self.server.does[arm].partition(":")
        if does == "hang":
            self.server.ended.wait(60)
        if does == "slow":
            time.sleep(float(number))
        if does in ("error", "bad"):
            self._send(500 if does == "error" else 400, json.dumps({"error": {"message": does}}).encode())
        elif does == "garbage":
            self._send(200, b"<html>")
        elif asked.get("stream"):
            self._stream(arm, does, float(number or 0) if does == "drip" else 0.0)
        else:
            self._send(200, json.dumps(_answer(asked, arm)).encode())

    def _stream(self, arm: str, does: str, pause: float) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in range(3):
            self._chunk(f'data: {{"model": "{arm}", "part": {part}}}\n\n'.encode())
            self.server.ended.wait(pause)
            if does == "stall":
                self.server.ended.wait(60)
            if does == "cut":
                self.close_connection = True
                self.connection.close()
                return
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        with suppress(OSError):
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    def _send(self, status: int, body: bytes) -> None:
        with suppress(OSError):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _answer(asked: Mapping[str, Any], arm: str) -> dict[str, Any]:
    labels = asked.get("logprob_token_ids")
    if not labels:
        return {"model": arm, "choices": [{"text": "hello"}]}
    top = {f"token_id:{token}": value for token, value in fake_logprobs(asked["prompt"], labels).items()}
    return {"model": asked["model"], "choices": [{"logprobs": {"top_logprobs": [top]}}]}


class Scoring:
    """A scoring service before an ArmsServer; both arms are served, the weight is the test's."""

    def __init__(self, root: Path, url: str, arms: ArmsServer, router_url: str) -> None:
        self.root, self.url, self.arms, self.router_url = root, url, arms, router_url
        self.log = root / "decisions.db"


@contextmanager
def scoring(
    root: Path,
    *,
    weight: float = 0.0,
    shadow: bool = False,
    arms: tuple[str, ...] = ("stable", "canary"),
    envoy: bool = False,
    **sections: Mapping[str, Any],
) -> Iterator[Scoring]:
    """The real application on a real port, in a thread; with `envoy`, Envoy before the arms."""
    import uvicorn

    recipe = tiny_recipe(**sections)

    model = root / "model"
    if not model.exists():
        make_shell(model)
    states = {
        arm: ArmState("tiny", "12"[arm == "canary"], f"digest-{arm}", str(model), "causal_lm", f"tiny-{arm}", 0.5)
        for arm in arms
    }
    write_state(root / "state.json", ServingState(1, weight, shadow, states))
    server = ArmsServer()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    port = free_port()
    router = _envoy(root, recipe, arms, server.server_port) if envoy else None
    config = ServiceConfig(
        instance="i", run_id="run-1", port=port,
        router_url=router.url if router else f"http://127.0.0.1:{server.server_port}",
        state_path=str(root / "state.json"), log_path=str(root / "decisions.db"), training_set=str(root),
        recipe=recipe.to_json(),
    )  # fmt: skip
    assert asdict(config)
    options = server_options() | {"log_level": "error", "timeout_graceful_shutdown": 10}
    service = uvicorn.Server(uvicorn.Config(create_app(config, FixedFeatures()), port=port, **options))
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        assert wait_until(lambda: service.started or not thread.is_alive(), 30.0, every=0.02)
        assert service.started
        yield Scoring(root, f"http://127.0.0.1:{port}", server, config.router_url)
    finally:
        server.ended.set()
        service.should_exit = True
        thread.join(20)
        if router is not None:
            router.close()
        server.shutdown()
        server.server_close()


def _envoy(root: Path, recipe: Recipe, arms: tuple[str, ...], port: int) -> Envoy:
    seconds = recipe.serving.request_timeout_seconds
    router = Envoy(
        root / "envoy", root / "envoy.log", seconds, limits=Limits(stream_seconds=recipe.serving.stream_seconds)
    )
    router.start()
    for arm in arms:
        router.set_arm(arm, Backend("127.0.0.1", port))
    return router
