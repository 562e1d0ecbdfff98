"""What the planner says of ranks on this machine's CPU, beside what they took."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.core.recipe import Recipe, load_recipe, parse_recipe
from components.core.records import ModelRef
from components.planner.calibration import Machine, Measurement, calibrate, cpu_run, predict_ranks
from components.planner.preflight import architecture_of, tokens_per_row
from components.planner.training_run import TrainingRun
from components.training.train import train
from pipelines.recipes import locate
from tests.fakes.training_case import publish_training_set, tiny_recipe


def laptop_sized() -> Recipe:
    """The tiny project with the laptop recipe's network and batch, for a few steps."""
    laptop = load_recipe(locate("laptop"))
    values = tiny_recipe().model_dump(mode="json")
    sizes = ("hidden_size", "layers", "heads", "intermediate_size", "text_tokens", "max_positions", "vocabulary")
    values["model"] |= {name: getattr(laptop.model, name) for name in sizes}
    values["training"] |= {"batch_size": laptop.training.batch_size, "ranks": laptop.training.ranks}
    return parse_recipe(values)


def run_of(recipe: Recipe) -> TrainingRun:
    """The run that the recipe's ranks are."""
    t = recipe.training
    return cpu_run(architecture_of(recipe), t.ranks, t.zero_stage, t.batch_size, tokens_per_row(recipe))


@pytest.mark.slow
def test_a_rank_of_the_laptop_recipes_size_takes_what_is_predicted(tmp_path: Path) -> None:
    """Within 15 % before any calibration, and the speed is told after it."""
    recipe = laptop_sized()
    source = publish_training_set(tmp_path / "set")
    model: ModelRef = train(recipe, source, tmp_path / "out", tmp_path / "ckpt", None, "r", tmp_path / "log")
    peak, speed = model.metrics["peak_rank_gib"], model.metrics["tokens_per_second"]
    run = run_of(recipe)
    assert predict_ranks(run).peak_gib.value == pytest.approx(peak, rel=0.15)
    machine: Machine = calibrate([Measurement(run, peak, speed)])
    again = predict_ranks(run, machine)
    assert again.peak_gib.value == pytest.approx(peak, rel=1e-3)
    assert again.tokens_per_second == pytest.approx(speed, rel=1e-3)
