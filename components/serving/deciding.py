"""One decision: draw the arm, read the features, render the prompt, ask the arm through the router, fall back, record.

The draw comes first and looks at nothing but the weight in force: the canary verdict rests on a request going to the
canary with a known probability that does not depend on its content.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from components.core.errors import PilotlineError, TransientError, one_line
from components.models.feature_source import FeatureSource, check_source
from components.models.spec import Renderer, spec_for
from components.serving.asking import Answer, ArmAsker, FeatureValues, InForce
from components.serving.control import CANARY, STABLE, ArmState, read_state
from components.serving.decision_log import DecisionLog
from components.serving.decision_log.schema import new_id
from components.serving.feature_reader import FeatureReader
from components.serving.in_flight import InFlight
from components.serving.passthrough import Passed, record_of
from components.serving.rules import (
    BASELINE,
    LAST_KNOWN,
    MODEL,
    NONE,
    LastKnown,
    Patience,
    Rules,
    entity_key,
    is_unknown,
    question_key,
    sticky_number,
)
from components.serving.tracing import Tracing

if TYPE_CHECKING:
    import aiohttp

POLL_SECONDS = 0.05
LOG_POLL_SECONDS = 0.02
FEATURES_SHARE = 0.5  # of that time, for reading features
LEAST_SECONDS = 0.05  # for an arm to answer, when the time is over
SHADOWS_AT_ONCE = 64
UNKNOWN_ENTITY = "unknown_entity"

logger = logging.getLogger(__name__)


class OnlineFeatures(Protocol):
    """Features as known now: `read` gives name → {"value", "as_of", "fresh"}; `source` says which they are."""

    @property
    def source(self) -> FeatureSource:
        """The feature service, its features that are read, and the code of those of the request."""
        ...

    def read(self, entities: Mapping[str, str], request: Mapping[str, Any]) -> FeatureValues:
        """Values for one row of entities; `request` holds the text, the recipe's request inputs and, if the caller
        gave it, event_timestamp."""
        ...


@dataclass(frozen=True)
class Outcome:
    """A decision as it is answered and logged; `failure` is what the drawn arm failed with, "" where it did not."""

    decision_id: str
    status: str  # ok, fallback, refused
    drawn: str
    weight: float
    answered_by: str
    failure: str
    answer: Answer
    arm: ArmState | None
    features: FeatureValues
    entities: Mapping[str, str]
    text: str
    seconds: float
    mirror: bool
    rule: str = MODEL
    review: bool = False
    client: str = ""


@dataclass(frozen=True)
class _Asked:
    """One request as it was drawn, by the state in force when it came."""

    now: InForce
    drawn: str
    decision_id: str
    deadline: float
    entities: Mapping[str, str]
    text: str
    request: Mapping[str, Any]

    @property
    def weight(self) -> float:
        """The probability of a canary draw then."""
        return self.now.state.drawn_weight

    def left(self) -> float:
        """Seconds to the deadline; never so few that nobody could answer."""
        return max(LEAST_SECONDS, self.deadline - time.perf_counter())


class Decider:
    """Decides; the state is followed by `watch`, which runs beside."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        features: OnlineFeatures,
        log: DecisionLog,
        state_path: Path,
        *,
        seed: str,
        timeout_seconds: float,
        model: str = "",
        rules: Rules | None = None,
        sticky: bool = False,
        patience: Patience | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing or Tracing()
        self._asker, self._features, self._log = ArmAsker(client, self._tracing), features, log
        self._rules, self._seed, self._sticky = rules or Rules(), seed, sticky
        self._patience = patience or Patience()
        self._known_features = LastKnown(self._rules.last_known_seconds)
        self._known_answers = LastKnown(self._rules.last_known_seconds)
        self._state_path, self._timeout = state_path, timeout_seconds
        self._model = model
        self._draws = random.Random(seed)  # noqa: S311 - a fair draw that can be repeated, not a secret
        self._reader = FeatureReader(features)
        self._cache: dict[tuple[str, str], Renderer] = {}
        self._seen: tuple[int, int] = (0, 0)
        self._mirrors: set[asyncio.Task[None]] = set()
        self.in_force, self.in_flight = InForce(), InFlight()
        self.state_error = "no state was read yet"

    async def watch(self) -> None:
        """Follow the state file; a file that cannot be read leaves the state in force and shows in `state_error`."""
        while True:
            with suppress(Exception):  # the next round tries again
                await self.refresh()
            await asyncio.sleep(POLL_SECONDS)

    async def refresh(self) -> None:
        """Bring a changed state file into force."""
        try:
            about = self._state_path.stat()
        except OSError as error:
            self.state_error = f"{self._state_path}: {error.strerror}"
            return
        if (about.st_mtime_ns, about.st_ino) == self._seen:
            return
        try:
            self.in_force = await asyncio.to_thread(self._load)
            self.state_error = ""
        except PilotlineError as error:
            self.state_error = one_line(error)
            logger.error("state not in force: %s", self.state_error)
        self._seen = (about.st_mtime_ns, about.st_ino)

    async def decide(
        self, entities: Mapping[str, str], text: str, request: Mapping[str, Any], client: str = "", request_id: str = ""
    ) -> Outcome:
        """Answer one request and queue its record; `request` is what features of the request are computed of.

        `request_id` is the caller's name for it, by which `in_flight` tells of it meanwhile.

        Raises:
            TransientError: the decision log cannot take the record, so there is no answer.
        """
        started = time.perf_counter()
        asked = _Asked(self.in_force, self.draw(entities), new_id(), started + self._timeout, entities, text, request)
        await self.ready_to_log(asked.left() * FEATURES_SHARE)
        self.in_flight.enter(asked.decision_id, request_id, asked.drawn, asked.weight, started)
        try:
            with self._tracing.span(
                "decide", decision_id=asked.decision_id, drawn=asked.drawn, weight=asked.weight
            ) as span:
                outcome = await self._outcome(asked, started, client)
                if span is not None:
                    span.set_attributes(_told(outcome))
        finally:
            self.in_flight.leave(asked.decision_id)
        self._record(outcome)
        return outcome

    async def _outcome(self, asked: _Asked, started: float, client: str) -> Outcome:
        question = {"text": asked.text, **asked.request}
        features, rule = await self._features_of(asked.entities, question)
        answer, failure = await self._answer(asked, features)
        if answer.failure:
            answer, rule = self._stand_in(answer, asked.entities, question)
        elif rule == MODEL and self._rules.fallback == LAST_KNOWN:
            self._known_answers.keep(question_key(asked.entities, question), answer)
        state, drawn = asked.now.state, asked.drawn
        status = "refused" if answer.failure else "ok" if answer.arm == drawn and rule == MODEL else "fallback"
        return Outcome(
            decision_id=asked.decision_id,
            status=status,
            drawn=drawn,
            weight=asked.weight,
            answered_by="none" if answer.failure else answer.arm,
            failure=failure,
            answer=answer,
            arm=None if answer.failure else state.arms.get(answer.arm),
            features=features or {},
            entities=asked.entities,
            text=asked.text,
            seconds=time.perf_counter() - started,
            mirror=state.shadow and status == "ok" and drawn == STABLE and CANARY in state.arms,
            rule=NONE if answer.failure else rule,
            review=self._rules.review(answer.score),
            client=client,
        )

    def draw(self, entities: Mapping[str, str]) -> str:
        """The arm of one request, by the weight in force alone; where draws are sticky, by a hash of the entities."""
        number = sticky_number(self._seed, entities) if self._sticky else self._draws.random()
        return CANARY if number < self.in_force.state.drawn_weight else STABLE

    async def _features_of(
        self, entities: Mapping[str, str], asked: Mapping[str, Any]
    ) -> tuple[FeatureValues | None, str]:
        """The features, and whether they are as of now (MODEL) or the last known ones."""
        with self._tracing.span("features"):
            features = await self._read(entities, asked)
        if self._rules.fallback != LAST_KNOWN:
            return features, MODEL
        if features is not None:
            self._known_features.keep(entity_key(entities), features)
            return features, MODEL
        known = self._known_features.find(entity_key(entities))
        if known is None:
            return None, MODEL
        return {name: {**found, "fresh": False} for name, found in known.items()}, LAST_KNOWN

    async def _answer(self, asked: _Asked, features: FeatureValues | None) -> tuple[Answer, str]:
        """The drawn arm's answer, else stable's within the time that is left; and what the drawn arm failed with."""
        if features is not None and self._rules.unknown_entity != "score" and is_unknown(features):
            return Answer(asked.drawn, UNKNOWN_ENTITY), UNKNOWN_ENTITY
        falls_back = asked.drawn == CANARY and STABLE in asked.now.state.arms
        left = asked.left()
        seconds = self._patience.seconds(left) if falls_back else left
        answer = await self._ask(asked, asked.drawn, features, seconds)
        failure = answer.failure
        if failure and falls_back and features is not None:
            answer = await self._ask(asked, STABLE, features, asked.left())
        return answer, failure

    async def _ask(self, asked: _Asked, arm: str, features: FeatureValues | None, seconds: float) -> Answer:
        return await self._asker.ask(asked.now, arm, features, asked.text, asked.decision_id, seconds)

    def _stand_in(self, answer: Answer, entities: Mapping[str, str], asked: Mapping[str, Any]) -> tuple[Answer, str]:
        """What the recipe puts in the place of an answer that no arm gave; the failed answer where it refuses."""
        rules = self._rules
        if answer.failure == UNKNOWN_ENTITY and rules.unknown_entity == "refuse":
            return answer, NONE
        if rules.fallback == LAST_KNOWN and (known := self._known_answers.find(question_key(entities, asked))):
            return replace(known, arm="baseline", seconds=answer.seconds), LAST_KNOWN
        if rules.fallback == BASELINE:
            score = rules.baseline_score
            made = replace(answer, arm="baseline", failure="", score=score, label=rules.label(score))
            return made, BASELINE
        return answer, NONE

    async def mirror(self, outcome: Outcome) -> None:
        """Ask the canary the same question, after the caller has the answer."""
        if outcome.mirror:
            task = asyncio.get_running_loop().create_task(self._mirror(self.in_force, outcome))
            self._mirrors.add(task)
            task.add_done_callback(self._mirrors.discard)

    async def ready_to_log(self, seconds: float) -> None:
        """Wait so long for a disk that is behind; TransientError where records are not written: nothing is answered."""
        until = time.perf_counter() + seconds
        while self._log.late and not self._log.error and time.perf_counter() < until:
            await asyncio.sleep(LOG_POLL_SECONDS)
        if self._log.late or not self._log.healthy:
            raise TransientError(self._log.error or "the decision log is full, or its disk does not take records")

    def record_passed(self, passed: Passed, status: str, entities: Mapping[str, str]) -> None:
        """Queue the record of a request that was handed on; TransientError where the log cannot take it."""
        self._log.decision(**record_of(passed, status, entities, passed.now.state.drawn_weight, self._model))

    def record_shadow(
        self, decision_id: str, arm: ArmState | None, failure: str, score: float | None, seconds: float
    ) -> None:
        """Queue what the canary made of a mirrored request."""
        with suppress(TransientError):
            self._log.shadow(
                decision_id=decision_id,
                version=arm.version if arm else "",
                digest=arm.digest if arm else "",
                ok=int(not failure),
                failure=failure,
                score=score,
                seconds=seconds,
            )

    async def probe(self) -> str:
        """ "" where an arm scores a request through the router, else what failed."""
        now = self.in_force
        if not now.state.arms:
            return self.state_error or "no arm is served"
        arm = STABLE if STABLE in now.state.arms else CANARY
        nothing = {name: {"value": None} for name in now.renderers[arm].features}
        return (await self._asker.ask(now, arm, nothing, "", new_id(), self._timeout)).failure

    async def close(self) -> None:
        """Let mirrored requests finish and stop reading features."""
        if self._mirrors:
            await asyncio.wait(self._mirrors, timeout=self._timeout)
        self._reader.close()

    def _load(self) -> InForce:
        state = read_state(self._state_path)
        renderers = {}
        for name, arm in state.arms.items():
            key = (arm.model_dir, arm.digest)
            if key not in self._cache:
                self._cache[key] = spec_for(arm.family).renderer(Path(arm.model_dir))
            what = f"{name} version {arm.version}"
            check_source(self._cache[key].signature, self._features.source, what, exact=False)
            renderers[name] = self._cache[key]
        return InForce(state, renderers)

    async def _read(self, entities: Mapping[str, str], request: Mapping[str, Any]) -> FeatureValues | None:
        try:
            async with asyncio.timeout(self._timeout * FEATURES_SHARE):
                found: FeatureValues = await self._reader.ask(entities, request)
                return found
        except Exception:
            logger.exception("features could not be read")
            return None

    async def _mirror(self, now: InForce, outcome: Outcome) -> None:
        if len(self._mirrors) > SHADOWS_AT_ONCE:
            answer = Answer(CANARY, "shed")
        else:
            answer = await self._asker.ask(
                now, CANARY, outcome.features, outcome.text, outcome.decision_id, self._timeout
            )
        arm = now.state.arms.get(CANARY)
        self.record_shadow(outcome.decision_id, arm, answer.failure, answer.score, answer.seconds)

    def _record(self, outcome: Outcome) -> None:
        arm = outcome.arm
        self._log.decision(
            id=outcome.decision_id,
            status=outcome.status,
            failure=outcome.failure,
            drawn=outcome.drawn,
            weight=outcome.weight,
            answered_by=outcome.answered_by,
            model=self._model,
            version=arm.version if arm else "",
            digest=arm.digest if arm else "",
            label=outcome.answer.label,
            score=outcome.answer.score,
            threshold=arm.threshold if arm else None,
            prompt_digest=outcome.answer.prompt_digest,
            seconds=outcome.seconds,
            model_seconds=outcome.answer.seconds,
            entities=outcome.entities,
            features=outcome.features,
            text=outcome.text,
            rule=outcome.rule,
            review=int(outcome.review),
            client=outcome.client,
        )


def _told(outcome: Outcome) -> dict[str, Any]:
    """What a trace says of it."""
    version = outcome.arm.version if outcome.arm else ""
    told = {"status": outcome.status, "answered_by": outcome.answered_by, "rule": outcome.rule}
    return told | {"failure": outcome.failure, "version": version}
