"""Numbers as ordinal buckets: quantile edges learned on training rows, bucket 0 for no history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def quantile_edges(values: NDArray[Any], buckets: int) -> list[float]:
    """Inner edges that cut the values with history into at most `buckets` buckets of about equal size.

    Args:
        values: a feature's training values, NaN = no history.
        buckets: upper bound of buckets beside bucket 0.

    Returns:
        Strictly increasing edges, at most `buckets - 1`; none where nothing is known.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return []
    cuts = np.unique(np.quantile(known, np.linspace(0.0, 1.0, buckets + 1)[1:-1]))
    return [float(cut) for cut in cuts]


def bucket_of(values: NDArray[Any], edges: Sequence[float]) -> NDArray[np.int64]:
    """Bucket index of each value, same shape: 0 for NaN, else 1 + the number of edges at or below it."""
    values = np.asarray(values, dtype=np.float64)
    found = 1 + np.searchsorted(np.asarray(edges, dtype=np.float64), values, side="right")
    return np.where(np.isnan(values), 0, found).astype(np.int64)
