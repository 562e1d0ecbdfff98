"""Canary against stable, metric by metric: on mirrored requests (shadow) and on split traffic (a step)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from components.rollout.evalues import EProcess, PairedMean, RateLimit, TwoArmRate, UnpairedMean
from components.rollout.labels import Labelled, PairedLabels, SplitLabels
from components.rollout.margins import LATENCY_LEVELS, Margins
from components.rollout.observations import ArmOutcome, Observation
from components.rollout.timing import Flags

WORSE_SLOW = {
    "latency_p50": (0.1, 0.2, 0.35, 0.45),
    "latency_p95": (0.03, 0.075, 0.2, 0.45, 0.9),
}  # excess over 1 - level
NO_WORSE_SLOW = (0.75, 0.5, 0.25, 0.05)  # multiples of 1 - level


class Comparison(Protocol):
    """Tests of one purpose: `harm` proves the canary worse, `proof` proves it not worse."""

    tests: dict[str, EProcess]
    bad: dict[str, int]  # failed (errors) and invalid answers of the canary

    def update(self, seen: Observation, slow: Mapping[str, Flags]) -> None:
        """Add one request that has ended."""
        ...

    def update_slow(self, seen: Observation, slow: Mapping[str, Flags]) -> None:
        """Add how slow a request was."""
        ...

    def label(self, label: Labelled) -> None:
        """Add a label that arrived later."""
        ...


class ShadowTests:
    """Paired tests on mirrored requests; there is no draw, each request tells about both versions."""

    def __init__(self, margins: Margins, purpose: str) -> None:
        """`purpose`: harm or proof."""
        self._harm, self._threshold = purpose == "harm", margins.threshold
        shift, flips = margins.score_shift, margins.label_flips
        if self._harm:
            self._failed, self._invalid = PairedMean(+1, margins.harm), PairedMean(+1, margins.harm)
            self._up, self._down = PairedMean(+1, shift), PairedMean(-1, shift)
            self._flips = RateLimit("above", flips)
        else:
            self._failed, self._invalid = PairedMean(-1, -margins.errors), PairedMean(-1, -margins.errors)
            self._up, self._down = PairedMean(-1, -shift), PairedMean(+1, -shift)
            self._flips = RateLimit("below", flips)
        self.bad, self.labels = {"errors": 0, "invalid": 0}, PairedLabels(margins)
        self._slow = {level: PairedMean(+1, 0.0) for level in LATENCY_LEVELS}
        self.tests: dict[str, EProcess] = {
            "errors": self._failed,
            "invalid": self._invalid,
            "score_up": self._up,
            "score_down": self._down,
            "label_flips": self._flips,
        }
        if self._harm:  # labels and the shadow's own latency can stop a canary; they do not clear it
            self.tests |= {**self.labels.tests, **self._slow}

    def update(self, seen: Observation, slow: Mapping[str, Flags]) -> None:
        """Add one request; one that was not mirrored tells nothing."""
        if seen.mirrored is None:
            return
        _count(self.bad, seen.mirrored)
        self._failed.update(seen.mirrored.failed - seen.own.failed)
        self._invalid.update(seen.mirrored.invalid - seen.own.invalid)
        self._scores(seen)
        self.update_slow(seen, slow)

    def update_slow(self, seen: Observation, slow: Mapping[str, Flags]) -> None:  # noqa: ARG002 - the other comparison needs it
        """Add the difference of the two sides."""
        for level, (stable_slow, canary_slow) in slow.items():
            if canary_slow is not None:
                self._slow[level].update(canary_slow - stable_slow)

    def label(self, label: Labelled) -> None:
        """Add the label of a mirrored request."""
        self.labels.add(label)

    def _scores(self, seen: Observation) -> None:
        assert seen.mirrored is not None
        stable, canary = seen.own.score, seen.mirrored.score
        if stable is None:
            return
        if canary is None:
            if not self._harm:  # a score that is missing is taken as the worst one
                self._up.update(1.0)
                self._down.update(-1.0)
                self._flips.update(True)
            return
        self._up.update(canary - stable)
        self._down.update(canary - stable)
        self._flips.update((canary >= self._threshold) != (stable >= self._threshold))
        if seen.outcome is not None:
            self.label(Labelled(seen.outcome, stable, canary))


class SplitTests:
    """Two-arm tests on requests drawn for one version or the other with a known probability."""

    def __init__(self, margins: Margins, purpose: str) -> None:
        """`purpose`: harm or proof."""
        self._harm = purpose == "harm"
        direction, margin = ("worse", margins.harm) if self._harm else ("no_worse", margins.errors)
        self._failed, self._invalid = TwoArmRate(direction, margin), TwoArmRate(direction, margin)
        self._slow = {level: self._latency(direction, level) for level in LATENCY_LEVELS}
        shift = margins.score_shift
        self._up = UnpairedMean(+1, shift) if self._harm else UnpairedMean(-1, -shift)
        self._down = UnpairedMean(-1, shift) if self._harm else UnpairedMean(+1, -shift)
        self.bad, self._labels = {"errors": 0, "invalid": 0}, SplitLabels(margins)
        self._stable_sum, self._stable_count = 0.5, 1
        self.tests: dict[str, EProcess] = {
            "errors": self._failed,
            "invalid": self._invalid,
            **self._slow,
            "score_up": self._up,
            "score_down": self._down,
        }
        if self._harm:
            self.tests["log_loss"] = self._labels.loss

    def update(self, seen: Observation, slow: Mapping[str, Flags]) -> None:
        """Add one request."""
        if seen.canary:
            _count(self.bad, seen.own)
        self._failed.update(seen.canary, seen.own.failed, seen.weight)
        self._invalid.update(seen.canary, seen.own.invalid, seen.weight)
        self.update_slow(seen, slow)
        expected = self._stable_sum / self._stable_count if seen.expected is None else seen.expected
        for test, worst in ((self._up, 1.0), (self._down, 0.0)):
            test.update(seen.canary, self._score(seen, expected, worst), seen.weight, expected)
        if not seen.canary and seen.own.score is not None:
            self._stable_sum, self._stable_count = self._stable_sum + seen.own.score, self._stable_count + 1
        if self._harm and seen.outcome is not None:
            score, arm = seen.own.score, seen.drawn_arm
            self.label(Labelled(seen.outcome, score, score, arm, seen.weight, seen.expected))

    def update_slow(self, seen: Observation, slow: Mapping[str, Flags]) -> None:
        """Add how slow the drawn arm was."""
        for level, (is_slow, _) in slow.items():
            self._slow[level].update(seen.canary, is_slow, seen.weight)

    def label(self, label: Labelled) -> None:
        """Add the label of a request on split traffic."""
        self._labels.add(label)

    def _score(self, seen: Observation, expected: float, worst: float) -> float:
        """The request's score; a missing one says nothing of harm, and stands in the way of a proof."""
        if seen.own.score is not None:
            return seen.own.score
        if self._harm:
            return expected
        return worst if seen.canary else 1 - worst

    def _latency(self, direction: str, level: str) -> TwoArmRate:
        share = 1 - LATENCY_LEVELS[level]
        bets = WORSE_SLOW[level] if self._harm else NO_WORSE_SLOW
        return TwoArmRate(direction, 0.0, bets, prior=(share * 50, 50.0))


def _count(bad: dict[str, int], canary: ArmOutcome) -> None:
    bad["errors"] += canary.failed
    bad["invalid"] += canary.invalid
