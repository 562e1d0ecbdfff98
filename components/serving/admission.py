"""Before the application: whose key it is, how much is in flight, how long a body may take. Refusals are problems."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.serving.problems import Message, Receive, Send, refuse

KEYS_VARIABLE = "PILOTLINE_API_KEYS"  # a file: one client a line, "NAME SHA256-OF-KEY [decide,feedback,generate]"
KEY_VARIABLE = "PILOTLINE_API_KEY"  # the key that Pilotline's own callers send
SCOPES = {
    "/v1/decisions": "decide",
    "/v1/feedback": "feedback",
    "/v1/completions": "generate",
    "/v1/chat/completions": "generate",
}
LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})[ \t]+([0-9a-f]{64})(?:[ \t]+([a-z]+(?:,[a-z]+)*))?")
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True)
class Client:
    """Who a key belongs to, and what it may ask for."""

    name: str
    digest: bytes
    scopes: frozenset[str]


def read_clients(path: Path) -> tuple[Client, ...]:
    """The clients of a key file; keys are in it by their sha256 only.

    Raises:
        UserError: it cannot be read, or a line does not fit; the line's number, never its content, is told.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"API keys {path}: cannot be read ({error}); see {KEYS_VARIABLE}") from error
    clients = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = LINE.fullmatch(line.strip())
        scopes = frozenset((found[3] or "decide,feedback,generate").split(",")) if found else frozenset()
        if found is None or not scopes <= set(SCOPES.values()):
            raise UserError(f"API keys {path}, line {number}: write NAME SHA256 [decide,feedback,generate]")
        clients.append(Client(found[1], bytes.fromhex(found[2]), scopes))
    return tuple(clients)


def clients_of_environment() -> tuple[Client, ...] | None:
    """The clients that the environment names, None where it names no file: then whoever reaches the port may ask."""
    path = os.environ.get(KEYS_VARIABLE)
    return read_clients(Path(path)) if path else None


def own_headers() -> dict[str, str]:
    """What Pilotline's own callers send to be let in."""
    key = os.environ.get(KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


class Doorkeeper:
    """ASGI middleware: requests under /v1 need a client's key, where there are clients."""

    def __init__(self, app: Any, clients: tuple[Client, ...] | None) -> None:
        self.app, self.clients = app, clients

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse with 401 without a known key, with 403 where the client may not ask for this."""
        if scope["type"] != "http" or self.clients is None or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        client = self._client(scope)
        if client is None:
            challenge = [(b"www-authenticate", b"Bearer")]
            await refuse(
                send, 401, "no API key of a known client; send it as Authorization: Bearer KEY", challenge, receive
            )
        elif SCOPES.get(scope["path"]) not in {*client.scopes, None}:
            said = f"client {client.name} may not ask for {SCOPES[scope['path']]}"
            await refuse(send, 403, said, receive=receive)
        else:
            scope.setdefault("state", {})["client"] = client.name
            await self.app(scope, receive, send)

    def _client(self, scope: Message) -> Client | None:
        """Every client's digest is compared, so that the time tells nothing about the keys."""
        given = sha256(_key(scope)).digest()
        found = None
        for client in self.clients or ():
            if hmac.compare_digest(given, client.digest):
                found = client
        return found


def _key(scope: Message) -> bytes:
    """The one key that was sent; none where there are several: who reads another one would see another client."""
    found = []
    for name, value in scope["headers"]:
        if name == b"authorization":
            found.append(bytes(value[7:].strip()) if value[:7].lower() == b"bearer " else b"")
        elif name == b"x-api-key":
            found.append(bytes(value))
    return found[0] if len(found) == 1 else b""


class Shedding:
    """ASGI middleware: at most so many requests are worked on; more are told at once to come again."""

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most, self.now = app, most, 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse with 429 and Retry-After where all places are taken; health and metrics always pass."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        if self.now >= self.most:
            again = [(b"retry-after", str(RETRY_AFTER_SECONDS).encode())]
            await refuse(send, 429, f"{self.most} requests are being answered; come again", again)
            return
        self.now += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.now -= 1


class Counting:
    """ASGI middleware: tells `count` the status of every answer under /v1 that is an error."""

    def __init__(self, app: Any, count: Callable[[int], None]) -> None:
        self.app, self.count = app, count

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Look at the answer's status on its way out."""

        async def looked(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self.count(int(message["status"]))
            await send(message)

        counted = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await self.app(scope, receive, looked if counted else send)
