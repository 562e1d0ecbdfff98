"""Refuse a recipe that cannot fit, before anything takes memory: this machine for a run, the pool for a cluster."""

from __future__ import annotations

import math
from pathlib import Path

from components.core.errors import PolicyRefusal
from components.core.recipe import Recipe, Training
from components.models.spec import spec_for
from components.planner.preflight import Need, judge_memory, local_needs, serving_need, training_of

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_run(recipe: Recipe, engine: str, gpus: int = 0, memory_gib: float | None = None) -> None:
    """Before a run on this machine: PolicyRefusal, in one line, where training or serving cannot fit its memory.

    Args:
        recipe: what will run.
        engine: vllm or reference.
        gpus: GPUs of this machine; with any, models lie there and the machine's own memory does not decide.
        memory_gib: of the machine; measured where absent.
    """
    if not gpus:
        _refuse(local_needs(_sized(recipe), engine), memory_gib)


def check_rollout(recipe: Recipe, engine: str, gpus: int = 0, memory_gib: float | None = None) -> None:
    """Before model servers are started on this machine; arguments and refusal as of `check_run`."""
    if not gpus:
        _refuse((serving_need(_sized(recipe), engine),), memory_gib)


def check_pool(recipe: Recipe) -> None:
    """Before a file for a GPU pool is compiled: PolicyRefusal where training cannot fit the pool's GPUs."""
    from components.planner.training import plan_training, request_from
    from components.training.backends.launch import place
    from pipelines.gpu_pools import on_pool

    where = place(on_pool(recipe.resources), recipe.training.ranks)
    if not where.gpus_per_node:
        return
    pool, gpus = where.pool, recipe.training.ranks  # a GPU a rank
    asked = {name: value for name, value in training_of(_sized(recipe)).items() if name != "global_batch"} | {
        "gpus": gpus,
        **({"gpu": pool.planner_gpu} if pool.planner_gpu else {"gpu_memory_gib": pool.memory_gib}),
        "micro_batch": math.ceil(recipe.training.batch_size / recipe.training.accumulation / gpus),
        "accumulation": 1,
        "strategy": "single" if gpus == 1 else ("ddp", "zero1", "zero2", "zero3")[recipe.training.zero_stage],
        "offload": _offload(recipe.training),
        "tp": 1,
        "pp": 1,
        "checkpointing": "full" if recipe.training.activation_checkpointing else "none",
        **({"method": "lora", "lora_rank": recipe.training.lora_rank} if recipe.training.tuning == "lora" else {}),
    }
    plan = plan_training(request_from(asked))
    if not plan.feasible:
        raise PolicyRefusal(
            f"recipe {recipe.name}: training needs {plan.predicted_peak_gib:.0f} GiB a GPU, pool {pool.name} "
            f"has {plan.usable_gib:.0f} ({gpus} GPUs, {plan.strategy}); raise resources.gpus, choose another "
            "resources.accelerator, or take a smaller model or batch"
        )


def machine_memory_gib() -> float:
    """Memory that processes here may use together: the machine's, or the container's limit where that is lower."""
    import psutil

    limits = [psutil.virtual_memory().total]
    for name in CGROUP_LIMITS:
        path = Path(name)
        if path.exists() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return float(min(limits)) / 2**30


def _offload(training: Training) -> str:
    if training.offload_parameters != "none":
        return "all"
    return "none" if training.offload_optimizer == "none" else "optimizer"


def _sized(recipe: Recipe) -> Recipe:
    """The recipe with the sizes of its initial model; UserError where there is no such model or family."""
    return spec_for(recipe.model.family).preparation.sized(recipe)


def _refuse(needs: tuple[Need, ...], memory_gib: float | None) -> None:
    found = judge_memory(needs, machine_memory_gib() if memory_gib is None else memory_gib)
    for rule in found:
        if rule.outcome == "fail":
            raise PolicyRefusal(rule.reason)
