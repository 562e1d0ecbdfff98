"""A model server that answers everything, so that a test sees what a router lets through; behaviour on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class RecordingServer:
    """Answers 200 with its name; `seen` lists (method, target as sent, headers) of each request.

    Attributes:
        status: of the answers.
        seconds: before each answer.
        hold: the answers wait for it, where given.
        broken: the connection is closed after the request was read, without an answer.
    """

    name: str
    status: int = 200
    seconds: float = 0.0
    hold: threading.Event | None = None
    broken: bool = False
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Listen on a free loopback port."""
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        if self.hold:
            self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def _handler(owner: RecordingServer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (ConnectionError, TimeoutError):
                self.close_connection = True

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._answer
            raise AttributeError(name)

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.rfile.read(int(headers.get("content-length", 0)))
            owner.seen.append((self.command, self.path, headers))
            if owner.hold:
                owner.hold.wait(30)
            time.sleep(owner.seconds)
            if owner.broken:
                self.close_connection = True
                return
            body = json.dumps({"served_by": owner.name}).encode()
            self.send_response(owner.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler
