"""Refuse a recipe that cannot fit, before anything takes memory: this machine for a run, the pool for a cluster."""

from __future__ import annotations

from pathlib import Path

from components.core.errors import PolicyRefusal
from components.core.recipe import Recipe
from components.planner.preflight import Need, judge_memory, local_needs, serving_need

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
        _refuse(local_needs(recipe, engine), memory_gib)


def check_rollout(recipe: Recipe, engine: str, gpus: int = 0, memory_gib: float | None = None) -> None:
    """Before model servers are started on this machine; arguments and refusal as of `check_run`."""
    if not gpus:
        _refuse((serving_need(recipe, engine),), memory_gib)


def machine_memory_gib() -> float:
    """Memory that processes here may use together: the machine's, or the container's limit where that is lower."""
    import psutil

    limits = [psutil.virtual_memory().total]
    for name in CGROUP_LIMITS:
        path = Path(name)
        if path.exists() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return float(min(limits)) / 2**30


def _refuse(needs: tuple[Need, ...], memory_gib: float | None) -> None:
    found = judge_memory(needs, machine_memory_gib() if memory_gib is None else memory_gib)
    for rule in found:
        if rule.outcome == "fail":
            raise PolicyRefusal(rule.reason)
