"""Metrics of scored rows with bootstrap intervals, vectorised over resamples.

The bootstrap is ordinary, not stratified: the share of positives and of each slice varies between resamples as it would
between two samples of the same size, which log loss, Brier score and calibration depend on. The same seed and number
of rows give the same resamples: two models, or two slices, that are measured with them are compared in pairs.
Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 6 and 13 (percentile interval).

A resample is looked at through its counts in cells of (group of neighbouring scores, label), which is all that the
metrics need. Point estimates are exact: there a group is one score. For the spread, a sample with more distinct scores
than MOST_GROUPS is cut into about that many groups, nested in the calibration bins and cut at the threshold; what this
changes in the metric itself is taken off again (of 100,000 rows: 1e-5 in the AUC, 1e-4 in average precision).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from components.core.records import Interval
from components.evaluation.calibration_error import deviations, ends

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

METRICS = ("auc", "average_precision", "log_loss", "brier", "ece")
OPERATING = ("precision", "recall", "fpr", "selection_rate", "accuracy")
EVERY = (*METRICS, *OPERATING)
WIDTH = len(EVERY) + 2  # of a resample: the metrics, then the deviations that the interval of the ECE is made of
BINS = 10
MOST_GROUPS = 500
BLOCK_CELLS = 2_000_000  # counts held at once: 16 MB
MIN_VALID_SHARE = 0.95  # of the resamples that hold both labels, else no interval
COVERAGE = (2.5, 97.5)  # percentiles


@dataclass(frozen=True)
class Scored:
    """Rows of one sample as cells: the negatives of each score group (ascending), then the positives of each.

    cells: cell of each row (n,). losses, squares, residuals: mean log loss, squared error and label less score of each
    cell (2 * groups,). bins: first group of each calibration bin. cut: first group at or above the threshold, None
    where there is no threshold.
    """

    cells: Integers
    groups: int
    losses: Floats
    squares: Floats
    residuals: Floats
    bins: Integers
    cut: int | None

    @classmethod
    def of(cls, labels: Floats, scores: Floats, threshold: float | None = None, most: int | None = None) -> Scored:
        """Check labels (n, 0 or 1) and scores (n, probabilities) and group them, each score by itself or `most` groups.

        Raises:
            ValueError: they are neither, or there is no row.
        """
        _check(labels, scores)
        order = np.argsort(scores, kind="stable")
        ranked, rows = scores[order], len(scores)
        ties = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
        bins = _bin_starts(ties, rows)
        above = None if threshold is None else int(np.searchsorted(ranked, threshold, side="left"))
        starts = _grouped(ties, [*bins, *([] if above in (None, rows) else [above])], rows, most)
        group = np.empty(rows, np.int64)
        group[order] = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, rows]))
        cells = group + len(starts) * labels.astype(np.int64)
        counts = np.maximum(np.bincount(cells, minlength=2 * len(starts)), 1)

        def mean(values: Floats) -> Floats:
            return np.bincount(cells, values, minlength=2 * len(starts)) / counts

        return cls(
            cells,
            len(starts),
            mean(_log_losses(labels, scores)),
            mean((labels - scores) ** 2),
            mean(labels - scores),
            np.searchsorted(starts, bins),
            None if above is None else int(np.searchsorted(starts, above)),
        )

    def counts(self, weights: Floats | None = None) -> Floats:
        """Rows, or the sum of the rows' weights, in each cell: shape (1, 2 * groups)."""
        return np.bincount(self.cells, weights, minlength=2 * self.groups).astype(np.float64)[None, :]

    def statistics(self, counts: Floats) -> Floats:
        """All metrics under counts in the cells (B x 2 groups): B x 10 in the order of EVERY, NaN where undefined.

        Rank metrics are undefined where a resample holds one label only, those of the operating point without it.
        """
        negative, positive = counts[:, : self.groups], counts[:, self.groups :]
        negatives, positives = negative.sum(axis=1), positive.sum(axis=1)
        total = negatives + positives
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.column_stack(
                [
                    _auc(positive, negative) / (positives * negatives),
                    _average_precision(positive, negative) / np.where(negatives > 0, positives, np.nan),
                    counts @ self.losses / total,
                    counts @ self.squares / total,
                    np.abs(self.gaps(counts)).sum(axis=1),
                    *self._operating(positive, negative, positives, negatives),
                ]
            )

    def gaps(self, counts: Floats) -> Floats:
        """Label less score in each calibration bin, times the bin's share of the rows: B x bins."""
        residuals = np.add.reduceat(
            counts[:, : self.groups] * self.residuals[: self.groups]
            + counts[:, self.groups :] * self.residuals[self.groups :],
            self.bins,
            axis=1,
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(residuals / counts.sum(axis=1, keepdims=True), np.float64)

    def _operating(self, positive: Floats, negative: Floats, positives: Floats, negatives: Floats) -> list[Floats]:
        if self.cut is None:
            return [np.full(len(positive), np.nan)] * len(OPERATING)
        hits, alarms = positive[:, self.cut :].sum(axis=1), negative[:, self.cut :].sum(axis=1)
        total = positives + negatives
        return [
            hits / (hits + alarms),
            hits / positives,
            alarms / negatives,
            (hits + alarms) / total,
            (hits + negatives - alarms) / total,
        ]


@dataclass(frozen=True)
class Partition:
    """Disjoint samples of the same rows: `parts` their groupings, `table` the cell of each row, all parts in a line.

    Rows of no part lie in one last cell. `shifts`: the exact metrics of each part less those of its groups.
    """

    parts: tuple[Scored | None, ...]
    table: Integers
    cells: int
    values: tuple[Floats, ...]
    shifts: tuple[Floats, ...]

    @classmethod
    def of(cls, labels: Floats, scores: Floats, masks: Sequence[Flags], threshold: float | None = None) -> Partition:
        """Group each of the masks' rows (each n,); a mask without rows has no metrics. ValueError as of Scored."""
        _check(labels, scores)
        parts: list[Scored | None] = []
        values, shifts, table, start = [], [], np.full(len(labels), -1, np.int64), 0
        for mask in masks:
            if not mask.any():
                parts.append(None)
                values.append(np.full(len(EVERY), np.nan))
                shifts.append(np.zeros(len(EVERY)))
                continue
            exact = Scored.of(labels[mask], scores[mask], threshold)
            part = Scored.of(labels[mask], scores[mask], threshold, MOST_GROUPS)
            parts.append(part)
            values.append(exact.statistics(exact.counts())[0])
            shifts.append(values[-1] - part.statistics(part.counts())[0])
            table[mask] = part.cells + start
            start += 2 * part.groups
        table[table < 0] = start
        return cls(tuple(parts), table, start + 1, tuple(values), tuple(shifts))

    def statistics(self, counts: Floats) -> Floats:
        """All metrics of each part under counts (B x cells), then the deviations of its gaps: parts x B x 12."""
        found, start = [], 0
        for part, shift in zip(self.parts, self.shifts, strict=True):
            if part is None:
                found.append(np.full((len(counts), WIDTH), np.nan))
                continue
            drawn = counts[:, start : start + 2 * part.groups]
            moved = deviations(part.gaps(drawn), part.gaps(part.counts())[0])
            found.append(np.column_stack([part.statistics(drawn) + shift, moved]))
            start += 2 * part.groups
        return np.stack(found)


def resample(partitions: Sequence[Partition], resamples: int, seed: int) -> list[Floats]:
    """The metrics of every part of every partition (of the same rows) under the same resamples of the rows.

    Returns:
        For each partition an array of parts x resamples x 12, metrics in the order of EVERY, then `deviations`.
    """
    found: list[list[Floats]] = [[] for _ in partitions]
    for counts in _drawn(partitions, resamples, seed):
        for at, (partition, count) in enumerate(zip(partitions, counts, strict=True)):
            found[at].append(partition.statistics(count))
    empty = [np.zeros((len(partition.parts), 0, WIDTH)) for partition in partitions]
    return [np.concatenate([none, *blocks], axis=1) for none, blocks in zip(empty, found, strict=True)]


def measure(
    labels: Floats, scores: Floats, resamples: int, seed: int, threshold: float | None = None
) -> dict[str, Interval]:
    """Every metric of METRICS, and of OPERATING where there is a threshold, as point estimate and 95 % interval.

    AUC and average precision need both labels, else they are None, as a rate of nothing is; without rows everything is.
    The calibration error (ECE) is the mean absolute gap between score and rate over ten bins of equal count,
    equal scores in one bin, weighted by the bin's rows; its bins are those of the whole sample in every resample. Its
    value is the plain estimate, too large by the noise of the bins' rates; its interval allows for that.
    """
    return measure_each(labels, {"": scores}, resamples, seed, threshold)[""]


def measure_each(
    labels: Floats, scorings: Mapping[str, Floats], resamples: int, seed: int, threshold: float | None = None
) -> dict[str, dict[str, Interval]]:
    """`measure` of several scorings of the same rows, under the same resamples."""
    names = METRICS if threshold is None else EVERY
    if not len(labels):
        return {key: dict.fromkeys(names, Interval(value=None, low=None, high=None, n=0)) for key in scorings}
    everything = [np.ones(len(labels), bool)]
    partitions = [Partition.of(labels, scores, everything, threshold) for scores in scorings.values()]
    samples = resample(partitions, resamples, seed)
    rows, positives = len(labels), int(labels.sum())
    return {
        key: intervals(partition.values[0], found[0], rows, positives, names)
        for key, partition, found in zip(scorings, partitions, samples, strict=True)
    }


def paired_auc_difference(labels: Floats, first: Floats, second: Floats, resamples: int, seed: int) -> Interval:
    """AUC of the first scores less AUC of the second on the same rows, resampled together."""
    rows, positives = len(labels), int(labels.sum())
    if not rows:
        return Interval(value=None, low=None, high=None, n=0)
    pair = [Partition.of(labels, scores, [np.ones(rows, bool)]) for scores in (first, second)]
    samples = [found[0, :, 0] for found in resample(pair, resamples, seed)]
    values = [partition.values[0][0] for partition in pair]
    return interval(values[0] - values[1], samples[0] - samples[1], rows, positives)


def intervals(
    values: Floats, samples: Floats, rows: int, positives: int, names: Sequence[str] = EVERY
) -> dict[str, Interval]:
    """Intervals of metrics in the order of EVERY: values (10,), samples (resamples, 12); shares stay within 0..1.

    That of the ECE is not the percentiles of the resampled ECE: see calibration_error.py.
    A rate at the operating point that is 0 or 1 has its exact interval: no resample of "never" shows anything else.
    """
    found = {}
    for at, name in enumerate(EVERY):
        if name in names:
            drawn = samples[:, at] if name == "log_loss" else samples[:, at].clip(0, 1)
            found[name] = interval(values[at], drawn, rows, positives)
    if (seen := found.get("ece")) and seen.value is not None and seen.low is not None:
        moved = samples[:, len(EVERY) :]
        low, high = ends(seen.value, moved[np.isfinite(moved).all(axis=1)])
        found["ece"] = replace(seen, low=low, high=high)
    if "selection_rate" in found and found["selection_rate"].value is not None:
        selected = round(found["selection_rate"].value * rows)
        behind = {"precision": selected, "recall": positives, "fpr": rows - positives}
        for name in OPERATING:
            if (value := found[name].value) in (0.0, 1.0) and len(samples):
                exact = exact_rate(round(value * behind.get(name, rows)), behind.get(name, rows))
                found[name] = replace(exact, n=rows, positives=positives)
    return found


def exact_rate(count: int, rows: int) -> Interval:
    """A share with its exact 95 % interval, which has a width also where nothing was seen (Clopper, Pearson, 1934)."""
    from scipy.stats import beta

    if not rows:
        return Interval(value=None, low=None, high=None, n=0)
    low = float(beta.ppf(0.025, count, rows - count + 1)) if count else 0.0
    high = float(beta.ppf(0.975, count + 1, rows - count)) if count < rows else 1.0
    return Interval(value=count / rows, low=low, high=high, n=rows, positives=count)


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


def _drawn(partitions: Sequence[Partition], resamples: int, seed: int) -> Iterator[list[Floats]]:
    """How often each cell is drawn in each resample, in blocks of bounded size (B x cells), one array a partition.

    One resample after the other: 100,000 row numbers and their cells stay in the processor's cache.
    """
    rng = np.random.default_rng(seed)
    rows = len(partitions[0].table) if partitions else 0
    block = max(1, BLOCK_CELLS // max((partition.cells for partition in partitions), default=1))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        counts = [np.empty((size, partition.cells)) for partition in partitions]
        for at in range(size):
            drawn = rng.integers(0, rows, size=rows)
            for partition, count in zip(partitions, counts, strict=True):
                count[at] = np.bincount(partition.table.take(drawn), minlength=partition.cells)
        yield counts


def _check(labels: Floats, scores: Floats) -> None:
    if labels.shape != scores.shape or labels.ndim != 1 or not labels.size:
        raise ValueError(f"labels {labels.shape} and scores {scores.shape} are not two lists of one length, with rows")
    if not np.isin(labels, (0.0, 1.0)).all():
        raise ValueError("labels are not all 0 or 1")
    if not (np.isfinite(scores).all() and ((scores >= 0) & (scores <= 1)).all()):
        raise ValueError("scores are not all finite numbers from 0 to 1")


def _bin_starts(ties: Integers, rows: int) -> Integers:
    """Starts of up to BINS bins of equal count; a group of equal scores lies in the bin of its middle."""
    middles = (ties + np.r_[ties[1:], rows] - 1) / 2
    group_bins = np.floor(BINS * middles / rows).astype(np.int64)
    return ties[np.flatnonzero(np.r_[True, group_bins[1:] != group_bins[:-1]])]


def _grouped(ties: Integers, kept: Sequence[int], rows: int, most: int | None) -> Integers:
    """Starts of about `most` groups, none within equal scores, with the starts that are to be kept.

    Groups shrink towards the highest scores, where average precision has most of its weight.
    """
    if most is None or len(ties) <= most:
        return ties
    wanted = np.searchsorted(ties, rows * (1 - (np.arange(most, 0, -1) / most) ** 2))
    return np.unique(np.r_[ties[np.minimum(wanted, len(ties) - 1)], np.asarray(kept, np.int64)])


def _auc(positive: Floats, negative: Floats) -> Floats:
    """Pairs of a positive with a negative of a lower score, half of those in one group (B x groups)."""
    below = np.cumsum(negative, axis=1)
    below -= negative / 2
    pairs: Floats = np.einsum("ij,ij->i", positive, below)
    return pairs


def _average_precision(positive: Floats, negative: Floats) -> Floats:
    """Sum over groups of precision times positives, from the highest score down."""
    found = np.cumsum(positive[:, ::-1], axis=1)
    seen = found + np.cumsum(negative[:, ::-1], axis=1)
    precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
    weighed: Floats = np.einsum("ij,ij->i", precision, positive[:, ::-1])
    return weighed


def _log_losses(labels: Floats, scores: Floats) -> Floats:
    edge = np.finfo(np.float64).eps
    clipped = np.clip(scores, edge, 1 - edge)
    return -(labels * np.log(clipped) + (1 - labels) * np.log1p(-clipped))
