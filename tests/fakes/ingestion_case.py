"""Recipes and small sources for the tests of ingestion and contract."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.core.paths import PROJECT_ROOT
from components.core.recipe import Recipe, load_recipe, parse_recipe

HEADER = ("id", "day", "text")
ROWS = (("1", "2025-01-02", "one"), ("2", "2025-01-01", 'two "quoted",\nlines'), ("3", "2025-02-01", "None"))


def recipe_for(uri: str | Path, contract: str | Path = "unused.yaml", **source: Any) -> Recipe:
    """A recipe whose source is `uri` with columns id, day, text."""
    about = {"uri": str(uri), "time_column": "day", "time_formats": ["%Y-%m-%d"], "key": ["id"], **source}
    return parse_recipe(
        {
            "name": "case",
            "source": about,
            "contract": {"path": str(contract)},
            "features": {"repo": "r", "service": "s", "entities": {}, "model_inputs": []},
            "model": {"name": "m", "label_column": "text", "positive_values": ["one"]},
        }
    )


def complaints_recipe(uri: str | Path, **source: Any) -> Recipe:
    """The laptop recipe on another source."""
    values = [f"source.uri={uri}", *(f"source.{key}={value}" for key, value in source.items())]
    return load_recipe(PROJECT_ROOT / "pipelines" / "recipes" / "laptop.toml", values)


def write_csv(
    path: Path, rows: Sequence[Sequence[str]] = ROWS, header: Sequence[str] = HEADER, encoding: str = "utf-8"
) -> Path:
    """A CSV file as the standard library writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as stream:
        csv.writer(stream).writerows([header, *rows])
    return path
