"""Labels, known at once on replayed rows or delayed on live ones: does the canary predict worse than stable?

They can stop a canary; a pass does not wait for them. Two measures: the log loss of each request (clipped to 1, so that
one wrong answer does not decide), and the order of disjoint (positive, negative) pairs, whose mean is the AUC.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from components.core.protocols import ArrivedLabel
from components.rollout.evalues import EProcess, PairedMean, UnpairedMean
from components.rollout.margins import Margins
from components.rollout.observations import valid_score

WAITING = 2_000  # labelled requests of one class that wait for one of the other; older ones are let go


@dataclass(frozen=True)
class Labelled:
    """A label that arrived for a request: `outcome` 0 or 1, and what is known of the request.

    Mirrored requests (weight 0) have both scores; of a request on split traffic only the drawn arm's is known.
    `expected`: the score that evaluation gave to the row, or None.
    """

    outcome: int
    stable: float | None
    canary: float | None
    drawn_arm: str = "stable"
    weight: float = 0.0
    expected: float | None = None


def labelled(label: ArrivedLabel, names: Sequence[str]) -> Labelled | None:
    """What a label tells of two versions; None where it tells of one alone.

    Args:
        label: of a decision, as it arrived.
        names: of the recipe's labels, the negative one first.
    """
    if label.label not in names or not 0 <= label.weight < 1:
        return None
    outcome, score = list(names).index(label.label), label.score if valid_score(label.score) else None
    if label.weight == 0:
        return Labelled(outcome, score, label.shadow_score) if valid_score(label.shadow_score) else None
    return Labelled(outcome, score, score, label.drawn, label.weight)


class PairedLabels:
    """Both versions scored the same requests: differences of their losses, and of their orders."""

    def __init__(self, margins: Margins) -> None:
        """No label came."""
        self._loss, self._order = PairedMean(+1, margins.log_loss), PairedMean(+1, margins.auc)
        self.tests: dict[str, EProcess] = {"log_loss": self._loss, "auc": self._order}
        self._waiting = {0: deque[tuple[float, float]](maxlen=WAITING), 1: deque[tuple[float, float]](maxlen=WAITING)}
        self._count = self._pairs = 0
        self._losses, self._orders = [0.0, 0.0], [0.0, 0.0]  # sums, stable and canary

    def add(self, label: Labelled) -> None:
        """Add one label; a request that a version gave no score to tells nothing."""
        if label.stable is None or label.canary is None or label.outcome not in (0, 1):
            return
        losses = [clipped_log_loss(score, label.outcome) for score in (label.stable, label.canary)]
        self._loss.update(losses[1] - losses[0])
        self._count += 1
        self._losses = [total + loss for total, loss in zip(self._losses, losses, strict=True)]
        self._pair(label.outcome, (label.stable, label.canary))

    def _pair(self, outcome: int, scores: tuple[float, float]) -> None:
        """Each request belongs to one pair, chosen by arrival: the pairs are independent of the scores."""
        if not self._waiting[1 - outcome]:
            self._waiting[outcome].append(scores)
            return
        other = self._waiting[1 - outcome].popleft()
        positive, negative = (scores, other) if outcome else (other, scores)
        orders = [in_order(one, two) for one, two in zip(positive, negative, strict=True)]
        self._order.update(orders[0] - orders[1])
        self._pairs += 1
        self._orders = [total + order for total, order in zip(self._orders, orders, strict=True)]

    def text(self, name: str) -> str:
        """Both versions' figures, for people."""
        count, sums = (self._count, self._losses) if name == "log_loss" else (self._pairs, self._orders)
        stable, canary = (total / count if count else 0.0 for total in sums)
        if name == "log_loss":
            return f"mean clipped log loss canary {canary:.3f}, stable {stable:.3f} on {count} known outcomes"
        return f"AUC canary {canary:.3f}, stable {stable:.3f} on {count} pairs of known outcomes"


class SplitLabels:
    """One version scored each request: the losses, weighted by the probability of the draw."""

    def __init__(self, margins: Margins) -> None:
        """No label came."""
        self.loss = UnpairedMean(+1, margins.log_loss)
        self._sum, self._count = 0.3, 1.0  # of stable's losses: what a request's is guessed to be

    def add(self, label: Labelled) -> None:
        """Add one label; a score that is missing counts as the one that was expected."""
        if label.outcome not in (0, 1) or not 0 < label.weight < 1:
            return
        canary = label.drawn_arm == "canary"
        guess = self._sum / self._count
        expected = guess if label.expected is None else clipped_log_loss(label.expected, label.outcome)
        score = label.canary if canary else label.stable
        loss = expected if score is None else clipped_log_loss(score, label.outcome)
        self.loss.update(canary, loss, label.weight, expected)
        if not canary and score is not None:
            self._sum, self._count = self._sum + loss, self._count + 1


def in_order(positive: float, negative: float) -> float:
    """1 where the positive has the higher score, a half where they are equal."""
    return 1.0 if positive > negative else 0.5 if positive == negative else 0.0


def clipped_log_loss(score: float, outcome: int) -> float:
    """-log of the probability given to what happened, at most 1."""
    probability = score if outcome else 1 - score
    return 1.0 if probability <= math.exp(-1) else -math.log(probability)
