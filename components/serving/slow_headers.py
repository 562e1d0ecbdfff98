"""uvicorn's HTTP protocol with a bound on the time that a request's headers may take; uvicorn itself waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0


class BoundedHeaders(HttpToolsProtocol):
    """Closes a connection that sends no request, or half the headers of one, for HEADER_SECONDS."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A caller has so long for its first request."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """The body's time is bounded by `BodyLimit`, the next request's by uvicorn's keep-alive."""
        self._enough()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._enough()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._enough()
        self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _enough(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
