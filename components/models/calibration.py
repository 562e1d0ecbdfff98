"""Two-number calibration of a log odds (Platt, 1999, "Probabilistic outputs for support vector machines")."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_SLOPE = 0.05  # the order of the scores is never turned around


@dataclass(frozen=True)
class Calibration:
    """Probability = sigmoid(slope * (logprob_positive - logprob_negative) + intercept)."""

    slope: float
    intercept: float

    def probability(self, log_odds: NDArray[Any]) -> NDArray[np.float64]:
        """Calibrated probabilities, same shape as the log odds."""
        z = np.clip(self.slope * np.asarray(log_odds, dtype=np.float64) + self.intercept, -700.0, 700.0)
        return np.asarray(1.0 / (1.0 + np.exp(-z)))

    def to_dict(self) -> dict[str, float]:
        """Plain JSON values."""
        return {"slope": self.slope, "intercept": self.intercept}


def prior_shift(natural_share: float, trained_share: float) -> float:
    """What to add to a log odds learned at `trained_share` positives so that it fits `natural_share`."""
    return _logit(natural_share) - _logit(trained_share)


def log_loss(log_odds: NDArray[Any], labels: NDArray[Any]) -> float:
    """Mean negative log likelihood in nats; labels 0 or 1."""
    z = np.asarray(log_odds, dtype=np.float64)
    return float(np.logaddexp(0.0, -z * (2.0 * np.asarray(labels, dtype=np.float64) - 1.0)).mean())


def rank_auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Area under the ROC curve by mid ranks; NaN where one class is absent."""
    labels = np.asarray(labels)
    values, inverse, counts = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True, return_counts=True)
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives or not len(values):
        return math.nan
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def fit_platt(log_odds: NDArray[Any], labels: NDArray[Any], iterations: int = 100) -> Calibration:
    """Fit slope and intercept by Newton's method on Platt's smoothed targets.

    Args:
        log_odds: uncalibrated log odds of validation rows, shape (rows,).
        labels: 0 or 1, shape (rows,); both classes must occur.
        iterations: upper bound of Newton steps.
    """
    z, y = np.asarray(log_odds, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    positives, negatives = float(y.sum()), float(len(y) - y.sum())
    target = np.where(y > 0, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    design = np.stack([z, np.ones_like(z)], axis=1)
    weights = np.array([1.0, _logit((positives + 1) / (len(y) + 2))])
    current = _objective(design @ weights, target)
    for _ in range(iterations):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -500, 500)))
        gradient = design.T @ (p - target)
        hessian = (design * (p * (1 - p))[:, None]).T @ design + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        scale = 1.0
        while (after := _objective(design @ (weights - scale * step), target)) > current and scale > 1e-6:
            scale /= 2
        weights, moved, current = weights - scale * step, current - after, after
        if abs(moved) < 1e-12:
            break
    if weights[0] < SMALLEST_SLOPE:
        return Calibration(SMALLEST_SLOPE, _intercept(SMALLEST_SLOPE * z, target))
    return Calibration(float(weights[0]), float(weights[1]))


def _objective(z: NDArray[Any], target: NDArray[Any]) -> float:
    return float((np.logaddexp(0.0, z) - target * z).sum())


def _intercept(z: NDArray[Any], target: NDArray[Any]) -> float:
    """The intercept that makes the mean probability equal the mean target (bisection)."""
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        mean = float((1.0 / (1.0 + np.exp(-np.clip(z + middle, -500, 500)))).mean())
        low, high = (middle, high) if mean < float(target.mean()) else (low, middle)
    return (low + high) / 2


def _logit(share: float) -> float:
    return math.log(share / (1.0 - share))
