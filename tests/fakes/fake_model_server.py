"""A model server without a model: vLLM's scoring endpoint, its shapes and metric names, and faults on demand.

    python -m tests.fakes.fake_model_server --port PORT --served-model-name NAME [ALIAS...] [--fault KIND[:NUMBER]]

Faults: `error` (500), `hang`, `nan`, `wrong_model`, `no_labels`, `garbage` (not JSON), `slow:SECONDS`,
`die_after:REQUESTS`, `unready` (healthy, but no request is scored), `exit` (ends at once), `mute` (never listens).
Faults begin after the requests of the readiness probe (PROBES), except unready, exit and mute.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from components.core.paths import PROJECT_ROOT
from components.serving.engine import Launch
from components.serving.replica import WARM_UP_REQUESTS

PROBES = WARM_UP_REQUESTS + 1
MOST_TOKENS = 4096


def fake_logprobs(prompt: Sequence[int], label_ids: Sequence[int]) -> dict[int, float]:
    """Log probabilities that depend on the prompt alone, so that a test knows them without asking."""
    unit = int.from_bytes(hashlib.sha256(json.dumps(list(prompt)).encode()).digest()[:6], "big") / 2**48
    yes = 0.05 + 0.9 * unit
    shares = {label_ids[0]: 1 - yes, label_ids[-1]: yes}
    return {token: math.log(0.9 * shares[token]) for token in label_ids}


@dataclass
class FakeEngine:
    """A `components.serving.engines.Engine` that starts the fake; `faults` by arm, as of the arm's start."""

    faults: dict[str, str] = field(default_factory=dict)
    name: str = "fake"
    label: str = "fake 1"

    def preflight(self, model_dir: Path) -> None:
        """Serves anything."""

    def check_head_size(self, size: int, where: str) -> None:
        """Any size."""

    def command(self, launch: Launch) -> list[str]:
        """This module, with the arm's fault."""
        fault = self.faults.get(launch.arm, "")
        module = [sys.executable, "-m", "tests.fakes.fake_model_server"]
        return [*module, "--port", str(launch.port), "--fault", fault, "--served-model-name", *launch.served_names]

    def environment(self, launch: Launch) -> dict[str, str]:
        """The project's root on the path."""
        return {"PYTHONPATH": str(PROJECT_ROOT)}


class FakeModelServer(ThreadingHTTPServer):
    """The server; `answered` counts completions."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, names: Sequence[str], fault: str) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.names = list(names)
        self.fault, _, number = fault.partition(":")
        self.number = float(number or 0)
        self.answered = 0
        self.lock = threading.Lock()

    def next_fault(self) -> str:
        """The fault of the next completion."""
        with self.lock:
            self.answered += 1
            if self.fault == "unready":
                return "error"
            return self.fault if self.answered > PROBES else ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeModelServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, b"")
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.server.names]})
        elif self.path == "/metrics":
            self._send(200, _metrics(self.server).encode(), "text/plain")
        else:
            self._error(404, "Not Found")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            asked = json.loads(body)
            if self.path == "/tokenize":
                ids = list(str(asked["prompt"]).encode())
                self._json(200, {"count": len(ids), "max_model_len": MOST_TOKENS, "tokens": ids, "token_strs": None})
            elif self.path == "/v1/completions":
                self._complete(asked)
            else:
                self._error(404, "Not Found")
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._error(400, f"bad request: {type(error).__name__}")

    def _complete(self, asked: dict[str, Any]) -> None:
        if asked["model"] not in self.server.names:
            self._error(404, f"The model `{asked['model']}` does not exist.")
            return
        prompt = asked["prompt"]
        ids = list(prompt.encode()) if isinstance(prompt, str) else [int(token) for token in prompt]
        if not ids or len(ids) >= MOST_TOKENS or min(ids) < 0 or max(ids) > 900_000:
            self._error(400, "the prompt does not fit")
            return
        fault = self.server.next_fault()
        if fault == "die_after" and self.server.answered > PROBES + self.server.number:
            os._exit(9)
        if fault == "hang":
            time.sleep(3600)
        if fault == "slow":
            time.sleep(self.server.number)
        if fault == "error":
            self._error(500, "EngineCore encountered an issue.")
        elif fault == "garbage":
            self._send(200, b"<html>")
        else:
            self._json(200, _answer(asked, self.server.names[0], ids, fault))

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "error", "param": None, "code": status}})

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode())

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        with suppress(ConnectionError):  # the caller gave up
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _answer(asked: dict[str, Any], served: str, ids: list[int], fault: str) -> dict[str, Any]:
    labels = asked.get("logprob_token_ids") or []
    top = {f"token_id:{token}": value for token, value in fake_logprobs(ids, labels).items()} if labels else {}
    if fault == "nan":
        top = dict.fromkeys(top, math.nan)
    if fault == "no_labels":
        top = {}
    top["token_id:3"] = -0.1
    logprobs = None
    if asked.get("logprobs") is not None:
        logprobs = {"text_offset": [0], "token_logprobs": [-0.1], "tokens": ["token_id:3"], "top_logprobs": [top]}
    usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
    return {
        "id": "cmpl-fake",
        "object": "text_completion",
        "created": int(time.time()),
        "model": "somebody-else" if fault == "wrong_model" else served,
        "choices": [{"index": 0, "text": "?", "logprobs": logprobs, "finish_reason": "length", "stop_reason": None}],
        "usage": usage,
    }


def _metrics(server: FakeModelServer) -> str:
    label = f'{{model_name="{server.names[0]}"}}'
    done = f'{{finished_reason="length",model_name="{server.names[0]}"}}'
    lines = [
        f"vllm:num_requests_running{label} 0.0",
        f"vllm:num_requests_waiting{label} 0.0",
        f"vllm:kv_cache_usage_perc{label} 0.0",
        f"vllm:request_success_total{done} {server.answered}.0",
        f"vllm:time_to_first_token_seconds_count{label} {server.answered}.0",
        f"vllm:e2e_request_latency_seconds_count{label} {server.answered}.0",
        f'http_requests_total{{status="2xx"}} {server.answered}.0',
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", nargs="+", required=True)
    parser.add_argument("--fault", default="")
    given = parser.parse_args()
    if given.fault == "exit":
        print("the model file is truncated", file=sys.stderr)
        return 3
    if given.fault == "mute":
        time.sleep(3600)
    FakeModelServer(given.port, given.served_model_name, given.fault).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
