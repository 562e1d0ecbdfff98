"""Metrics of scored rows with bootstrap intervals, vectorised over resamples.

Every metric takes a matrix of row weights (shape B x n, one row a resample) and returns B values. The point estimate
is the same computation with all weights 1, so interval and value cannot drift apart.

The bootstrap is ordinary, not stratified: the share of positives varies between resamples as it would between two
samples of the same size, which log loss, Brier score and calibration depend on. Two models measured with the same
seed and number of rows see the same resamples: their difference is a paired one.
Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 6 and 13 (percentile interval).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from components.core.records import Interval

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

METRICS = ("auc", "average_precision", "log_loss", "brier", "ece")
BINS = 10
BLOCK_CELLS = 4_000_000  # weights held at once: 32 MB
MIN_VALID_SHARE = 0.95  # of the resamples that hold both labels, else no interval
COVERAGE = (2.5, 97.5)  # percentiles


@dataclass(frozen=True)
class Scored:
    """Rows sorted by score (ascending), with the starts of groups of equal scores and of calibration bins."""

    labels: Floats
    scores: Floats
    order: Integers
    ties: Integers
    bins: Integers

    @classmethod
    def of(cls, labels: Floats, scores: Floats) -> Scored:
        """Check and sort labels (n, 0 or 1) and scores (n, probabilities); ValueError where they are neither."""
        if labels.shape != scores.shape or labels.ndim != 1:
            raise ValueError(f"labels {labels.shape} and scores {scores.shape} are not two lists of one length")
        if not np.isin(labels, (0.0, 1.0)).all():
            raise ValueError("labels are not all 0 or 1")
        if not (np.isfinite(scores).all() and ((scores >= 0) & (scores <= 1)).all()):
            raise ValueError("scores are not all finite numbers from 0 to 1")
        order = np.argsort(scores, kind="stable")
        ranked = scores[order]
        ties = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if ranked.size else np.zeros(0, np.int64)
        return cls(labels[order], ranked, order, ties, _bin_starts(ties, ranked.size))

    def statistics(self, weights: Floats) -> Floats:
        """All metrics under row weights (B x n, rows in the caller's order): B x 5 in the order of METRICS.

        Rank metrics are NaN where a resample holds one label only.
        """
        weights = weights[:, self.order]
        total = weights.sum(axis=1)
        positive = np.add.reduceat(weights * self.labels, self.ties, axis=1)
        everything = np.add.reduceat(weights, self.ties, axis=1)
        error = self.labels - self.scores
        gaps = np.add.reduceat(weights * error, self.bins, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.column_stack(
                [
                    _auc(positive, everything - positive),
                    _average_precision(positive, everything),
                    weights @ _log_losses(self.labels, self.scores) / total,
                    weights @ error**2 / total,
                    np.abs(gaps).sum(axis=1) / total,
                ]
            )


def measure(labels: Floats, scores: Floats, resamples: int, seed: int) -> dict[str, Interval]:
    """Every metric of METRICS as point estimate and 95 % percentile interval.

    AUC and average precision need both labels, else they are None; without rows everything is None.
    The calibration error (ECE) is the mean absolute gap between score and rate over ten bins of equal count,
    equal scores in one bin, weighted by the bin's rows; its bins are those of the whole sample in every resample.
    """
    rows, positives = len(labels), int(labels.sum())
    if not rows:
        return {name: Interval(value=None, low=None, high=None, n=0) for name in METRICS}
    scored = Scored.of(labels, scores)
    values = scored.statistics(np.ones((1, rows)))[0]
    samples = _samples([scored], rows, resamples, seed)[0]
    return {name: interval(values[at], samples[:, at], rows, positives) for at, name in enumerate(METRICS)}


def paired_auc_difference(labels: Floats, first: Floats, second: Floats, resamples: int, seed: int) -> Interval:
    """AUC of the first scores less AUC of the second on the same rows, resampled together."""
    rows, positives = len(labels), int(labels.sum())
    if not rows:
        return Interval(value=None, low=None, high=None, n=0)
    pair = [Scored.of(labels, first), Scored.of(labels, second)]
    values = [scored.statistics(np.ones((1, rows)))[0, 0] for scored in pair]
    samples = _samples(pair, rows, resamples, seed)[:, :, 0]
    return interval(values[0] - values[1], samples[0] - samples[1], rows, positives)


def interval(value: float, samples: Floats, rows: int, positives: int) -> Interval:
    """Percentile interval, stretched to hold the value; no ends where too few resamples could be measured."""
    known = samples[np.isfinite(samples)]
    if not np.isfinite(value):
        return Interval(value=None, low=None, high=None, n=rows, positives=positives)
    if not known.size or known.size < MIN_VALID_SHARE * samples.size:
        return Interval(value=float(value), low=None, high=None, n=rows, positives=positives)
    low, high = np.percentile(known, COVERAGE)
    return Interval(
        value=float(value),
        low=float(min(low, value)),
        high=float(max(high, value)),
        n=rows,
        positives=positives,
    )


def roc_points(labels: Floats, scores: Floats, most: int = 200) -> list[tuple[float, float, float]]:
    """The ROC curve as at most `most` points (false positive rate, true positive rate, threshold), all finite.

    Without both labels there is no curve: an empty list.
    """
    scored = Scored.of(labels, scores)
    positives = scored.labels.sum()
    negatives = len(labels) - positives
    if not positives or not negatives:
        return []
    hits = np.cumsum(np.add.reduceat(scored.labels, scored.ties)[::-1])
    alarms = np.cumsum(np.add.reduceat(1.0 - scored.labels, scored.ties)[::-1])
    rates = np.column_stack([np.r_[0.0, alarms / negatives], np.r_[0.0, hits / positives]])
    descending = scored.scores[scored.ties][::-1]
    cuts = np.r_[np.nextafter(descending[0], 2.0), descending]
    kept = np.unique(np.linspace(0, len(cuts) - 1, min(most, len(cuts))).round().astype(int))
    return [(float(rates[at, 0]), float(rates[at, 1]), float(cuts[at])) for at in kept]


def calibration_points(labels: Floats, scores: Floats) -> list[list[float]]:
    """Mean score, rate of positives and row count of each calibration bin, ascending."""
    scored = Scored.of(labels, scores)
    if not len(labels):
        return []
    counts = np.add.reduceat(np.ones(len(labels)), scored.bins)
    means = np.add.reduceat(scored.scores, scored.bins) / counts
    rates = np.add.reduceat(scored.labels, scored.bins) / counts
    return np.column_stack([means, rates, counts]).tolist()


def confusion(labels: Floats, scores: Floats, threshold: float) -> list[list[int]]:
    """Counts [[true negatives, false positives], [false negatives, true positives]]; positive from the threshold on."""
    said = scores >= threshold
    return [[int(np.sum((labels == truth) & (said == answer))) for answer in (False, True)] for truth in (0, 1)]


def resample_weights(rows: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each row is drawn in each resample, in blocks (B x rows) of bounded size; deterministic."""
    rng = np.random.default_rng(seed)
    per_block = max(1, BLOCK_CELLS // max(rows, 1))
    for start in range(0, resamples, per_block):
        size = min(per_block, resamples - start)
        drawn = rng.integers(0, rows, size=(size, rows)) + np.arange(size)[:, None] * rows
        yield np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)


def _samples(scored: list[Scored], rows: int, resamples: int, seed: int) -> Floats:
    """Statistics of several scorings under the same resamples: shape (scorings, resamples, metrics)."""
    blocks = [np.stack([one.statistics(w) for one in scored]) for w in resample_weights(rows, resamples, seed)]
    return np.concatenate(blocks, axis=1) if blocks else np.zeros((len(scored), 0, len(METRICS)))


def _bin_starts(ties: Integers, rows: int) -> Integers:
    """Starts of up to BINS bins of equal count; a group of equal scores lies in the bin of its middle."""
    if not rows:
        return np.zeros(0, np.int64)
    middles = (ties + np.r_[ties[1:], rows] - 1) / 2
    group_bins = np.floor(BINS * middles / rows).astype(np.int64)
    return ties[np.flatnonzero(np.r_[True, group_bins[1:] != group_bins[:-1]])]


def _auc(positive: Floats, negative: Floats) -> Floats:
    """P(score of a positive > score of a negative) + half of ties, over groups of equal scores (B x groups)."""
    below = np.cumsum(negative, axis=1) - negative / 2
    value: Floats = (positive * below).sum(axis=1) / (positive.sum(axis=1) * negative.sum(axis=1))
    return value


def _average_precision(positive: Floats, everything: Floats) -> Floats:
    """Sum of precision times step in recall, from the highest score down; NaN without both labels."""
    positive, everything = positive[:, ::-1], everything[:, ::-1]
    found = np.cumsum(positive, axis=1)
    seen = np.cumsum(everything, axis=1)
    precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
    both = np.where(found[:, -1] < seen[:, -1], found[:, -1], np.nan)
    value: Floats = (precision * positive).sum(axis=1) / both
    return value


def _log_losses(labels: Floats, scores: Floats) -> Floats:
    edge = np.finfo(np.float64).eps
    clipped = np.clip(scores, edge, 1 - edge)
    return -(labels * np.log(clipped) + (1 - labels) * np.log1p(-clipped))
