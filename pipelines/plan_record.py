"""What the planner predicted for a run on this machine, kept before it starts, and what was measured, beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.errors import PilotlineError
from components.core.home import Home
from components.core.publish import write_atomic
from components.core.recipe import Recipe, parse_recipe
from components.core.steps import read_record
from components.planner.calibration import Machine, Measurement, calibrate, cpu_run, predict_ranks
from components.planner.preflight import architecture_of, server_gib, tokens_per_row

if TYPE_CHECKING:
    from components.planner.training_run import TrainingRun

PLAN = "plan"  # records/plan.json
SERVER_MEMORY = "serving_memory"  # records/serving_memory.json, written while servers run
MACHINE = "machine.json"


def keep_prediction(home: Home, run_id: str, recipe: Recipe, engine: str) -> None:
    """Write the prediction of a run into its folder; one that is there is kept, for it was made before."""
    if not _kept(home, run_id):
        _write(home, run_id, prediction(recipe, engine, Machine.read(home.root / MACHINE)))


def keep_measurement(home: Home, run_id: str, recipe: Recipe) -> None:
    """Write what was measured beside the prediction; a run that left none gets its prediction now."""
    rollout = read_record(home, run_id, "rollout") or {}
    keep_prediction(home, run_id, recipe, str(rollout.get("engine", "")).split(" ", maxsplit=1)[0] or "reference")
    kept = _kept(home, run_id)
    metrics = (read_record(home, run_id, "train") or {}).get("metrics", {})
    served = read_record(home, run_id, SERVER_MEMORY) or {}
    seen = {"measured_peak_gib": metrics.get("peak_rank_gib")}
    seen["measured_tokens_per_second"] = metrics.get("tokens_per_second")
    kept["training"] = {**kept["training"], **seen}
    kept["serving"] = {**kept["serving"], "measured_peak_gib": served.get("peak_gib")}
    _write(home, run_id, kept)


def prediction(recipe: Recipe, engine: str, machine: Machine) -> dict[str, Any]:
    """Peak and speed of training ranks and the peak of a model server, on this machine."""
    found = predict_ranks(recipe_run(recipe), machine)
    return {
        "training": {
            "predicted_peak_gib": found.peak_gib.value,
            "low_peak_gib": found.peak_gib.low,
            "high_peak_gib": found.peak_gib.high,
            "predicted_tokens_per_second": found.tokens_per_second,
        },
        "serving": {"engine": engine, "predicted_peak_gib": server_gib(recipe, engine)},
        "machine": machine.to_dict(),
    }


def recipe_run(recipe: Recipe) -> TrainingRun:
    """The recipe's training as the planner sees it here."""
    training = recipe.training
    shape = architecture_of(recipe)
    return cpu_run(shape, training.ranks, training.zero_stage, training.batch_size, tokens_per_row(recipe))


def calibrate_home(home: Home) -> tuple[Machine, int]:
    """Fit the machine's constants to the runs of a home and keep them there; also how many runs told nothing.

    Raises:
        UserError: no run has its peak and speed recorded.
    """
    measured, silent = [], 0
    for folder in sorted((home.root / "runs").glob("*")):
        if (found := _measurement(folder)) is None:
            silent += 1
        else:
            measured.append(found)
    machine = calibrate(measured)
    machine.write(home.root / MACHINE)
    return machine, silent


def _measurement(folder: Path) -> Measurement | None:
    """A run's measured training, None where it has none or its records cannot be read."""
    recipe, metrics = _table(folder / "recipe.json"), _table(folder / "records" / "train.json").get("metrics")
    if not recipe or not isinstance(metrics, dict):
        return None
    peak, speed = _above_zero(metrics.get("peak_rank_gib")), _above_zero(metrics.get("tokens_per_second"))
    if peak is None:
        return None
    try:
        run = recipe_run(parse_recipe(recipe))
    except PilotlineError:
        return None
    return Measurement(run, peak, speed)


def _above_zero(value: Any) -> float | None:
    """A measured number, None where a record holds something else."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain and 0 < value < 1e12 else None


def _kept(home: Home, run_id: str) -> dict[str, Any]:
    found = _table(home.run(run_id) / "records" / f"{PLAN}.json")
    return found if all(isinstance(found.get(name), dict) for name in ("training", "serving")) else {}


def _table(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(home: Home, run_id: str, values: Mapping[str, Any]) -> None:
    write_atomic(home.run(run_id) / "records" / f"{PLAN}.json", json.dumps(values, indent=1, sort_keys=True))
