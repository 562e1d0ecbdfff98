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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from components.core.errors import PilotlineError, TransientError, one_line
from components.models.feature_source import FeatureSource, check_source
from components.models.spec import Renderer, spec_for
from components.serving.asking import Answer, ArmAsker, FeatureValues, InForce
from components.serving.control import CANARY, STABLE, ArmState, read_state
from components.serving.decision_log import DecisionLog
from components.serving.decision_log.schema import new_id

if TYPE_CHECKING:
    import aiohttp

POLL_SECONDS = 0.05
CANARY_SHARE = 0.5  # of the time allowed for an answer; the rest is kept for falling back to stable
SHADOWS_AT_ONCE = 64

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
    ) -> None:
        self._asker, self._features, self._log = ArmAsker(client), features, log
        self._state_path, self._timeout = state_path, timeout_seconds
        self._model = model
        self._draws = random.Random(seed)  # noqa: S311 - a fair draw that can be repeated, not a secret
        self._reader = ThreadPoolExecutor(1, "features")  # SQLite handles stay in one thread
        self._cache: dict[tuple[str, str], Renderer] = {}
        self._seen: tuple[int, int] = (0, 0)
        self._mirrors: set[asyncio.Task[None]] = set()
        self.in_force = InForce()
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

    async def decide(self, entities: Mapping[str, str], text: str, request: Mapping[str, Any]) -> Outcome:
        """Answer one request and queue its record; `request` is what features of the request are computed of.

        Raises:
            TransientError: the decision log cannot take the record, so there is no answer.
        """
        started = time.perf_counter()
        now = self.in_force
        state, weight = now.state, now.state.drawn_weight
        drawn = CANARY if self._draws.random() < weight else STABLE
        decision_id = new_id()
        if not self._log.healthy:
            raise TransientError(self._log.error or "the decision log is full")
        features = await self._read(entities, {"text": text, **request})
        answer = await self._asker.ask(now, drawn, features, text, decision_id, self._share(now, drawn))
        failure = answer.failure
        if failure and drawn == CANARY and STABLE in state.arms and features is not None:
            left = self._timeout - (time.perf_counter() - started)
            answer = await self._asker.ask(now, STABLE, features, text, decision_id, max(0.1, left))
        status = "refused" if answer.failure else "fallback" if answer.arm != drawn else "ok"
        outcome = Outcome(
            decision_id=decision_id,
            status=status,
            drawn=drawn,
            weight=weight,
            answered_by="none" if answer.failure else answer.arm,
            failure=failure,
            answer=answer,
            arm=None if answer.failure else state.arms[answer.arm],
            features=features or {},
            entities=entities,
            text=text,
            seconds=time.perf_counter() - started,
            mirror=state.shadow and status == "ok" and drawn == STABLE and CANARY in state.arms,
        )
        self._record(outcome)
        return outcome

    async def mirror(self, outcome: Outcome) -> None:
        """Ask the canary the same question, after the caller has the answer."""
        if outcome.mirror:
            task = asyncio.get_running_loop().create_task(self._mirror(self.in_force, outcome))
            self._mirrors.add(task)
            task.add_done_callback(self._mirrors.discard)

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
        self._reader.shutdown(wait=False)

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

    def _share(self, now: InForce, drawn: str) -> float:
        return self._timeout * (CANARY_SHARE if drawn == CANARY and STABLE in now.state.arms else 1.0)

    async def _read(self, entities: Mapping[str, str], request: Mapping[str, Any]) -> FeatureValues | None:
        reading, loop = self._features.read, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout * CANARY_SHARE):
                return await loop.run_in_executor(self._reader, reading, entities, request)
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
        with suppress(TransientError):
            self._log.shadow(
                decision_id=outcome.decision_id,
                version=arm.version if arm else "",
                digest=arm.digest if arm else "",
                ok=int(not answer.failure),
                failure=answer.failure,
                score=answer.score,
                seconds=answer.seconds,
            )

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
        )
