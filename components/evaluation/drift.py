"""How far the test rows lie from the training rows: an effect size, the population stability index, not a p-value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from components.evaluation.metrics import Floats

BUCKETS = 10
SMALLEST_SHARE = 1e-4  # an empty bucket counts as this, so that the index stays finite
SCORE = "score"


def measure_drift(
    train: pd.DataFrame,
    test: pd.DataFrame,
    numbers: Sequence[str],
    categories: Sequence[str],
    scores: tuple[Floats, Floats] | None,
) -> dict[str, dict[str, float]]:
    """Drift of each column and of the model's score.

    Args:
        train: training rows.
        test: test rows.
        numbers: columns of numbers, NaN is a bucket of its own.
        categories: columns of text; beside the index the share of test rows whose value is new.
        scores: the model's of (a sample of) the training rows and of the test rows. It has seen the outcomes of the
            first, so a part of this drift can be what it memorised.

    Returns:
        Column → psi, noise (the psi to expect of two samples of this size from one distribution), train_rows,
        test_rows and, of categories, new_share. Nothing of a column that one side has no rows of.
    """
    found = {}
    for name in numbers:
        found[name] = _of_numbers(train[name].to_numpy(np.float64), test[name].to_numpy(np.float64))
    if scores is not None:
        found[SCORE] = _of_numbers(*scores)
    for name in categories:
        found[name] = _of_categories(train[name].astype(str), test[name].astype(str))
    return {name: values for name, values in found.items() if values}


def psi(first: Floats, second: Floats) -> float:
    """Population stability index of counts in the same buckets: sum of (q - p) ln(q / p) over their shares p, q."""
    p, q = (np.maximum(counts / counts.sum(), SMALLEST_SHARE) for counts in (first, second))
    return float(((q - p) * np.log(q / p)).sum())


def _of_numbers(train: Floats, test: Floats) -> dict[str, float]:
    """Buckets are deciles of the training values (fewer where values are equal) and one for no value."""
    if not len(train) or not len(test):
        return {}
    known = train[np.isfinite(train)]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, BUCKETS + 1)[1:-1])) if known.size else np.zeros(0)
    counts = []
    for values in (train, test):
        bucket = np.where(np.isfinite(values), 1 + np.searchsorted(edges, values, side="right"), 0)
        counts.append(np.bincount(bucket, minlength=len(edges) + 2).astype(np.float64))
    return _told(*counts)


def _of_categories(train: pd.Series, test: pd.Series) -> dict[str, float]:
    """Buckets are the most frequent training values and one for all others; unseen values are counted beside."""
    if not len(train) or not len(test):
        return {}
    frequent = train.value_counts().index[:BUCKETS]
    counts = []
    for values in (train, test):
        place = frequent.get_indexer(values)
        counts.append(np.bincount(np.where(place < 0, len(frequent), place), minlength=len(frequent) + 1).astype(float))
    return _told(*counts) | {"new_share": float((~test.isin(train.unique())).mean())}


def _told(first: Floats, second: Floats) -> dict[str, float]:
    used = int(((first + second) > 0).sum())
    rows = (float(first.sum()), float(second.sum()))
    noise = (used - 1) * (1 / rows[0] + 1 / rows[1])  # the index is about chi-squared with used - 1 degrees
    return {"psi": psi(first, second), "noise": noise, "train_rows": rows[0], "test_rows": rows[1]}
