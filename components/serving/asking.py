"""Ask one arm, through the router, what it makes of a row; every way to fail has a name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from components.core.digest import value_digest
from components.core.errors import IntegrityError, PilotlineError
from components.models.spec import Renderer
from components.serving.control import ServingState
from components.serving.scoring import (
    ARM_HEADER,
    COMPLETIONS,
    REQUEST_ID_HEADER,
    InvalidAnswerError,
    WrongModelError,
    label_logprobs,
    scoring_request,
)
from components.serving.tracing import Tracing

if TYPE_CHECKING:
    import aiohttp

FeatureValues = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Answer:
    """What one arm said; `failure` is "" or connect, timeout, http_<status>, invalid, wrong_model, features,
    absent, unknown_entity, shed."""

    arm: str
    failure: str = ""
    score: float | None = None
    label: str | None = None
    prompt_digest: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class InForce:
    """The state being served by and the renderer of each arm's version."""

    state: ServingState = field(default_factory=ServingState)
    renderers: Mapping[str, Renderer] = field(default_factory=dict)


class ArmAsker:
    """Renders the prompt for an arm's version and posts it with the arm's header."""

    def __init__(self, client: aiohttp.ClientSession, tracing: Tracing) -> None:
        self._client, self._tracing = client, tracing

    async def ask(
        self, now: InForce, arm: str, features: FeatureValues | None, text: str, request_id: str, seconds: float
    ) -> Answer:
        """The arm's answer within `seconds`; never raises for what a model server or a row can do."""
        if arm not in now.state.arms:
            return Answer(arm, "absent")
        if features is None:
            return Answer(arm, "features")
        with self._tracing.span("ask", arm=arm, version=now.state.arms[arm].version) as span:
            answer = await self._ask(now, arm, features, text, request_id, seconds)
            if span is not None:
                span.set_attribute("failure", answer.failure)
            return answer

    async def _ask(
        self, now: InForce, arm: str, features: FeatureValues, text: str, request_id: str, seconds: float
    ) -> Answer:
        about, renderer = now.state.arms[arm], now.renderers[arm]
        started = time.perf_counter()
        digest = ""
        try:
            ids = renderer.token_ids({name: found["value"] for name, found in features.items()}, text)
            digest = value_digest(ids)
            asked = scoring_request(about.served_name, ids, renderer.label_token_ids)
            body = await self._post(arm, asked, request_id, seconds)
            score = renderer.score(*label_logprobs(body, about.served_name, renderer.label_token_ids))
            label = renderer.label(score, about.threshold)
            return Answer(arm, "", score, label, digest, time.perf_counter() - started)
        except _HttpError as error:
            failure = error.kind
        except WrongModelError:
            failure = "wrong_model"
        except (InvalidAnswerError, IntegrityError):
            failure = "invalid"
        except PilotlineError:  # a feature that this version reads is not there
            failure = "features"
        return Answer(arm, failure, prompt_digest=digest, seconds=time.perf_counter() - started)

    async def _post(self, arm: str, body: dict[str, Any], request_id: str, seconds: float) -> Any:
        import aiohttp

        headers = {ARM_HEADER: arm, REQUEST_ID_HEADER: request_id, "content-type": "application/json"}
        headers |= self._tracing.onward()
        try:
            async with (
                asyncio.timeout(seconds),
                self._client.post(COMPLETIONS, data=orjson.dumps(body), headers=headers) as response,
            ):
                status, content = response.status, await response.read()
        except TimeoutError as error:
            raise _HttpError("timeout") from error
        except aiohttp.ClientError as error:
            raise _HttpError("connect") from error
        if status != 200:
            raise _HttpError(f"http_{status}")
        try:
            return orjson.loads(content)
        except ValueError as error:
            raise InvalidAnswerError("not JSON") from error


class _HttpError(Exception):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
