"""Replayed requests, what came of them, and the rollout's timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from components.core.digest import value_digest
from components.core.protocols import Decision, ServingStack
from components.core.recipe import Recipe
from components.core.records import RolloutEvent
from components.rollout.observations import ArmOutcome, Observation, observe
from components.rollout.replay import Replay, Row

Look = Callable[[Sequence[Observation]], bool]


@dataclass
class Traffic:
    """Sends replayed rows through the scoring service; `weight` is the canary's share in percent, for the timeline."""

    stack: ServingStack
    replay: Replay
    recipe: Recipe
    versions: Mapping[str, str]
    now: Callable[[], float]
    weight: int = 0
    requests: int = 0
    failed_requests: int = 0
    timeline: list[RolloutEvent] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)  # ids of replayed decisions, whose labels are known at once
    _latencies: dict[str, list[float]] = field(default_factory=lambda: {"stable": [], "canary": []})

    def __post_init__(self) -> None:
        """The clock starts."""
        self._began = self.now()

    @property
    def seconds(self) -> float:
        """Since the rollout began."""
        return self.now() - self._began

    def drive(self, requests: int, look: Look, look_ahead: Look | None = None) -> list[Observation]:
        """Send the next requests, open loop at the recipe's rate; one observation a request, in order of arrival.

        Args:
            requests: at most so many.
            look: sees each observation once, in that order, as soon as all before it are known; true ends the drive.
                What was under way by then is still returned, and its users still count.
            look_ahead: sees, right after `look`, all that arrived after what `look` saw, in order of arrival, those
                that have not ended as `open`; true ends the drive. Where the stack cannot tell it is not asked.

        A request for which nothing came back counts as failed for its user and tells about neither arm.
        """
        rows = self.replay.draw(requests)
        seen: list[Observation] = []
        ended = False

        def stop(decisions: Sequence[Decision]) -> bool:
            nonlocal ended
            fresh = self._observe(rows[len(seen) :], decisions[len(seen) :])
            seen.extend(fresh)
            ended = ended or look(fresh)
            return ended

        def under_way(decisions: Sequence[Decision]) -> bool:
            nonlocal ended
            assert look_ahead is not None
            ended = ended or look_ahead(self._observe(rows[len(seen) :], decisions))
            return ended

        more = {} if look_ahead is None else {"under_way": under_way}
        decisions = self.stack.decide(rows, self.recipe.rollout.requests_per_second, stop, **more)
        rest = self._observe(rows[len(seen) :], decisions[len(seen) :])
        if not ended:
            rest += [_LOST] * (len(rows) - len(seen) - len(rest))
            look(rest)
        self._count([*seen, *rest])
        return [*seen, *rest]

    def note(self, stage: str, text: str, verdict: str = "") -> None:
        """Add to the timeline."""
        event = RolloutEvent(
            seconds=round(self.seconds, 3), stage=stage, weight=self.weight, text=text, verdict=verdict
        )
        self.timeline.append(event)

    def latency_ms(self) -> dict[str, float]:
        """p50, p95 and p99 as users waited, over all requests and by the arm drawn; milliseconds."""
        every = self._latencies["stable"] + self._latencies["canary"]
        values = {f"p{level}": quantile(every, level) for level in (50, 95, 99)}
        for arm, ms in self._latencies.items():
            values |= {f"{arm}_p{level}": quantile(ms, level) for level in (50, 95)}
        return {name: round(value, 3) for name, value in values.items() if value is not None}

    def _observe(self, rows: Sequence[Row], decisions: Sequence[Decision]) -> list[Observation]:
        labels = self.recipe.model.labels
        self.sent.update(decision.decision_id for decision in decisions)
        return [
            observe(decision, self.versions, labels, *self._known(row), self._unit(row))
            for row, decision in zip(rows, decisions, strict=False)
        ]

    def _count(self, seen: Sequence[Observation]) -> None:
        self.requests += len(seen)
        self.failed_requests += sum(one.user_failed for one in seen)
        for one in seen:
            if one.drawn_arm and math.isfinite(one.own.seconds):
                self._latencies[one.drawn_arm].append(one.own.seconds * 1000)

    def _unit(self, row: Row) -> str:
        """The entity, where the recipe draws by it: then it is what is counted."""
        return value_digest(row["entities"]) if self.recipe.rollout.sticky else ""

    def _known(self, row: Row) -> tuple[float | None, int | None]:
        row_id = str(row["row_id"])
        return self.replay.evaluated.get(row_id), self.replay.outcomes.get(row_id)


def quantile(values: Iterable[float], level: int) -> float | None:
    """The nearest-rank percentile; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(level / 100 * len(ordered)) - 1)] if ordered else None


_LOST = Observation(
    drawn_arm="",
    weight=0.0,
    own=ArmOutcome(failed=True, invalid=False, seconds=math.inf, score=None),
    mirrored=None,
    user_failed=True,
)
