"""A gateway's data plane on loopback: each request goes where the HTTPRoute's rules send it at that moment."""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.fakes.gateway_rules import answer

DROPPED = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class FakeGateway:
    """Listens on a free port; a context manager. `served` counts requests by the Service that they went to."""

    def __init__(self, route: Callable[[], Mapping[str, Any]], port_of: Callable[[str], int | None]) -> None:
        """`route` reads the HTTPRoute, `port_of` tells where a Service's pod listens, None where it has none."""
        self.route, self.port_of, self.draw = route, port_of, random.Random(7)
        self.served: dict[str, int] = {}
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(gateway: FakeGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, name = answer(gateway.route(), self.command, self.path, headers, gateway.draw)
            if status != 200:
                self._send(status, b"", "text/plain")
                return
            with gateway.lock:
                gateway.served[name] = gateway.served.get(name, 0) + 1
            port = gateway.port_of(name)
            try:
                if port is None:
                    raise OSError("no endpoint")
                upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                kept = {key: value for key, value in headers.items() if key not in DROPPED}
                upstream.request(self.command, self.path, body, kept)
                found = upstream.getresponse()
                content = found.read()
                upstream.close()
            except (OSError, http.client.HTTPException):
                self._send(503, b"no healthy upstream", "text/plain")
                return
            self._send(found.status, content, found.getheader("content-type") or "text/plain")

        do_GET = do_POST = _serve  # noqa: N815

        def _send(self, status: int, content: bytes, kind: str) -> None:
            with suppress(ConnectionError):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler
