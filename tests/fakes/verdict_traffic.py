"""Simulated live traffic into a judge, event by event: arrivals at a rate, answers when they end, looks in between.

The figures of the design are for 20 requests a second, lognormal latency of spread .5 and half a percent of errors.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from components.rollout.margins import Margins
from components.rollout.observations import ArmOutcome, Observation
from components.rollout.verdict import CONTINUE, PASS, Judge, Verdict

RATE = 20.0  # requests a second
TIMEOUT_SECONDS = 10.0
MEDIAN_SECONDS, SPREAD = 0.1, 0.5


def design_margins(**changes: object) -> Margins:
    """The margins of the design: fail beyond +.5 pp, pass below +2 pp at 10 % and +1 pp at 50 %, x1.25, .03."""
    margins = Margins(
        errors=0.02,
        latency_ratio=1.25,
        score_shift=0.03,
        alpha=0.05,
        pairs=200,
        canary_requests=100,
        threshold=0.5,
        stable_errors=0.06,
        slo_seconds=10.0,
        latency_slack_seconds=0.0,
        harm_margin=0.005,
        step_errors=(0.02, 0.01),
    )
    return replace(margins, **changes)  # type: ignore[arg-type] - fields by name


@dataclass(frozen=True)
class Arm:
    """How a version answers: rates of failed and invalid answers, times slower than usual, score shift."""

    errors: float = 0.005
    invalid: float = 0.0
    slower: float = 1.0
    hang: bool = False
    shift: float = 0.0

    def answer(self, draws: random.Random, expected: float) -> ArmOutcome:
        """One answer; one that hangs fails at the time-out."""
        if self.hang:
            return ArmOutcome(True, False, TIMEOUT_SECONDS, None)
        seconds = min(MEDIAN_SECONDS * self.slower * math.exp(draws.gauss(0, SPREAD)), TIMEOUT_SECONDS)
        if draws.random() < self.errors:
            return ArmOutcome(True, False, seconds, None)
        if draws.random() < self.invalid:
            return ArmOutcome(False, True, seconds, None)
        return ArmOutcome(False, False, seconds, min(max(expected + self.shift, 0.0), 1.0))


@dataclass(frozen=True)
class Ended:
    """How a stage or rollout ended: the last verdict, its stage's weight and the seconds since the rollout began."""

    verdict: Verdict
    weight: int
    seconds: float


class LiveTraffic:
    """A source of requests and the two versions that answer them."""

    def __init__(self, seed: int | str, canary: Arm, stable: Arm | None = None, rate: float = RATE) -> None:
        """`stable` answers as designed where it is not given."""
        self._draws = random.Random(seed)
        self._arms = {"canary": canary, "stable": stable or Arm()}
        self._rate = rate

    def baseline(self, requests: int = 60) -> list[Observation]:
        """Stable alone."""
        return [self._request(0.0) for _ in range(requests)]

    def requests(self, weight: int, count: int) -> list[Observation]:
        """So many, all ended; weight in percent, 0 for mirrored ones."""
        return [self._request(weight / 100) for _ in range(count)]

    def stage(self, judge: Judge, weight: int, deadline: float, through: tuple[str, ...] = ()) -> Ended:
        """Feed one stage that the judge has begun, until it decides; a look at each arrival, later twice a second.

        `through`: outcomes that do not end it before the deadline.
        """
        waiting: deque[tuple[float, Observation]] = deque()
        number, now, verdict = 0, 0.0, Verdict(CONTINUE, "", "")
        while verdict.outcome == CONTINUE or (verdict.outcome in through and now < deadline):
            now = number / self._rate
            waiting.append((now, self._request(weight / 100)))
            number += 1
            self._tell(judge, waiting, now)
            if now < 30 or number % max(1, round(self._rate / 2)) == 0:
                verdict = judge.verdict(now, deadline)
        return Ended(verdict, weight, now)

    def rollout(
        self,
        judge: Judge,
        weights: Sequence[int] = (0, 10, 50),
        deadline: float = 1800.0,
        through: tuple[str, ...] = (),
    ) -> Ended:
        """All stages (0 = shadow), as far as they pass; with `through` each to its deadline, whatever these say."""
        judge.baseline(self.baseline())
        seconds = 0.0
        for weight in weights:
            if weight:
                judge.begin_step(weight)
            else:
                judge.begin_shadow()
            ended = self.stage(judge, weight, deadline, through)
            seconds += ended.seconds
            if ended.verdict.outcome != PASS and ended.verdict.outcome not in through:
                break
        return replace(ended, seconds=seconds)

    def _tell(self, judge: Judge, waiting: deque[tuple[float, Observation]], now: float) -> None:
        """Add what has ended up to the first that has not; show the rest as it is now."""
        while waiting and waiting[0][0] + _seconds(waiting[0][1]) <= now:
            judge.add(waiting.popleft()[1])
        if waiting and now - waiting[0][0] > MEDIAN_SECONDS:
            judge.open([_so_far(seen, now - began) for began, seen in waiting])

    def _request(self, weight: float) -> Observation:
        expected = 0.02 + 0.9 * self._draws.random() ** 8
        arm = "canary" if self._draws.random() < weight else "stable"
        own = self._arms[arm].answer(self._draws, expected)
        mirrored = self._arms["canary"].answer(self._draws, expected) if weight == 0 else None
        return Observation(arm, weight, own, mirrored, False, own.seconds, expected=expected)


def _seconds(seen: Observation) -> float:
    return max(seen.own.seconds, seen.mirrored.seconds if seen.mirrored else 0.0)


def _so_far(seen: Observation, age: float) -> Observation:
    """The request as far as it is known at an age."""
    if _seconds(seen) <= age:
        return seen
    return replace(seen, own=ArmOutcome(False, False, age, None), open=True)


def step_alone(seed: int | str, weight: int, canary: Arm, deadline: float, **margins: object) -> Ended:
    """One step at a weight with the share of the budget and the margins that it has in the design."""
    traffic, judge = LiveTraffic(seed, canary), Judge(design_margins(**margins), 2)
    judge.baseline(traffic.baseline())
    if weight == 50:
        judge.begin_step(10)  # passed without a word: its process goes on, as in a rollout
    judge.begin_step(weight)
    return traffic.stage(judge, weight, deadline)
