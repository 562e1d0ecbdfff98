"""Training jobs seen from outside a run: the file that a back-end would submit, and a running job's state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.home import Home
from components.core.recipe import Recipe, parse_recipe
from components.training.backends.launch import Backend, Launch, backend_for, placement

DRAFT_KEY = "0" * 64  # names the job where no training set is given


def render(recipe: Recipe, backend: str = "", training_set: str = "", root: Path | None = None) -> tuple[Launch, str]:
    """The TrainJob as YAML, or the sbatch script: what `pilotline run` would submit for this recipe.

    Args:
        recipe: [training] and [resources] are read.
        backend: trainjob or slurm; empty takes the recipe's.
        training_set: a published folder, which with recipe and code names the job; empty gives a draft.
        root: the home as the nodes see it; by default where the pool mounts the shared volume.

    Raises:
        UserError: the back-end has no file, or cannot honour an option.
    """
    chosen = with_backend(recipe, backend)
    launch = launch_of(chosen, training_set, root or Path(placement(chosen).pool.volume.mount))
    return launch, _RENDERED[chosen.training.backend](launch)


def with_backend(recipe: Recipe, backend: str) -> Recipe:
    """The recipe for another back-end; checked again as a whole."""
    if not backend or backend == recipe.training.backend:
        return recipe
    values = recipe.model_dump(mode="json")
    values["training"]["backend"] = backend
    return parse_recipe(values)


def launch_of(recipe: Recipe, training_set: str, root: Path) -> Launch:
    """The launch that `pilotline step train` makes of this recipe and training set in the home `root`."""
    from components.core.records import TrainingSetRef
    from components.training.job import training_key
    from pipelines.code_version import code_version

    key = DRAFT_KEY
    if training_set:
        if not Path(training_set).is_dir():
            raise UserError(
                f"--training-set {training_set}: no such folder; name one that the step featurise published"
            )
        key = training_key(recipe, TrainingSetRef.read(Path(training_set)), code_version(recipe))
    folder = root / "checkpoints" / key[:32]
    return Launch(key, folder / "job.json", recipe, folder / "train.log")


def state(recipe: Recipe, home: Home, training_set: str) -> dict[str, Any]:
    """Where a recipe's training stands: {"name", "backend", "state": "exported", "ended", "none or going on"}."""
    backend, launch = _found(recipe, home, training_set)
    ended = backend.result(launch)
    told = "exported" if launch.is_exported else "ended" if ended else "none or going on"
    reason = ended.reason if ended and ended.status else ""
    return {"name": launch.name, "backend": backend.name, "state": told, "reason": reason, "folder": str(launch.folder)}


def logs(recipe: Recipe, home: Home, training_set: str) -> dict[str, Any]:
    """The last lines of a recipe's training: {"name", "backend", "text"}."""
    backend, launch = _found(recipe, home, training_set)
    return {"name": launch.name, "backend": backend.name, "text": backend.logs(launch)}


def cancel(recipe: Recipe, home: Home, training_set: str) -> dict[str, Any]:
    """End a recipe's training on its cluster; its checkpoints stay: {"name", "backend"}."""
    backend, launch = _found(recipe, home, training_set)
    backend.cancel(launch)
    return {"name": launch.name, "backend": backend.name}


def _found(recipe: Recipe, home: Home, training_set: str) -> tuple[Backend, Launch]:
    if recipe.training.backend == "local":
        raise UserError(
            "training.backend 'local': its ranks live and end with the command that started them; jobs of trainjob and "
            "slurm can be asked for (--set training.backend=...)"
        )
    return backend_for(recipe), launch_of(recipe, training_set, home.root)


def _trainjob(launch: Launch) -> str:
    import yaml

    from components.training.backends.trainjob_spec import trainjob

    return str(yaml.safe_dump(trainjob(launch), sort_keys=False))


def _slurm(launch: Launch) -> str:
    from components.training.backends.slurm_script import batch_script

    return batch_script(launch)


def _local(_: Launch) -> str:
    raise UserError("training.backend 'local': starts processes, there is no file; use --backend trainjob or slurm")


_RENDERED: dict[str, Callable[[Launch], str]] = {"trainjob": _trainjob, "slurm": _slurm, "local": _local}
