"""Where ranks run: one small interface, and what is asked of whoever implements it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.core.errors import UserError
from components.core.recipe import Recipe, Resources
from components.training.backends.pools import Pool, pool_for

WORKER = "components.training.worker"
SOURCE_ROOT = Path(__file__).resolve().parents[3]
Watch = Callable[[int], None]
QUEUED = -1  # for `watch`: the job waits for nodes, so no rank can make progress


@dataclass(frozen=True)
class Launch:
    """One training job as a back-end sees it; the ranks need nothing but `job_file`."""

    key: str
    job_file: Path
    recipe: Recipe
    log: Path

    @property
    def name(self) -> str:
        """Names the job on its cluster: the same training has the same name wherever it is started from."""
        return job_name(self.key)

    @property
    def folder(self) -> Path:
        """The job's folder, seen by launcher and ranks alike."""
        return self.job_file.parent

    @property
    def is_exported(self) -> bool:
        """Whether the ranks have published the finished model."""
        return (self.folder / "final").is_dir()


@dataclass(frozen=True)
class Ended:
    """How an attempt ended: 0 for well, else why as far as the back-end knows (ranks leave their own words)."""

    status: int
    reason: str = ""


class Backend(Protocol):
    """Starts the ranks of a job somewhere and follows them."""

    @property
    def name(self) -> str:
        """As in training.backend."""

    def submit(self, launch: Launch) -> str:
        """Start the job, or find it where it runs already; returns what the back-end calls it.

        A job that failed is replaced: asking again is a new attempt. UserError where the back-end refuses the job,
        TransientError where it cannot be reached.
        """

    def wait(self, launch: Launch, seconds: float, watch: Watch) -> Ended:
        """Wait until the job has ended; TransientError when `seconds` are over.

        `watch` is called several times a second with the process id of the ranks' launcher, 0 where it is elsewhere,
        QUEUED where the job waits for nodes.
        A job on a cluster goes on when the waiting ends or this process dies: `submit` finds it again.
        """

    def logs(self, launch: Launch) -> str:
        """The last lines that the ranks wrote."""

    def cancel(self, launch: Launch) -> None:
        """End the job, and return when nothing of it runs any more."""

    def result(self, launch: Launch) -> Ended | None:
        """How the job ended; None while it waits or runs, or where there is none."""


def backend_for(recipe: Recipe) -> Backend:
    """The back-end that training.backend names.

    Raises:
        UserError: it cannot honour an option of [resources]; the line names the one that can.
    """
    placement(recipe)
    if recipe.training.backend == "trainjob":
        from components.training.backends.trainjob import TrainJobBackend

        return TrainJobBackend()
    if recipe.training.backend == "slurm":
        from components.training.backends.slurm import SlurmBackend

        return SlurmBackend()
    from components.training.backends.local import LocalBackend

    return LocalBackend()


def attempt(backend: Backend, launch: Launch, seconds: float, watch: Watch) -> Ended:
    """Submit and wait."""
    backend.submit(launch)
    return backend.wait(launch, seconds, watch)


@dataclass(frozen=True)
class Placement:
    """What a recipe asks of a cluster, with the pool's settings where the recipe is silent."""

    pool: Pool
    nodes: int
    ranks_per_node: int
    gpus_per_node: int  # 0 on CPUs
    queue: str
    priority: str
    topology: str  # empty: no request

    @property
    def cpus_per_node(self) -> int:
        """CPU cores of a node's ranks together."""
        return self.pool.cpu_per_gpu * self._units

    @property
    def memory_gib(self) -> int:
        """Host memory of a node's ranks together, without shared memory."""
        return self.pool.host_memory_gib_per_gpu * self._units

    @property
    def shm_gib(self) -> int:
        """Memory-backed /dev/shm of a node."""
        return self.pool.shm_gib_per_gpu * self._units

    @property
    def _units(self) -> int:
        return self.gpus_per_node or self.ranks_per_node


def placement(recipe: Recipe) -> Placement:
    """Where the recipe's ranks go. UserError where ranks, nodes and GPUs do not fit together or the back-end."""
    found = place(recipe.resources, recipe.training.ranks)
    _refuse_unfit(recipe)
    return found


def place(resources: Resources, ranks: int) -> Placement:
    """The placement of so many ranks, whatever the back-end; UserError as in `placement`."""
    pool, nodes = pool_for(resources), resources.nodes
    if ranks % nodes:
        raise UserError(f"training.ranks {ranks} cannot be spread evenly over resources.nodes {nodes}; change one")
    per_node = ranks // nodes
    gpus = (resources.gpus or per_node) if pool.has_gpus else 0
    if pool.has_gpus and gpus > pool.gpus_per_node:
        raise UserError(
            f"{gpus} GPUs on a node: those of pool {pool.name} have {pool.gpus_per_node}; raise resources.nodes"
        )
    if pool.has_gpus and per_node > gpus:
        raise UserError(
            f"{per_node} ranks share {gpus} GPUs of a node: NCCL wants a GPU a rank; raise resources.gpus or .nodes, "
            "or lower training.ranks"
        )
    if resources.gpus and not pool.has_gpus:
        raise UserError(f"resources.gpus {resources.gpus}: pool {pool.name} has none; name another accelerator")
    topology = resources.topology or (pool.topology if nodes > 1 else "")
    return Placement(
        pool, nodes, per_node, gpus, resources.queue or pool.queue, resources.priority or pool.priority, topology
    )


def _refuse_unfit(recipe: Recipe) -> None:
    """An option that would be ignored is refused: a person who sets it counts on it."""
    backend, asked = recipe.training.backend, recipe.resources
    if backend == "local" and asked.nodes > 1:
        raise UserError(
            f"resources.nodes {asked.nodes}: the back-end local runs on one machine; set training.backend to "
            "trainjob or slurm"
        )
    if backend != "trainjob":
        for name in ("topology", "image", "namespace"):
            if value := getattr(asked, name):
                raise UserError(
                    f"resources.{name} {value!r}: the back-end {backend} cannot honour it; trainjob can "
                    "(training.backend), or remove it"
                )


def job_name(key: str) -> str:
    """The name of a training key's job: a DNS label, and short enough for the pods that get theirs from it."""
    return f"pilotline-{key[:20]}"


def rank_environment(where: Placement, one_machine: bool = True) -> dict[str, str]:
    """What every rank gets, on any back-end: one thread a rank, no downloads, and its accelerator.

    Args:
        where: the pool's NCCL settings come from here.
        one_machine: the ranks talk over loopback.
    """
    found = {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
        "DS_ACCELERATOR": "cuda" if where.gpus_per_node else "cpu",
    }
    if not where.gpus_per_node:
        found["CUDA_VISIBLE_DEVICES"] = ""
    if one_machine:
        found["GLOO_SOCKET_IFNAME"] = "lo"
    return found | where.pool.env


def importable() -> str:
    """PYTHONPATH under which this source tree is found."""
    return os.pathsep.join(part for part in (str(SOURCE_ROOT), os.environ.get("PYTHONPATH", "")) if part)


def quoted(words: list[str]) -> str:
    """A command as one line of shell."""
    return shlex.join(words)
