"""Failure 21: what a candidate needs beside the champion, compared with what is free on this machine now, and said.

`pipelines.preflight` asks whether the recipe could ever fit the machine; here the machine is looked at as it is, with
whatever else runs on it. A rollout that would take memory that is not there is refused before anything is started.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import PolicyRefusal
from components.core.recipe import Recipe
from components.models.spec import spec_for
from components.planner.preflight import SERVERS, server_gib

CGROUP_USE = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
GIB = 2.0**30
GPU_FREE_SHARE = 0.4  # of one GPU's memory, which vLLM takes for an arm


@dataclass(frozen=True)
class Room:
    """What is free: memory in GiB, cores that this process may use, GPUs with the free share of their memory each."""

    memory_gib: float
    cores: int
    gpus: tuple[float, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """What the servers of a rollout need: how many at once, the memory and GPUs of all of them."""

    servers: int
    memory_gib: float
    gpus: int


def free_room(gpus: int = 0) -> Room:
    """Look at this machine now; `gpus`: how many the engine would use."""
    import psutil

    free = [float(psutil.virtual_memory().available)]
    for limit, used, stat in CGROUP_USE:
        if (most := _number(limit)) is not None and (now := _number(used)) is not None:
            free.append(most - now + _reclaimable(stat))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Room(min(free) / GIB, cores, _gpu_shares() if gpus else ())


def wanted(recipe: Recipe, engine: str, gpus: int = 0) -> Wanted:
    """What a rollout of this recipe needs at once; one server at a time with `recreate`.

    Memory is what the servers will be seen to hold, not what they reserve: pages of a cache that nobody fills cost
    nothing, and a rollout that would go through is not refused.
    """
    servers = 1 if recipe.rollout.strategy == "recreate" else SERVERS
    sized = spec_for(recipe.model.family).preparation.sized(recipe)
    memory = 0.0 if gpus else server_gib(sized, engine) * servers
    return Wanted(servers, memory, servers if gpus else 0)


def compare(need: Wanted, room: Room) -> tuple[list[str], list[str]]:
    """What is lacking, and what is tight but no reason to refuse; each a few words."""
    lacking, tight = [], []
    if need.memory_gib > room.memory_gib:
        lacking.append(f"{need.memory_gib:.1f} GiB of memory, free are {room.memory_gib:.1f}")
    if need.servers > room.cores:
        tight.append(f"{need.servers} servers share {room.cores} core: both arms slow each other down")
    if need.gpus:
        usable = sum(int(share / GPU_FREE_SHARE) if len(room.gpus) == 1 else share > 0.9 for share in room.gpus)
        if usable < need.gpus:
            lacking.append(f"{need.gpus} free GPUs, there is room on {usable} of {len(room.gpus)}")
    return lacking, tight


def check_room(recipe: Recipe, engine: str, gpus: int = 0, room: Room | None = None) -> str:
    """One line that says what the rollout needs and what is free.

    Args:
        room: what is free; looked up where absent.

    Raises:
        PolicyRefusal: it is not there; the message names the alternative and its downtime.
    """
    need, free = wanted(recipe, engine, gpus), room or free_room(gpus)
    lacking, tight = compare(need, free)
    what = f"{need.servers} {engine} server{'s' if need.servers > 1 else ''}"
    if lacking:
        other = "end what else runs here"
        if recipe.rollout.strategy == "canary":
            other += ', or set rollout.strategy to "recreate": one server at a time, nobody is answered while it starts'
        raise PolicyRefusal(f"recipe {recipe.name}: the rollout needs {'; '.join(lacking)} ({what} at once); {other}")
    memory = f"{need.memory_gib:.1f} of {free.memory_gib:.1f} GiB free memory"
    use = f"{need.gpus} of {len(free.gpus)} GPUs" if need.gpus else memory
    said = f"room for {what}: {use}, {free.cores} cores"
    return "; ".join([said, *tight])


def _number(name: str) -> float | None:
    try:
        text = Path(name).read_text().strip()
    except OSError:
        return None
    return float(text) if text.isdigit() and float(text) < 2**60 else None


def _reclaimable(name: str) -> float:
    """File pages that the kernel gives back when somebody asks."""
    try:
        lines = Path(name).read_text().splitlines()
    except OSError:
        return 0.0
    found = dict(line.split(" ", 1) for line in lines if " " in line)
    return float(found.get("inactive_file", 0)) + float(found.get("active_file", 0))


def _gpu_shares() -> tuple[float, ...]:
    """Free share of each GPU's memory, from the driver's own tool; none where it does not answer."""
    ask = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    pairs = [[float(part) for part in line.split(",")] for line in told.splitlines() if line.strip()]
    return tuple(free / total for free, total in pairs if total)
