"""The OpenAI-compatible pass-through: the same draw, router and log as decisions, answers handed on as they come.

Until an arm's first byte a canary that fails is answered by stable. After it nothing can be taken back: a stream that
stops, is silent for the time allowed for an answer, or goes on for longer than a stream may, ends with an error event,
and the log says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from components.core.digest import value_digest
from components.core.errors import TransientError
from components.serving.asking import InForce
from components.serving.control import CANARY, STABLE
from components.serving.decision_log.schema import new_id
from components.serving.rules import Patience
from components.serving.scoring import ARM_HEADER, REQUEST_ID_HEADER

if TYPE_CHECKING:
    import aiohttp

    from components.serving.deciding import Decider

LARGEST_ANSWER = 4 << 20  # bytes
MIRRORS_AT_ONCE = 16
KIND = {"/v1/completions": "completion", "/v1/chat/completions": "chat"}


@dataclass
class Passed:
    """How a request went: kept while it is under way, and logged when it has ended."""

    path: str
    body: dict[str, Any]
    now: InForce
    drawn: str
    client: str
    request_id: str = field(default_factory=new_id)
    started: float = field(default_factory=time.perf_counter)
    arm: str = ""
    failure: str = ""  # what the drawn arm failed with, or how the stream ended
    http_status: int = 0
    whole: bool = False  # the answer ended as it should
    first: float | None = None  # seconds to the first byte


@dataclass
class Opened:
    """An arm that began to answer; whoever has it closes it."""

    response: aiohttp.ClientResponse
    status: int
    content_type: str
    head: bytes


class PassThrough:
    """Hands generative requests on."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        decider: Decider,
        *,
        timeout_seconds: float,
        subject: str,
        stream_seconds: float = 600.0,
        patience: Patience | None = None,
    ) -> None:
        """`timeout_seconds` is for the first byte and between two; `stream_seconds` for a whole answer."""
        self._longest, self._patience = stream_seconds, patience or Patience()
        self._client, self._decider, self._timeout, self._subject = client, decider, timeout_seconds, subject
        self._mirrors: set[asyncio.Task[None]] = set()

    async def open(self, path: str, body: dict[str, Any], client: str) -> tuple[Passed, Opened | None]:
        """Draw an arm and wait for its first byte; None where no arm begins to answer (the record is then written).

        Raises:
            TransientError: the decision log cannot take the record.
        """
        await self._decider.ready_to_log(self._timeout / 2)
        now = self._decider.in_force
        entities = {self._subject or "user": str(body.get("user") or "")}
        passed = Passed(path, body, now, self._decider.draw(entities), client)
        tries = [passed.drawn, STABLE] if passed.drawn == CANARY and STABLE in now.state.arms else [passed.drawn]
        for place, arm in enumerate(tries):
            left = self._timeout - (time.perf_counter() - passed.started)
            seconds = self._patience.seconds(left) if place + 1 < len(tries) else left
            opened, failure = await self._try(passed, arm, max(0.05, seconds))
            passed.failure = passed.failure or failure
            if opened is not None:
                passed.arm, passed.http_status = arm, opened.status
                passed.first = time.perf_counter() - passed.started
                return passed, opened
        await self.finish(passed)
        return passed, None

    async def stream(self, passed: Passed, opened: Opened) -> AsyncIterator[bytes]:
        """The answer's bytes as they come; ends with an error event where the arm stops or falls silent."""
        try:
            size = len(opened.head)
            yield opened.head
            while chunk := await self._next(passed, opened):
                size += len(chunk)
                if size > LARGEST_ANSWER:
                    raise _BrokenError("too_large")
                yield chunk
            passed.whole = opened.status < 400
        except TimeoutError:
            passed.failure = passed.failure or "timeout"
            yield _error_event("the model stopped answering")
        except _BrokenError as error:
            passed.failure = passed.failure or str(error)
            yield _error_event(f"the answer is {str(error).replace('_', ' ')}")
        except Exception:  # the connection to the arm broke
            passed.failure = passed.failure or "broken"
            yield _error_event("the answer broke off")
        finally:
            if not passed.whole and not passed.failure:
                passed.failure = f"http_{opened.status}" if opened.status >= 400 else "caller_gone"
            opened.response.close()
            await self.finish(passed)

    async def _next(self, passed: Passed, opened: Opened) -> bytes:
        """The next bytes, b"" at the end; TimeoutError where the arm is silent, _BrokenError where the time is over."""
        left = passed.started + self._longest - time.perf_counter()
        try:
            return await asyncio.wait_for(opened.response.content.readany(), min(left, self._timeout))
        except TimeoutError:
            if left <= self._timeout:
                raise _BrokenError("too_long") from None
            raise

    async def finish(self, passed: Passed) -> None:
        """Write the record and, in shadow, ask the canary the same."""
        with suppress(TransientError):  # the answer is out; the log's health refuses the next request
            self._decider.record_passed(passed, _status(passed), self._entities(passed))
        state = passed.now.state
        if state.shadow and passed.whole and passed.drawn == STABLE and CANARY in state.arms:
            if len(self._mirrors) < MIRRORS_AT_ONCE:
                task = asyncio.get_running_loop().create_task(self._mirror(passed))
                self._mirrors.add(task)
                task.add_done_callback(self._mirrors.discard)
            else:
                self._shadow(passed, "shed", 0.0)

    async def close(self) -> None:
        """Let mirrored requests finish."""
        if self._mirrors:
            await asyncio.wait(self._mirrors, timeout=self._timeout)

    async def _try(self, passed: Passed, arm: str, seconds: float) -> tuple[Opened | None, str]:
        """An arm that began to answer, or what it failed with. The caller's fault (4xx) is an answer."""
        import aiohttp

        if arm not in passed.now.state.arms:
            return None, "absent"
        # Each arm is asked by its own name: a canary that a stranger's route answered would show.
        name = passed.now.state.arms[arm].served_name
        body = passed.body | {"model": name, "cache_salt": name}
        headers = {ARM_HEADER: arm, REQUEST_ID_HEADER: passed.request_id, "content-type": "application/json"}
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.post(passed.path, data=orjson.dumps(body), headers=headers)
                head = await response.content.readany()
        except TimeoutError:
            failure = "timeout"
        except aiohttp.ClientError:
            failure = "connect"
        else:
            if response.status < 500 and head:
                return Opened(response, response.status, response.content_type, head), ""
            failure = f"http_{response.status}" if response.status >= 500 else "invalid"
        if response is not None:
            response.close()
        return None, failure

    async def _mirror(self, passed: Passed) -> None:
        started = time.perf_counter()
        mirrored = Passed(passed.path, passed.body | {"stream": False}, passed.now, CANARY, passed.client)
        mirrored.body.pop("stream_options", None)
        opened, failure = await self._try(mirrored, CANARY, self._timeout)
        if opened is not None:
            size = len(opened.head)
            try:
                async with asyncio.timeout(self._timeout):
                    while chunk := await opened.response.content.readany():
                        size += len(chunk)
                        if size > LARGEST_ANSWER:
                            failure = "too_large"
                            break
                failure = failure or (f"http_{opened.status}" if opened.status >= 400 else "")
            except Exception as error:  # whatever breaks a mirror is the canary's
                failure = "timeout" if isinstance(error, TimeoutError) else "broken"
            opened.response.close()
        self._shadow(passed, failure, time.perf_counter() - started)

    def _shadow(self, passed: Passed, failure: str, seconds: float) -> None:
        arm = passed.now.state.arms[CANARY]
        self._decider.record_shadow(passed.request_id, arm, failure, None, seconds)

    def _entities(self, passed: Passed) -> Mapping[str, str]:
        return {self._subject: str(passed.body.get("user") or "")} if self._subject else {}


class _BrokenError(Exception):
    pass


def _status(passed: Passed) -> str:
    if not passed.whole:
        return "refused"
    return "ok" if passed.arm == passed.drawn else "fallback"


def _error_event(message: str) -> bytes:
    error = {"error": {"message": message, "type": "server_error", "code": "broken_stream"}}
    return b"data: " + orjson.dumps(error) + b"\n\n"


def asked_text(body: Mapping[str, Any]) -> str:
    """What was asked, as one text: the prompt, or the messages as JSON."""
    asked = body.get("prompt", body.get("messages"))
    return asked if isinstance(asked, str) else orjson.dumps(asked).decode()


def record_of(passed: Passed, status: str, entities: Mapping[str, str], weight: float, model: str) -> dict[str, Any]:
    """The record of a request that was handed on; the decision log's values."""
    arm = passed.now.state.arms.get(passed.arm)
    whole = arm if passed.whole else None
    return {
        "id": passed.request_id, "kind": KIND[passed.path], "status": status, "failure": passed.failure,
        "drawn": passed.drawn, "weight": weight, "answered_by": passed.arm if passed.whole else "none",
        "model": model, "version": whole.version if whole else "", "digest": whole.digest if whole else "",
        "label": None, "score": None, "threshold": None, "prompt_digest": value_digest(asked_text(passed.body)),
        "seconds": time.perf_counter() - passed.started, "model_seconds": passed.first, "entities": entities,
        "features": {}, "text": asked_text(passed.body), "client": passed.client, "rule": "model" if whole else "none",
    }  # fmt: skip
