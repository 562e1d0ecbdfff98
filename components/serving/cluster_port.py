"""The scoring pod's second port, for the rollout alone: JSON over HTTP before `cluster_control.Scoring`.

GET /healthz                                        200 while the service is as asked for; no key
GET /state, PUT /state {"state": ..., "after": n}   409 where another generation than n is in force
GET /service, PUT /service {"recipe", "run_id", "training_set", "router_url"}
GET /shadows?after=n                                what the canary answered to mirrored requests
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from components.core.errors import IntegrityError, PilotlineError, UserError, one_line
from components.core.recipe import parse_recipe
from components.serving.cluster_control import FEWEST_KEY_BYTES, OutdatedError, Scoring
from components.serving.control import ArmState, ServingState
from components.serving.scoring_service import ServiceConfig

LARGEST_BODY, SMALL_BODY = 1 << 22, 1 << 16
IDLE_SECONDS = 10.0


class ControlPort:
    """The port, served by threads of its own from `start` to `close`."""

    def __init__(self, scoring: Scoring, key: str, port: int, host: str = "0.0.0.0") -> None:  # noqa: S104 - the network policy says who gets there
        if len(key) < FEWEST_KEY_BYTES:
            raise UserError("control key: too short; delete the file, a new one is made")
        self._server = ThreadingHTTPServer((host, port), _handler(scoring, key))
        self._server.daemon_threads = True

    def start(self) -> None:
        """Answer."""
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True, name="control").start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def _handler(scoring: Scoring, key: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/healthz":  # of the kubelet, which has no key and learns nothing
                self._send(200 if scoring.well else 503, {"well": scoring.well})
            elif self._known():
                self._answer(lambda: _read(scoring, url.path, parse_qs(url.query)))

        def do_PUT(self) -> None:
            if not self._known():
                return
            size = self.headers.get("content-length", "")
            if not size.isdigit() or int(size) > LARGEST_BODY:
                self._forget()
                self._send(413, {"detail": "no length, or too large"})
                return
            body = self.rfile.read(int(size))
            self._answer(lambda: _write(scoring, urlsplit(self.path).path, body))

        def _known(self) -> bool:
            given = self.headers.get("authorization", "")
            known = hmac.compare_digest(given.encode(), f"Bearer {key}".encode())
            if not known:
                self._forget()
                self._send(401, {"detail": "not the key of this home's serving folder"})
            return known

        def _forget(self) -> None:
            """A small body is taken in unread, so that the answer comes before the connection ends."""
            self.close_connection = True
            size = self.headers.get("content-length", "")
            if size.isdigit() and int(size) <= SMALL_BODY:
                self.rfile.read(int(size))

        def _answer(self, make: Callable[[], dict[str, Any] | None]) -> None:
            try:
                found = make()
            except OutdatedError as error:
                self._send(409, {"detail": one_line(error)})
            except (PilotlineError, ValueError, KeyError, TypeError) as error:
                self._send(422, {"detail": one_line(error)})
            except Exception as error:
                self._send(500, {"detail": one_line(error)})
            else:
                self._send(404 if found is None else 200, found or {})

        def _send(self, status: int, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            if self.close_connection:
                self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler


def _read(scoring: Scoring, path: str, query: dict[str, list[str]]) -> dict[str, Any] | None:
    if path == "/state":
        return asdict(scoring.state())
    if path == "/service":
        return scoring.health()
    if path == "/shadows":
        return {"rows": scoring.shadows(int(query["after"][0]))}
    if path == "/labels":
        found = scoring.labels(int(query["after"][0]), int(query["decided_after"][0]))
        return {"rows": [asdict(label) for label in found]}
    if path == "/newest":
        return scoring.newest()
    return None


def _write(scoring: Scoring, path: str, body: bytes) -> dict[str, Any] | None:
    given = json.loads(body)
    if path == "/state":
        scoring.set_state(state_of(given["state"]), int(given["after"]))
        return {"generation": scoring.state().generation}
    if path == "/service":
        recipe, training_set = str(given["recipe"]), Path(given["training_set"])
        parse_recipe(recipe)
        asked = ServiceConfig("", str(given["run_id"]), 0, str(given["router_url"]), "", "", "", recipe)
        return {"instance": scoring.serve(asked, training_set).instance}
    return None


def state_of(values: Any) -> ServingState:
    """A state from plain values; IntegrityError where it is none."""
    try:
        arms = {str(arm): ArmState(**about) for arm, about in values["arms"].items()}
        return ServingState(**{**values, "arms": arms})
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise IntegrityError(f"not a serving state ({type(error).__name__})") from error
