"""Launches for the tests of back-ends: recipes by keyword, paths that lie nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from components.core.recipe import Recipe, parse_recipe
from components.training.backends.launch import Launch
from tests.fakes.training_case import tiny_recipe

KEY = "ab12" * 16
ROOT = Path("/pilotline/checkpoints")


def recipe_for(backend: str, ranks: int = 2, **resources: Any) -> Recipe:
    """The tiny recipe on a back-end, with these [resources]."""
    values = json.loads(tiny_recipe(training={"backend": backend, "ranks": ranks, "batch_size": 8 * ranks}).to_json())
    values["resources"] = resources
    return parse_recipe(values)


def launch_for(backend: str, ranks: int = 2, key: str = KEY, **resources: Any) -> Launch:
    """A launch of that recipe."""
    folder = ROOT / key[:32]
    return Launch(key, folder / "job.json", recipe_for(backend, ranks, **resources), folder / "train.log")
