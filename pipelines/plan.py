"""What `pilotline plan` does: from flags to a plan, its JSON and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from components.core.errors import UserError

if TYPE_CHECKING:
    from components.core.home import Home
    from components.core.recipe import Recipe

OTHER_MODELS = ("model", "config", "params", "weights_gb")


@dataclass(frozen=True)
class Planned:
    """A plan for the command: plain values for --json, text for a person."""

    feasible: bool
    values: dict[str, Any]
    text: str
    plan: Any = None


def serve(given: Mapping[str, Any], recipe: str | None = None) -> Planned:
    """Plan serving; with a recipe, its model.

    Raises:
        UserError: bad input, in one line.
    """
    from components.planner.serving import plan_serving
    from components.planner.serving_request import request_from
    from components.planner.serving_vllm import vllm_arguments, vllm_command
    from pipelines.plan_serve_text import serve_text

    _one_model(given, recipe)
    request = request_from({**_recipe_serving(recipe), **given})
    plan = plan_serving(request)
    command = vllm_command(plan, request) if plan.feasible else ""
    arguments = vllm_arguments(plan, request) if plan.feasible else []
    values = plan.to_dict() | {"vllm_arguments": arguments, "vllm_command": command}
    return Planned(plan.feasible, values, serve_text(plan, request, command))


def train(given: Mapping[str, Any], recipe: str | None = None) -> Planned:
    """Plan training; with a recipe, its model, its batch and its longest row.

    Raises:
        UserError: bad input, in one line.
    """
    from components.planner.training import plan_training, request_from
    from pipelines.plan_train_text import train_text

    _one_model(given, recipe)
    plan = plan_training(request_from({**_recipe_training(recipe), **given}))
    values = plan.to_dict()
    return Planned(plan.feasible, values, train_text(values), plan)


def calibrate(home: Home) -> Planned:
    """Fit the constants of this machine to the runs of the home; UserError where none was measured."""
    from pipelines.plan_record import MACHINE, calibrate_home

    machine, silent = calibrate_home(home)
    lines = [
        f"{machine.runs} run{'s' * (machine.runs > 1)} measured, {silent} without a measurement",
        f"a rank takes {machine.process_gib:.2f} GiB before its model, tensors weigh {machine.memory_factor:.2f} times",
    ]
    if machine.flops_per_second is not None:
        lines.append(f"a rank computes {machine.flops_per_second / 1e9:.1f} GFLOP/s")
    lines.append(f"kept in {home.root / MACHINE}; the next run is predicted with it")
    values = machine.to_dict() | {"file": str(home.root / MACHINE), "runs_without_measurement": silent}
    return Planned(True, values, "\n".join(lines))


def deepspeed(planned: Planned) -> dict[str, Any]:
    """The DeepSpeed configuration of a feasible training plan; UserError where it cuts the model."""
    from components.planner.training_deepspeed import deepspeed_config

    return deepspeed_config(planned.plan)


def _recipe_training(name: str | None) -> dict[str, Any]:
    """A recipe's model and batch as a training plan asks for them, {} without one."""
    from components.planner.preflight import training_of

    return {} if name is None else training_of(_recipe(name))


def _recipe_serving(name: str | None) -> dict[str, Any]:
    """A recipe's model and the format of its weights as a serving plan asks for them, {} without one."""
    from components.planner.preflight import serving_of

    return {} if name is None else serving_of(_recipe(name))


def _recipe(name: str) -> Recipe:
    from components.core.recipe import load_recipe
    from pipelines.recipes import locate

    return load_recipe(locate(name))


def _one_model(given: Mapping[str, Any], recipe: str | None) -> None:
    """UserError where a recipe and another model are asked for together."""
    if recipe is not None and (other := next((name for name in OTHER_MODELS if name in given), None)):
        raise UserError(f"plan: give recipe or {other}, not both: the recipe has its own model")
