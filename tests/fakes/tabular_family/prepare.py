"""From a training set to standardised numbers and a signature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from components.core.recipe import Recipe
from components.core.records import TrainingSetRef
from components.models.feature_source import FeatureSource
from components.models.files import SIGNATURE


def prepare(recipe: Recipe, ref: TrainingSetRef, train: pd.DataFrame, validation: pd.DataFrame, folder: Path) -> None:
    """Write means and spreads of the training rows into the signature, and the rows in numbers."""
    features = list(recipe.features.model_inputs)
    known = train[features].to_numpy(np.float64)
    signature = {
        "family": recipe.model.family,
        "labels": list(recipe.model.labels),
        **FeatureSource.of(ref, features).signed(),
        "mean": np.nanmean(known, 0).tolist(),
        "spread": np.nanstd(known, 0).tolist(),
        "calibration": None,
    }
    (folder / SIGNATURE).write_text(json.dumps(signature))
    for name, frame in (("train", train), ("validation", validation)):
        np.savez(folder / f"{name}.npz", x=numbers(signature, frame), y=frame["label"].to_numpy(np.int64))


def initial_digest(recipe: Recipe) -> str:
    """Weights start at zero."""
    return ""


def sized(recipe: Recipe) -> Recipe:
    """There are no sizes."""
    return recipe


def numbers(signature: dict[str, Any], frame: pd.DataFrame) -> NDArray[np.float32]:
    """Standardised features, 0 where there is no history; shape (rows, features)."""
    raw = frame[signature["features"]].to_numpy(np.float64)
    return np.nan_to_num((raw - signature["mean"]) / signature["spread"]).astype(np.float32)
