"""Errors of the HTTP API as application/problem+json (RFC 9457), and the limits on a request's body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

PROBLEM_JSON = "application/problem+json"
LARGEST_BODY_BYTES = 256 << 10
BODY_SECONDS = 10.0
LINGER_SECONDS, LINGER_BYTES = 2.0, 32 << 20  # of a refused body that is read off before the connection is closed

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ProblemError(Exception):
    """An answer that is an error; `more` are extension members of the problem document."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.more = status, detail, more


def problem_body(status: int, detail: str, **more: Any) -> bytes:
    """The problem document."""
    about = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return orjson.dumps(about | more)


def install_problems(app: FastAPI) -> None:
    """Make every error of the application a problem document that never repeats the caller's input."""
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import Response
    from starlette.exceptions import HTTPException

    def answer(status: int, detail: str, headers: Any = None, **more: Any) -> Response:
        return Response(problem_body(status, detail, **more), status, headers, PROBLEM_JSON)

    @app.exception_handler(ProblemError)
    async def problem(_: Request, error: ProblemError) -> Response:
        return answer(error.status, error.detail, **error.more)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        errors = error.errors()
        malformed = any(found["type"] == "json_invalid" for found in errors)
        detail = "the body is not valid JSON" if malformed else f"{_where(errors[0]['loc'])}: {errors[0]['msg']}"
        return answer(HTTPStatus.BAD_REQUEST if malformed else HTTPStatus.UNPROCESSABLE_ENTITY, _printable(detail))

    @app.exception_handler(HTTPException)
    async def plain(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"unexpected {type(error).__name__}; see the service's log")


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:64] for part in location[:8]) or "body"


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class BodyLimit:
    """ASGI middleware: a body over the limit is answered 413 without being read to its end, a slow one 408."""

    def __init__(self, app: Any, largest_bytes: int = LARGEST_BODY_BYTES, seconds: float = BODY_SECONDS) -> None:
        self.app, self.largest_bytes, self.seconds = app, largest_bytes, seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Read the body first, counting, then hand it on whole."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD"}:
            await self.app(scope, receive, send)
            return
        try:
            if wrong := _media_type(scope):
                await refuse(send, 415, wrong, receive=receive)
                return
            async with asyncio.timeout(self.seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            await refuse(send, 408, f"the body did not arrive within {self.seconds:g} s")
            return
        except _TooLargeError as error:
            unread = None if error.whole else receive
            await refuse(send, 413, f"body larger than {self.largest_bytes} bytes", receive=unread)
            return
        if body is not None:
            whole = {"type": "http.request", "body": body, "more_body": False}
            await self.app(scope, replayed(whole, receive), send)

    async def _read(self, scope: Message, receive: Receive) -> bytes | None:
        """The whole body, None where the caller is gone."""
        parts: list[bytes] = []
        size, more = 0, True
        if _declared(scope) > self.largest_bytes:
            raise _TooLargeError
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > self.largest_bytes:
                raise _TooLargeError(whole=not more)
        return b"".join(parts)


class _TooLargeError(Exception):
    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.whole = whole  # all of it was read


def _media_type(scope: Message) -> str:
    """Why the body cannot be what it says it is; "" where it is JSON as it stands."""
    if scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
        return ""
    found = dict(scope["headers"])
    kind = found.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":
        return "send the body as content-type application/json"
    if found.get(b"content-encoding", b"identity").lower() != b"identity":
        return "send the body without a content-encoding"
    return ""


def _declared(scope: Message) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


def replayed(message: Message, receive: Receive) -> Receive:
    """A `receive` that gives this message first."""
    given = False

    async def once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return message

    return once


async def refuse(
    send: Send,
    status: int,
    detail: str,
    more: list[tuple[bytes, bytes]] | None = None,
    receive: Receive | None = None,
) -> None:
    """Answer with a problem document and end the connection.

    Args:
        more: headers.
        receive: where the body may be unread. What a caller goes on sending is read off for a while: closed with unread
            bytes, the connection would be reset, and a caller that writes before it reads would never see the answer.
    """
    body = problem_body(status, detail)
    headers = [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close"), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is not None:
        await _read_off(receive)
        await send({"type": "http.response.body", "body": b""})


async def _read_off(receive: Receive) -> None:
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while more and size < LINGER_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
