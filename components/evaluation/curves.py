"""Curves of scored rows: ROC, precision over recall, reliability, and the confusion matrix."""

from __future__ import annotations

import numpy as np

from components.evaluation.metrics import Floats, Scored

MOST_POINTS = 200


def roc_points(labels: Floats, scores: Floats, most: int = MOST_POINTS) -> list[tuple[float, float, float]]:
    """The ROC curve as at most `most` points (false positive rate, true positive rate, threshold), all finite.

    Without both labels there is no curve: an empty list.
    """
    positives, negatives = int(labels.sum()), int(len(labels) - labels.sum())
    if not positives or not negatives:
        return []
    cuts, hits, alarms = _downwards(labels, scores)
    rates = np.column_stack([np.r_[0.0, alarms / negatives], np.r_[0.0, hits / positives]])
    cuts = np.r_[np.nextafter(cuts[0], 2.0), cuts]
    return [(float(rates[at, 0]), float(rates[at, 1]), float(cuts[at])) for at in _spread(len(cuts), most)]


def precision_recall_points(labels: Floats, scores: Floats, most: int = MOST_POINTS) -> list[list[float]]:
    """At most `most` points (recall, precision), from the highest score down; empty without both labels."""
    positives = int(labels.sum())
    if not positives or positives == len(labels):
        return []
    _, hits, alarms = _downwards(labels, scores)
    return [[float(hits[at] / positives), float(hits[at] / (hits[at] + alarms[at]))] for at in _spread(len(hits), most)]


def calibration_points(labels: Floats, scores: Floats) -> list[list[float]]:
    """Mean score, rate of positives and row count of each calibration bin, ascending."""
    if not len(labels):
        return []
    scored = Scored.of(labels, scores)
    counts = scored.counts()[0].reshape(2, -1)
    rows = np.add.reduceat(counts.sum(axis=0), scored.bins)
    positive = np.add.reduceat(counts[1], scored.bins)
    residual = np.add.reduceat((counts * scored.residuals.reshape(2, -1)).sum(axis=0), scored.bins)
    return np.column_stack([(positive - residual) / rows, positive / rows, rows]).tolist()


def confusion(labels: Floats, scores: Floats, threshold: float) -> list[list[int]]:
    """Counts [[true negatives, false positives], [false negatives, true positives]]; positive from the threshold on."""
    said = scores >= threshold
    return [[int(np.sum((labels == truth) & (said == answer))) for answer in (False, True)] for truth in (0, 1)]


def _downwards(labels: Floats, scores: Floats) -> tuple[Floats, Floats, Floats]:
    """Distinct scores, highest first, with the positives and negatives at or above each."""
    distinct, group = np.unique(scores, return_inverse=True)
    positive = np.bincount(group, labels, minlength=len(distinct))[::-1]
    negative = np.bincount(group, 1.0 - labels, minlength=len(distinct))[::-1]
    return distinct[::-1], np.cumsum(positive), np.cumsum(negative)


def _spread(count: int, most: int) -> list[int]:
    """At most `most` places of 0..count-1, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()
