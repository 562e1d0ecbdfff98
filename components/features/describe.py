"""What the features look like, by split: for the report, for people and for drift."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from components.features.repository import View
from components.features.split import TimeSplit

BUCKETS = 12
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def describe(
    frame: pd.DataFrame, split: TimeSplit, features: Sequence[str], history: Path, views: Sequence[View]
) -> dict[str, Any]:
    """Statistics as JSON values.

    `features`: name → {"edges": 13 numbers, split → {count, null_share, mean, sd, quantiles, histogram}}; the twelve
    buckets are quantiles of the training rows, widened to hold every row. `views`: rows, entities and newest moment.
    `rows`, `embargoed`: how the rows were shared out.
    """
    return {
        "rows": {"all": len(frame)} | {name: len(at) for name, at in split.positions.items()},
        "embargoed": split.embargoed,
        "bounds": {
            "train_until": split.train_until.isoformat(),
            "validation_from": split.validation_from.isoformat(),
            "validation_until": split.validation_until.isoformat(),
            "test_from": split.test_from.isoformat(),
        },
        "views": {view.name: _view(view, history) for view in views},
        "features": {name: _feature(frame[name].to_numpy(), split) for name in features},
    }


def _feature(values: np.ndarray, split: TimeSplit) -> dict[str, Any]:
    edges = bucket_edges(values[split.positions["train"]], values)
    about: dict[str, Any] = {"edges": edges}
    for name, at in split.positions.items():
        about[name] = _summary(values[at], edges)
    return about


def bucket_edges(training: np.ndarray, everything: np.ndarray) -> list[float]:
    """Thirteen ascending edges of twelve buckets, empty where no value is known."""
    known, every = training[np.isfinite(training)], everything[np.isfinite(everything)]
    if not len(every):
        return []
    inner = np.quantile(known if len(known) else every, np.linspace(0, 1, BUCKETS + 1)[1:-1])
    return [float(every.min()), *(float(edge) for edge in inner), float(every.max())]


def _summary(values: np.ndarray, edges: Sequence[float]) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    about: dict[str, Any] = {"count": len(values), "null_share": float(1 - len(known) / len(values))}
    if not len(known):
        return about | {"mean": None, "sd": None, "quantiles": {}, "histogram": [0] * (len(edges) - 1 if edges else 0)}
    counts, _ = np.histogram(known, edges)
    return about | {
        "mean": float(known.mean()),
        "sd": float(known.std()),
        "quantiles": {
            f"{q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(known, QUANTILES), strict=True)
        },
        "histogram": counts.tolist(),
    }


def _view(view: View, history: Path) -> dict[str, Any]:
    table = pq.read_table(history / f"{view.table}.parquet", columns=[*view.join_keys, "event_timestamp"])
    entities = table.group_by(list(view.join_keys)).aggregate([]).num_rows
    newest = max(table["event_timestamp"].to_pylist(), default=None)
    return {"rows": table.num_rows, "entities": entities, "newest": newest.isoformat() if newest else None}
