"""Counts of one stage: what people read beside the evidence, and the rules that need no statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from components.rollout.evalues import rate_interval
from components.rollout.margins import Margins
from components.rollout.observations import Observation
from components.rollout.timing import Baseline, Flags

STABLE_WINDOW = 20  # stable's last requests, all of which succeeded, before a row of canary failures stops a canary
STABLE_MEANWHILE = 3  # of them, successes since the row began: an incident shared by both is not the canary's


@dataclass
class ArmTally:
    """Counts of one arm, and the sum of its scores."""

    requests: int = 0
    failed: int = 0
    invalid: int = 0
    late: int = 0  # beyond the service level objective
    scored: int = 0
    score_sum: float = 0.0

    def rate(self, what: str) -> str:
        """For example `6/61 (9.8 %, 4.1 to 19.6)`: with a 95 % interval that holds at any time."""
        count: int = getattr(self, what)
        if not self.requests:
            return "0/0"
        low, high = rate_interval(count, self.requests)
        return f"{count}/{self.requests} ({count / self.requests:.1%}, {low * 100:.1f} to {high * 100:.1f})"

    @property
    def mean_score(self) -> float:
        """Mean of the valid scores; 0 where there are none."""
        return self.score_sum / self.scored if self.scored else 0.0


class Tallies:
    """Everything that is counted in one stage."""

    def __init__(self, margins: Margins) -> None:
        """Nothing seen."""
        self._margins = margins
        self.arms = {"stable": ArmTally(), "canary": ArmTally()}
        self.pairs = self.flips = self.both_scored = self.undrawn = self.requests = self.canary_drawn = 0
        self.stable_surprise = self._canary_surprise = ""
        self._slow = {"latency_p50": [[0, 0], [0, 0]], "latency_p95": [[0, 0], [0, 0]]}  # arm → slow, measured
        self._row = self._meanwhile = self._longest_row = 0
        self._stable_last: deque[bool] = deque(maxlen=STABLE_WINDOW)

    def add(self, seen: Observation, weight: int, counts: bool = True) -> None:
        """Count one request; `weight` in percent, 0 for shadow.

        counts: False for a request that repeats its unit's draw: only the rules without statistics look at it.
        """
        self._note_surprise(seen.surprise)
        self._rows(seen)
        if not counts and seen.drawn_arm:
            return
        self.requests += 1
        self.undrawn += not seen.drawn_arm
        if not seen.drawn_arm:
            return
        self.canary_drawn += seen.canary
        own = self.arms[seen.drawn_arm]
        self._count(own, seen.own.failed, seen.own.invalid, seen.own.score)
        own.late += seen.own.seconds > self._margins.slo_seconds
        if weight == 0 and seen.mirrored is not None:
            self.pairs += 1
            self._count(self.arms["canary"], seen.mirrored.failed, seen.mirrored.invalid, seen.mirrored.score)
            self._flip(seen.own.score, seen.mirrored.score)

    def add_slow(self, seen: Observation, slow: Mapping[str, Flags]) -> None:
        """Count who was slower than it may be."""
        for level, (own, mirrored) in slow.items():
            arm = self._slow[level][seen.canary]
            arm[0], arm[1] = arm[0] + own, arm[1] + 1
            if mirrored is not None:
                self._slow[level][1][0] += mirrored
                self._slow[level][1][1] += 1

    def samples(self, weight: int) -> int:
        """Canary requests of a step, mirrored pairs of the shadow."""
        return self.pairs if weight == 0 else self.arms["canary"].requests

    def hard_failure(self) -> tuple[str, str] | None:
        """Rule and reason where the canary is wrong beyond statistics."""
        if self._canary_surprise:
            return "version", self._canary_surprise
        if self._longest_row >= self._margins.failures_in_a_row:
            arms = [f"{name} failed {arm.rate('failed')}, invalid {arm.invalid}" for name, arm in self.arms.items()]
            row = f"{self._longest_row} bad canary answers in a row while stable answered"
            return "failures_in_a_row", f"{row}; {'; '.join(arms)}"
        return None

    def stable_unwell(self) -> str:
        """Why stable proves nothing about the canary, or nothing."""
        stable = self.arms["stable"]
        if _surely_above(stable.failed + stable.invalid, stable.requests, self._margins.stable_errors):
            return f"stable itself fails: {stable.rate('failed')}"
        if _surely_above(stable.late, stable.requests, 0.05):
            return f"stable itself is slow: {stable.rate('late')} over {self._margins.slo_seconds * 1000:.0f} ms"
        return ""

    def failing_since(self, before: Baseline) -> str:
        """Why stable fails more often than before the canary came, or nothing: the two intervals have to part."""
        stable = self.arms["stable"]
        bad = stable.failed + stable.invalid
        if not before.requests or not _surely_above(bad, stable.requests, before.most_failing):
            return ""
        return f"stable fails since the canary came: {bad}/{stable.requests}, before {before.failed}/{before.requests}"

    def undrawn_lack(self) -> str:
        """Requests whose draw the caller never learnt tell about neither arm; many of them prevent a pass."""
        if self.undrawn <= self._margins.undrawn_share * self.requests:
            return ""
        return f"{self.undrawn} of {self.requests} requests came back without a draw"

    def text(self, name: str, weight: int) -> str:
        """Counts of both arms and the margin of one metric, for people."""
        canary, stable, margins = self.arms["canary"], self.arms["stable"], self._margins
        if name in ("errors", "invalid"):
            what = "failed" if name == "errors" else "invalid"
            within = f"margin +{margins.errors * 100:g} pp to pass, +{margins.harm * 100:g} pp to fail"
            return f"canary {canary.rate(what)}, stable {stable.rate(what)}, {within}"
        if name in self._slow:
            (stable_slow, stable_all), (slow, measured) = self._slow[name]
            quantile = name.removeprefix("latency_")
            limit = f"canary over {margins.latency_ratio:g} x stable's {quantile} {slow}/{measured}"
            return f"{limit}, stable over it {stable_slow}/{stable_all}"
        if name in ("score_up", "score_down"):
            means = f"mean score canary {canary.mean_score:.3f}, stable {stable.mean_score:.3f}"
            return f"{means}, may differ by {margins.score_shift:g}"
        if name == "label_flips":
            return (
                f"labels differ in {self.flips}/{self.both_scored} mirrored requests, limit {margins.label_flips:.0%}"
            )
        return f"{self.canary_drawn} of {self.requests} requests drawn for the canary at {weight} %"

    def _note_surprise(self, surprise: str) -> None:
        if surprise.startswith("canary"):
            self._canary_surprise = self._canary_surprise or surprise
        elif surprise:
            self.stable_surprise = self.stable_surprise or surprise

    def _count(self, arm: ArmTally, failed: bool, invalid: bool, score: float | None) -> None:
        arm.requests += 1
        arm.failed += failed
        arm.invalid += invalid
        if score is not None:
            arm.scored += 1
            arm.score_sum += score

    def _rows(self, seen: Observation) -> None:
        """Rows of bad answers of the canary while stable answers, whatever the statistics make of the requests."""
        sides = [(seen.canary, seen.own)] if seen.drawn_arm else []
        if seen.mirrored is not None:
            sides.append((True, seen.mirrored))
        for canary, side in sides:
            (self._canary if canary else self._stable)(side.failed or side.invalid)

    def _stable(self, bad: bool) -> None:
        self._stable_last.append(not bad)
        self._meanwhile += not bad

    def _canary(self, bad: bool) -> None:
        if not bad:
            self._row = 0
            return
        if self._row == 0:
            self._meanwhile = 0
        self._row += 1
        window = len(self._stable_last) == STABLE_WINDOW and all(self._stable_last)
        if window and self._meanwhile >= STABLE_MEANWHILE:
            self._longest_row = max(self._longest_row, self._row)

    def _flip(self, stable: float | None, canary: float | None) -> None:
        if stable is not None and canary is not None:
            self.both_scored += 1
            self.flips += (stable >= self._margins.threshold) != (canary >= self._margins.threshold)


def _surely_above(count: int, requests: int, limit: float) -> bool:
    """Whether the rate's interval lies above the limit."""
    return count > limit * requests and rate_interval(count, requests)[0] > limit
