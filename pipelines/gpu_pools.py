"""Cluster settings by profile: where a step runs and what it may use, never what it computes.

`laptop` adds nothing. `gpu-pool` gives every step requests, a timeout, retries, the shared home and the secrets it
needs, and puts the training step on a GPU pool: node selector, tolerations, accelerators, memory-backed /dev/shm, NCCL
settings, Kueue's queue and priority. The pools are the data in components/training/backends/pools.toml, from which a
TrainJob is made too; where training goes into a TrainJob, the step itself only waits and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from components.core.errors import UserError
from components.core.recipe import Recipe, Resources, Training
from components.training.backends.launch import Placement, place, placement
from components.training.backends.pools import DEFAULT_POOL, Pool, Secret, pool_for, pools
from components.training.backends.trainjob_spec import PRIORITY_LABEL, QUEUE_LABEL, SHARED_MEMORY, TOPOLOGY_ANNOTATION
from pipelines.cluster_placement import placement_of

if TYPE_CHECKING:
    from kfp import dsl

PROFILES = ("laptop", "gpu-pool")
SERVING_LABEL = "pilotline.dev/serving"
POOLS: Mapping[str, Pool] = MappingProxyType({name: pool for name, pool in pools().items() if pool.has_gpus})
HOME_CLAIM = POOLS[DEFAULT_POOL].volume.claim
HOME_MOUNT = POOLS[DEFAULT_POOL].volume.mount

SOURCE = Secret(
    name="pilotline-source",
    keys={"access-key": "AWS_ACCESS_KEY_ID", "secret-key": "AWS_SECRET_ACCESS_KEY"},
    optional=True,
)
TRACKING = Secret(name="pilotline-tracking", keys={"mlflow-uri": "PILOTLINE_MLFLOW_URI"}, optional=True)
LEDGER = Secret(name="pilotline-ledger", keys={"ledger-url": "PILOTLINE_LEDGER_URL"}, optional=True)


@dataclass(frozen=True)
class Needs:
    """What one step asks of a cluster; a step that trains takes time, retries and secrets from the pool instead.

    serves: it says what is served (serving.backend kubernetes); the network policy of deploy/kubernetes/serving lets
        pods with this label to the scoring service's control port. A compiled file cannot name an account for one step:
        that is the run's (`submit --service-account`), bound to the Role pilotline-rollout.
    """

    cpu: str = "1"
    memory: str = "2Gi"
    timeout_minutes: int = 30
    retries: int = 1
    trains: bool = False
    serves: bool = False
    secrets: tuple[Secret, ...] = field(default=())


NEEDS: Mapping[str, Needs] = MappingProxyType(
    {
        "ingest": Needs("2", "8Gi", 60, 3, secrets=(SOURCE,)),
        "validate": Needs("2", "8Gi", 60, 1),
        "featurise": Needs("4", "16Gi", 120, 2),
        "guard": Needs("2", "8Gi", 60, 1),
        "train": Needs("2", "8Gi", trains=True),
        "evaluate": Needs("4", "16Gi", 120, 1, secrets=(TRACKING,)),
        "register": Needs("1", "4Gi", 30, 2, secrets=(TRACKING, LEDGER)),
        "rollout": Needs("4", "16Gi", 240, 1, serves=True, secrets=(TRACKING, LEDGER)),
        "promote": Needs("1", "2Gi", 15, 2, secrets=(TRACKING, LEDGER)),
        "finish": Needs("1", "2Gi", 30, 2, serves=True, secrets=(TRACKING, LEDGER)),
    }
)


def apply_profile(
    task: dsl.PipelineTask,
    step_name: str,
    profile: str,
    resources: Resources | None = None,
    training: Training | None = None,
) -> None:
    """Set a task's platform settings for a profile.

    Args:
        task: the task inside a pipeline function.
        step_name: name of the step, a key of `NEEDS`; unknown names get the smallest needs and no secret.
        profile: laptop or gpu-pool.
        resources: the recipe's [resources]; empty fields take the pool's settings.
        training: the recipe's [training]: its ranks and its back-end; without it, as many ranks as GPUs are named.

    Raises:
        UserError: no such profile or pool, or ranks and GPUs do not fit together.
    """
    if profile not in PROFILES:
        raise UserError(f"profile {profile!r}: not one of {', '.join(PROFILES)}; choose with --profile")
    if profile == "laptop":
        return
    chosen = on_pool(resources or Resources())
    pool, needs = pool_for(chosen), NEEDS.get(step_name, Needs())
    _mount_home(task, pool)
    if needs.trains:
        _train_on(task, place(chosen, training.ranks if training else chosen.gpus or 1), needs, training)
        return
    _schedule(task, needs.timeout_minutes, needs.retries, pool)
    for secret in needs.secrets:
        _expose(task, secret)
    if needs.serves:
        _label(task, SERVING_LABEL)
    task.set_cpu_request(needs.cpu).set_memory_request(needs.memory).set_memory_limit(needs.memory)


def on_pool(resources: Resources) -> Resources:
    """The same resources on GPU nodes, whatever profile the recipe names for other occasions."""
    return resources.model_copy(update={"profile": "gpu-pool"})


def for_cluster(recipe: Recipe, profile: str) -> Recipe:
    """The recipe as a cluster's pods read it: for the profile, the pool itself in place of a file of this machine.

    Raises:
        UserError: no such pool, or a back-end that pods cannot use, or that cannot honour an option.
    """
    if profile == "laptop":
        return recipe
    if recipe.training.backend == "slurm":
        raise UserError(
            "training.backend 'slurm': a pod of Kubeflow Pipelines cannot submit to Slurm; use trainjob or local, or "
            "`pilotline run` on a login node"
        )
    chosen = on_pool(recipe.resources)
    if chosen.pools:
        pool = pool_for(chosen)
        settings = pool.model_dump(mode="json", exclude={"name"})
        chosen = chosen.model_copy(update={"accelerator": pool.name, "pools": "", "pool": settings})
    found = recipe.model_copy(update={"resources": chosen})
    placement(found)
    if found.serving.backend == "kubernetes":
        placement_of(found)
    return found


def _train_on(task: dsl.PipelineTask, where: Placement, needs: Needs, training: Training | None) -> None:
    """Put the training step on the pool, or let it wait beside a TrainJob."""
    _schedule(task, where.pool.timeout_minutes, where.pool.retries, where.pool)
    for secret in where.pool.secrets:
        _expose(task, secret)
    if training and training.backend == "trainjob":
        task.set_cpu_request(needs.cpu).set_memory_request(needs.memory).set_memory_limit(needs.memory)
    else:
        place_on_pool(task, where)


def place_on_pool(task: dsl.PipelineTask, where: Placement) -> None:
    """Put a task on a pool: selector, tolerations, accelerators, shared memory, queue, NCCL settings, requests.

    /dev/shm counts against the container's memory limit, so the limit carries it on top of the request.
    """
    from kfp import kubernetes

    pool = where.pool
    for key, value in pool.node_selector.items():
        kubernetes.add_node_selector(task, key, value)
    for one in pool.tolerations:
        kubernetes.add_toleration(task, **{name: value for name, value in one.model_dump().items() if value})
    kubernetes.empty_dir_mount(task, "shm", SHARED_MEMORY, medium="Memory", size_limit=f"{where.shm_gib}Gi")
    for label, value in ((QUEUE_LABEL, where.queue), (PRIORITY_LABEL, where.priority)):
        if value:
            kubernetes.add_pod_label(task, label, value)
    if where.topology:
        kubernetes.add_pod_annotation(task, TOPOLOGY_ANNOTATION, where.topology)
    for name, value in sorted(pool.env.items()):
        task.set_env_variable(name, value)
    if where.gpus_per_node:
        task.set_accelerator_type(pool.resource).set_accelerator_limit(where.gpus_per_node)
    task.set_cpu_request(str(where.cpus_per_node))
    task.set_memory_request(f"{where.memory_gib}Gi").set_memory_limit(f"{where.memory_gib + where.shm_gib}Gi")


def _schedule(task: dsl.PipelineTask, timeout_minutes: int, retries: int, pool: Pool) -> None:
    from kfp import kubernetes

    kubernetes.set_timeout(task, timeout_minutes * 60)
    task.set_retry(
        retries,
        backoff_duration=f"{pool.backoff_seconds}s",
        backoff_factor=pool.backoff_factor,
        backoff_max_duration=f"{pool.backoff_max_seconds}s",
    )


def _mount_home(task: dsl.PipelineTask, pool: Pool) -> None:
    """Steps of one run share records, stores and checkpoints through the home: a ReadWriteMany claim."""
    from kfp import kubernetes

    kubernetes.mount_pvc(task, pvc_name=pool.volume.claim, mount_path=pool.volume.mount)


def _label(task: dsl.PipelineTask, label: str) -> None:
    from kfp import kubernetes

    kubernetes.add_pod_label(task, label, "true")


def _expose(task: dsl.PipelineTask, secret: Secret) -> None:
    from kfp import kubernetes

    kubernetes.use_secret_as_env(task, secret.name, dict(secret.keys), optional=secret.optional)
