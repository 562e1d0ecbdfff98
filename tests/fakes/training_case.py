"""A tiny binary project for tests of models and training: two numbers and a few words decide the label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from components.core.digest import file_digest, value_digest
from components.core.publish import publishing
from components.core.recipe import Recipe, parse_recipe
from components.core.records import SplitRef, TrainingSetRef

FEATURES = ("visits", "share")
GOOD, BAD = ("bright green lamp", "warm bread"), ("broken wheel", "cold rain")
NEUTRAL = ("the road", "a stone", "we sat")


def tiny_recipe(model: dict[str, Any] | None = None, training: dict[str, Any] | None = None) -> Recipe:
    """A recipe of a network that trains in a second."""
    small = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 24, "vocabulary": 60, "text_tokens": 8}
    short = {"steps": 12, "batch_size": 8, "checks": 3, "checkpoint_every_steps": 4, "language_model_weight": 0.5}
    return parse_recipe(
        {
            "name": "tiny",
            "source": {"uri": "rows.csv", "time_column": "day", "key": ["id"]},
            "contract": {"path": "none"},
            "features": {"repo": "r", "service": "s", "entities": {"shop": "shop"}, "model_inputs": list(FEATURES)},
            "model": {
                "name": "tiny",
                "label_column": "y",
                "positive_values": ["1"],
                "feature_buckets": 4,
                "max_positions": 64,
            }
            | small
            | (model or {}),
            "training": {"token_dropout": 0.1, "text_dropout": 0.1} | short | (training or {}),
        }
    )


def rows(count: int, seed: int) -> pd.DataFrame:
    """Rows with the training set's columns; about a third are positive."""
    rng = np.random.default_rng(seed)
    share = np.where(rng.random(count) < 0.1, np.nan, rng.random(count))
    good = rng.random(count) < 0.5
    chance = 0.1 + 0.4 * np.nan_to_num(share, nan=0.3) + 0.3 * good
    words = [" ".join([*rng.choice(NEUTRAL, 2), rng.choice(GOOD if g else BAD), "for $12.50"]) for g in good]
    return pd.DataFrame(
        {
            "row_id": [f"{seed}-{i}" for i in range(count)],
            "event_timestamp": pd.date_range("2024-01-01", periods=count, freq="h", tz="UTC"),
            "label": (rng.random(count) < chance).astype("int8"),
            "text": words,
            "shop": rng.choice(["a", "b"], count),
            "visits": np.where(np.isnan(share), np.nan, rng.poisson(5, count).astype(float)),
            "share": share,
        }
    )


def publish_training_set(folder: Path, frames: dict[str, pd.DataFrame] | None = None, counts: int = 160) -> Path:
    """Publish train, validation and test splits as featurise does, and return the folder."""
    if frames is None:
        frames = {name: rows(counts // (i + 1), i) for i, name in enumerate(("train", "validation", "test"))}
    with publishing(folder) as staging:
        splits = []
        for name, frame in frames.items():
            path = staging / f"{name}.parquet"
            frame.to_parquet(path)
            times = [str(frame["event_timestamp"].agg(end)) for end in ("min", "max")] if len(frame) else ["", ""]
            splits.append(
                SplitRef(
                    name=name,
                    rows=len(frame),
                    positives=int(frame["label"].sum()),
                    digest=file_digest(path),
                    time_min=times[0],
                    time_max=times[1],
                )
            )
        TrainingSetRef(
            digest=value_digest([split.digest for split in splits]),
            snapshot_digest="0" * 64,
            clean_digest="1" * 64,
            feature_repo="r",
            feature_service="s",
            features=FEATURES,
            entities=("shop",),
            as_of="",
            embargo_days=0,
            splits=tuple(splits),
        ).write(staging)
    return folder


def prepared_model(folder: Path, recipe: Recipe | None = None) -> Path:
    """A model directory with random weights, made without training; returns it."""
    from components.models.calibration import Calibration
    from components.models.causal_lm.prepare import prepare
    from components.models.causal_lm.task import Task

    recipe = recipe or tiny_recipe()
    source = publish_training_set(folder / "set")
    prepared = folder / "prepared"
    prepared.mkdir()
    frames = [pd.read_parquet(source / f"{name}.parquet") for name in ("train", "validation")]
    prepare(recipe, TrainingSetRef.read(source), *frames, prepared)
    task = Task(recipe, prepared)
    task.export(task.network(), Calibration(0.8, -0.4), folder / "model")
    return folder / "model"
