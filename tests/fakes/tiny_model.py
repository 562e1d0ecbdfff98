"""A real, untrained causal language model in the smallest size, exported as training exports one."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd

from components.core.publish import publishing
from components.core.recipe import Recipe
from components.core.records import ModelRef, TrainingSetRef
from components.models.calibration import Calibration
from components.models.files import model_digest
from tests.fakes.judged import model_ref


def publish_tiny_model(folder: Path, recipe: Recipe, training_set: Path, run: str = "") -> ModelRef:
    """A published model folder with random weights from the recipe's seed."""
    from components.models.causal_lm.prepare import prepare
    from components.models.causal_lm.task import Task

    rows = TrainingSetRef.read(training_set)
    train, validation = (pd.read_parquet(training_set / f"{name}.parquet") for name in ("train", "validation"))
    with tempfile.TemporaryDirectory() as scratch:
        prepare(recipe, rows, train, validation, Path(scratch))
        task = Task(recipe, Path(scratch))
        with publishing(folder) as staging:
            (staging / "model").mkdir()
            task.export(task.network(), Calibration(1.0, -1.0), staging / "model")
            ref = replace(model_ref(model_digest(staging / "model"), rows, run), recipe_digest=recipe.digest)
            ref.write(staging)
    return ref
