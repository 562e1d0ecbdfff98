"""An in-memory serving stack with a clock of its own and canaries that misbehave on demand; deterministic by seed.

It keeps the promises of `components.core.protocols.ServingStack`: a request drawn for a canary that gives no usable
answer is answered by stable and stays credited to the canary's draw.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from components.core.errors import TransientError
from components.core.protocols import ArrivedLabel, Decision, GoldenRow, Served

LABELS = ("no", "yes")
LOOK_SECONDS = 0.1
FALLBACK_SECONDS = 0.5  # after this the scoring service answers from stable


@dataclass
class FakeClock:
    """Seconds that pass only when something takes time."""

    seconds: float = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.seconds


@dataclass(frozen=True)
class Behaviour:
    """How one arm answers; `healthy_requests` first requests are served as by a good replica."""

    error_rate: float = 0.0
    invalid_rate: float = 0.0  # answers 200 with a score that is not a probability
    latency_factor: float = 1.0
    score_shift: float = 0.0
    score_noise: float = 0.0  # another version's legitimate difference, standard deviation
    constant_score: float | None = None
    hang: bool = False
    answers_as: str = ""  # another version's name
    dies_after: int | None = None
    healthy_requests: int = 0
    refuses_start: bool = False
    served_digest: str = ""


@dataclass
class _Replica:
    served: Served
    behaviour: Behaviour
    random: random.Random
    requests: int = 0
    alive: bool = True


def fake_score(row: Mapping[str, object]) -> float:
    """The probability that every good version gives to a row: skewed, mean about 0.1, from the row's id."""
    unit = int.from_bytes(hashlib.sha256(str(row["row_id"]).encode()).digest()[:7], "big") / 2**56
    return round(0.02 + 0.9 * unit**8, 9)


@dataclass
class FakeServing:
    """A ServingStack; `behaviours` by arm, `breaks` maps a method's name to the call (from 1) at which it raises."""

    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)
    seed: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    latency_seconds: float = 0.02
    latency_spread: float = 0.3  # standard deviation of its logarithm
    breaks: Mapping[str, int] = field(default_factory=dict)
    error: BaseException = field(default_factory=lambda: TransientError("the fake broke as asked"))
    mirror: bool = True  # False: the shadow is asked for and never comes
    weight: int = 0
    shadow: bool = False
    calls: list[tuple[str, Any]] = field(default_factory=list)
    answered: list[Decision] = field(default_factory=list)
    arrived: list[ArrivedLabel] = field(default_factory=list)

    def __post_init__(self) -> None:
        """No replica yet."""
        self.replicas: dict[str, _Replica] = {}
        self._random = random.Random(self.seed)

    def launch(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> None:
        """Nothing to be done ahead."""
        self._call("launch", arm)

    def start(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> Served:
        """Start a replica, in two seconds of the fake clock."""
        self._call("start", arm)
        behaviour = self.behaviours.get(arm, Behaviour())
        if behaviour.refuses_start:
            raise TransientError(f"{arm}: no answer within 300 s")
        self.clock.seconds += 2.0
        served = Served(
            arm=arm,
            url="http://127.0.0.1:1",
            served_name=f"fake-{version}",
            version=version,
            digest=behaviour.served_digest or digest,
            model_dir=model_dir,
            engine="fake",
            pid=1,
        )
        self.replicas[arm] = _Replica(served, behaviour, random.Random(f"{self.seed} {arm}"))
        return served

    def stop(self, arm: str) -> None:
        """Stop a replica; one that is not there is no error."""
        self._call("stop", arm)
        self.replicas.pop(arm, None)

    def alive(self, arm: str) -> bool:
        """Whether the replica is there and has not died."""
        self._call("alive", arm)
        return arm in self.replicas and self.replicas[arm].alive

    def set_weight(self, percent: int) -> None:
        """The canary's share from now on."""
        self._call("set_weight", percent)
        self.weight = percent

    def set_shadow(self, on: bool) -> None:
        """Mirroring on or off."""
        self._call("set_shadow", on)
        self.shadow = on

    def decide(
        self, rows: Sequence[Mapping[str, object]], rate: float, stop: object = None, under_way: object = None
    ) -> Sequence[Decision]:
        """One decision a row, in order; `stop` sees them every LOOK_SECONDS, the slowest one's time comes last."""
        self._call("decide", len(rows))
        decisions: list[Decision] = []
        burst = max(1, round(rate * LOOK_SECONDS))
        for first in range(0, len(rows), burst):
            fresh = [self._decide(row) for row in rows[first : first + burst]]
            decisions += fresh
            self.answered += fresh
            self.clock.seconds += len(fresh) / rate
            if callable(stop) and stop(list(decisions)):
                break
        self.clock.seconds += max((decision.seconds for decision in decisions[-burst:]), default=0.0)
        return decisions

    def score_arm(self, arm: str, rows: Sequence[Mapping[str, object]]) -> list[float | None]:
        """Scores by one arm, None where it failed."""
        self._call("score_arm", arm)
        self.clock.seconds += 0.01 * len(rows)
        answers = [self._ask(arm, row) for row in rows]
        return [score for score, _ in answers]

    def labels(self, after: int) -> Sequence[ArrivedLabel]:
        """Those that `arrived` holds."""
        return [label for label in self.arrived if label.seq > after]

    def _call(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        if sum(called == name for called, _ in self.calls) == self.breaks.get(name):
            raise self.error

    def _decide(self, row: Mapping[str, object]) -> Decision:
        drawn = "canary" if self._random.random() * 100 < self.weight else "stable"
        score, seconds = self._ask(drawn, row)
        usable = score is not None and 0 <= score <= 1
        failure = "" if usable else "timeout" if seconds == math.inf else "http_500" if score is None else "invalid"
        by = drawn
        if not usable and drawn == "canary":
            by, (score, more) = "stable", self._ask("stable", row)
            seconds, usable = min(seconds, FALLBACK_SECONDS) + more, score is not None
        decision = Decision(
            http_status=200 if usable else 503,
            status="ok" if by == drawn and usable else "fallback" if usable else "refused",
            label=None if not usable or score is None else LABELS[score >= 0.5],
            score=score if usable else None,
            model_version=self._answers_as(by),
            drawn=drawn,
            answered_by=by if usable else "none",
            weight=self.weight / 100,
            seconds=min(seconds, 10.0),
            failure=failure,
            model_seconds=min(seconds, 10.0),
        )
        return self._mirrored(decision, row) if self.shadow and self.mirror else decision

    def _mirrored(self, decision: Decision, row: Mapping[str, object]) -> Decision:
        score, seconds = self._ask("canary", row)
        ok = score is not None and 0 <= score <= 1
        shadow = score if ok else None
        return replace(decision, shadow_score=shadow, shadow_ok=ok, shadow_seconds=min(seconds, 10.0))

    def _answers_as(self, arm: str) -> str:
        replica = self.replicas.get(arm)
        return "" if replica is None else replica.behaviour.answers_as or replica.served.version

    def _ask(self, arm: str, row: Mapping[str, object]) -> tuple[float | None, float]:
        """One replica's score and seconds; infinite seconds where it hangs."""
        replica = self.replicas.get(arm)
        if replica is None or not replica.alive:
            return None, 0.001
        replica.requests += 1
        how = replica.behaviour if replica.requests > replica.behaviour.healthy_requests else Behaviour()
        if replica.behaviour.dies_after is not None and replica.requests > replica.behaviour.dies_after:
            replica.alive = False
            return None, 0.001
        seconds = self.latency_seconds * math.exp(replica.random.gauss(0, self.latency_spread)) * how.latency_factor
        if how.hang:
            return None, math.inf
        if replica.random.random() < how.error_rate:
            return None, seconds
        if replica.random.random() < how.invalid_rate:
            return math.nan, seconds
        score = fake_score(row) if how.constant_score is None else how.constant_score
        noise = random.Random(f"{arm} {row['row_id']}").gauss(0, how.score_noise) if how.score_noise else 0.0
        return min(max(score + how.score_shift + noise, 0.0), 1.0), seconds


@contextmanager
def open_stack(step: Any, engine: str, training_set: Path) -> Iterator[FakeServing]:
    """What `pipelines.wiring.open_stack` gives, for component tests (name this module in $PILOTLINE_WIRING)."""
    yield FakeServing()
