"""A loopback double of MLflow's registry over HTTP, which can fail as servers and networks do.

It keeps versions, tags and aliases in memory and speaks the part of MLflow's REST interface that registration uses.
A fault is planted for a call by the end of its path: `500` answers so, `slow` answers late, `drop` does the work and
closes the connection without an answer, `refuse` closes it before the work. Every call that changes something is noted.
"""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlparse

PREFIX = "/api/2.0/mlflow/"


class MlflowHttp:
    """The server; use it as a context manager.

    Attributes:
        faults: end of a path → (fault, how often it strikes).
        calls: path of every call, in order.
        versions: versions of every model, in order.
        seconds: how long `slow` waits.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        self.faults: dict[str, tuple[str, int]] = {}
        self.calls: list[str] = []
        self.models: dict[str, dict[str, str]] = {}
        self.versions: list[dict[str, Any]] = []
        self.seconds, self._lock = seconds, threading.Lock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                double._handle(self)

            do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815 - http.server looks them up by these names

            def log_message(self, *about: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> MlflowHttp:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def count(self, end: str) -> int:
        """How often a path with this end was called."""
        return sum(call.endswith(end) for call in self.calls)

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        address = urlparse(request.path)
        path = address.path.removeprefix(PREFIX)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        given = json.loads(body) if body else dict(parse_qsl(address.query))
        with self._lock:
            self.calls.append(f"{request.command} {path}")
            fault = self._fault(path)
        if fault == "slow":
            self._ended.wait(self.seconds)
        if fault == "refuse":
            request.close_connection = True
            return
        with self._lock:
            status, answer = (500, {"message": "broken"}) if fault == "500" else self._do(request.command, path, given)
        if fault == "drop":
            request.close_connection = True
            return
        text = json.dumps(answer).encode()
        try:
            request.send_response(status)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(text)))
            request.end_headers()
            request.wfile.write(text)
        except OSError:
            request.close_connection = True  # the client gave up

    def _fault(self, path: str) -> str:
        for end, (fault, times) in self.faults.items():
            if path.endswith(end) and times > 0:
                self.faults[end] = (fault, times - 1)
                return fault
        return ""

    def _do(self, method: str, path: str, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = given.get("name", "")
        match method, path:
            case _, "experiments/search":
                return 200, {"experiments": []}
            case _, "registered-models/search":
                wanted = _named(given)
                found = [self._model(item) for item in self.models if not wanted or item == wanted]
                return 200, {"registered_models": found}
            case _, "registered-models/get":
                return 200, {"registered_model": self._model(name)}
            case _, "registered-models/create":
                if name in self.models:
                    return 400, {"error_code": "RESOURCE_ALREADY_EXISTS", "message": f"{name} is there"}
                self.models[name] = {}
                return 200, {"registered_model": self._model(name)}
            case _, "model-versions/search":
                wanted = _named(given)
                return 200, {"model_versions": [item for item in self.versions if item["name"] == wanted]}
            case _, "model-versions/create":
                number = sum(item["name"] == name for item in self.versions) + 1
                made = {key: given.get(key, "") for key in ("name", "source", "run_id")}
                made |= {"version": str(number), "tags": given.get("tags", []), "status": "READY"}
                made |= {"creation_timestamp": int(time.time() * 1000)}
                self.versions.append(made)
                return 200, {"model_version": made}
            case "POST", "registered-models/alias":
                self.models[name][given["alias"]] = given["version"]
                return 200, {}
            case "DELETE", "registered-models/alias":
                self.models[name].pop(given["alias"], None)
                return 200, {}
            case _, "model-versions/set-tag":
                return 200, {}
        return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": path}

    def _model(self, name: str) -> dict[str, Any]:
        aliases = [{"alias": alias, "version": version} for alias, version in self.models[name].items()]
        return {"name": name, "aliases": aliases}


def _named(given: dict[str, Any]) -> str:
    """The model that a filter asks for; MLflow adds conditions of its own behind it."""
    found = re.search(r"name = '([^']*)'", given.get("filter", ""))
    return found[1] if found else ""
