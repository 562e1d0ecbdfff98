"""POST /v1/decisions: from a request that fits the schema to its answer's bytes, and the short way there.

FastAPI's way through a route costs as much as a decision itself. A request that is plainly a good one takes a short way
past it; whatever is not (no JSON, another shape) goes the long way, which knows how to say what is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from components.core.errors import TransientError
from components.serving.api import answer_of
from components.serving.deciding import UNKNOWN_ENTITY, Decider, Outcome
from components.serving.in_flight import name_of
from components.serving.moments import moment
from components.serving.problems import PROBLEM_JSON, Message, ProblemError, Receive, Send, problem_body, replayed
from components.serving.service_metrics import ServiceMeters
from components.serving.tracing import Tracing

DECISIONS = "/v1/decisions"


class Decisions:
    """Decides on requests of the recipe's schema."""

    def __init__(
        self, request_model: Any, decider: Callable[[], Decider], meters: ServiceMeters, tracing: Tracing
    ) -> None:
        from pydantic import TypeAdapter

        self._schema: TypeAdapter[Any] = TypeAdapter(request_model)
        self._decider, self._meters, self._tracing = decider, meters, tracing

    def read(self, content: bytes) -> Any:
        """The request; None where it is not one."""
        from pydantic import ValidationError

        try:
            return self._schema.validate_python(orjson.loads(content))
        except (ValueError, ValidationError, RecursionError):
            return None

    async def answer(self, body: Any, scope: Message) -> tuple[bytes, Sequence[Outcome]]:
        """The answer's JSON, and the decisions in it.

        Raises:
            ProblemError: 422 or 503 where a single decision is refused, 503 where the log takes none.
        """
        given = scope["headers"] if self._tracing.on else [one for one in scope["headers"] if one[0] == b"x-request-id"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in given}
        client, name = scope.get("state", {}).get("client", ""), name_of(headers)
        with self._tracing.span(f"POST {DECISIONS}", headers=headers):
            if hasattr(body, "items"):
                outcomes = await asyncio.gather(*(self._decide(item, client, name) for item in body.items))
                return orjson.dumps({"items": [answer_of(outcome) for outcome in outcomes]}), outcomes
            outcome = await self._decide(body, client, name)
        told = answer_of(outcome)
        if outcome.status == "refused" and outcome.failure == UNKNOWN_ENTITY:
            raise ProblemError(422, "nothing is known of this entity", decision=told)
        if outcome.status == "refused":
            raise ProblemError(503, f"no arm could answer ({outcome.failure})", decision=told)
        return orjson.dumps(told), (outcome,)

    async def mirror(self, outcomes: Sequence[Outcome]) -> None:
        """Ask the canary the same, after the caller has the answer."""
        for outcome in outcomes:
            await self._decider().mirror(outcome)

    async def _decide(self, item: Any, client: str, name: str) -> Outcome:
        asked = (_texts(item.entities), *_input(item.input))
        try:
            outcome = await self._decider().decide(*asked, client=client, request_id=name)
        except TransientError as error:
            raise ProblemError(503, str(error)) from error
        self._meters.count(outcome)
        return outcome


class QuickDecisions:
    """ASGI middleware, the innermost: good requests for decisions are answered here, all others by the application."""

    def __init__(self, app: Any, decisions: Decisions) -> None:
        self.app, self.decisions = app, decisions

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request; its body is there as one message, as `BodyLimit` hands it on."""
        if scope["type"] != "http" or scope["path"] != DECISIONS or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        message = await receive()
        content = message.get("body", b"")
        body = None if message.get("more_body") else self.decisions.read(content)
        if body is None:
            await self.app(scope, replayed(message, receive), send)
            return
        outcomes: Sequence[Outcome] = ()
        try:
            answer, outcomes = await self.decisions.answer(body, scope)
            status, kind = 200, "application/json"
        except ProblemError as error:
            answer, status, kind = problem_body(error.status, error.detail, **error.more), error.status, PROBLEM_JSON
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
        await self.decisions.mirror(outcomes)


def _input(given: Any) -> tuple[str, dict[str, Any]]:
    """The text, and what else the request carries that the caller gave."""
    values = {name: value for name, value in given.model_dump().items() if value is not None}
    if "event_timestamp" in values:
        values["event_timestamp"] = moment(values["event_timestamp"])
    return values.pop("text"), values


def _texts(entities: Any) -> Mapping[str, str]:
    return {key: str(value) for key, value in entities.model_dump().items()}
