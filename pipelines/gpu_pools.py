"""Cluster settings by profile: where a step runs and what it may use, never what it computes.

`laptop` adds nothing. `gpu-pool` gives every step requests, a timeout, retries, the shared home and the secrets it
needs, and puts the steps that want GPUs on a pool: node selector, toleration, accelerator, memory-backed /dev/shm and
Kueue's queue label. Pools and needs are the tables below; a new pool is a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from components.core.errors import UserError
from components.core.recipe import Resources

if TYPE_CHECKING:
    from kfp import dsl

PROFILES = ("laptop", "gpu-pool")
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
HOME_CLAIM = "pilotline-home"
HOME_MOUNT = "/pilotline"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point in the pod, no file of ours


@dataclass(frozen=True)
class Pool:
    """Nodes with one kind of GPU, found by the labels of NVIDIA's GPU feature discovery."""

    accelerator: str
    product: str
    memory_gib: int
    cpu_per_gpu: int
    host_memory_gib_per_gpu: int
    shm_gib_per_gpu: int
    resource: str = "nvidia.com/gpu"
    product_label: str = "nvidia.com/gpu.product"
    taint: str = "nvidia.com/gpu"


POOLS: Mapping[str, Pool] = MappingProxyType(
    {
        "a100": Pool("a100", "NVIDIA-A100-SXM4-80GB", 80, 12, 120, 16),
        "h100": Pool("h100", "NVIDIA-H100-80GB-HBM3", 80, 16, 200, 32),
        "h200": Pool("h200", "NVIDIA-H200", 141, 16, 240, 32),
        "l4": Pool("l4", "NVIDIA-L4", 24, 8, 48, 8),
    }
)
DEFAULT_POOL = "a100"
DEFAULT_GPUS = 1
DEFAULT_QUEUE = "pilotline"


@dataclass(frozen=True)
class Secret:
    """A Kubernetes Secret whose keys become environment variables; values never enter a compiled file."""

    name: str
    keys: Mapping[str, str]
    optional: bool = False


SOURCE = Secret("pilotline-source", {"access-key": "AWS_ACCESS_KEY_ID", "secret-key": "AWS_SECRET_ACCESS_KEY"}, True)
TRACKING = Secret("pilotline-tracking", {"mlflow-uri": "PILOTLINE_MLFLOW_URI"}, True)
LEDGER = Secret("pilotline-ledger", {"ledger-url": "PILOTLINE_LEDGER_URL"}, True)


@dataclass(frozen=True)
class Needs:
    """What one step asks of a cluster; `gpu` steps take the recipe's number of GPUs from the pool."""

    cpu: str = "1"
    memory: str = "2Gi"
    timeout_minutes: int = 30
    retries: int = 1
    gpu: bool = False
    secrets: tuple[Secret, ...] = field(default=())


NEEDS: Mapping[str, Needs] = MappingProxyType(
    {
        "ingest": Needs("2", "8Gi", 60, 3, secrets=(SOURCE,)),
        "validate": Needs("2", "8Gi", 60, 1),
        "featurise": Needs("4", "16Gi", 120, 2),
        "guard": Needs("2", "8Gi", 60, 1),
        "train": Needs(timeout_minutes=24 * 60, retries=2, gpu=True, secrets=(TRACKING,)),
        "evaluate": Needs("4", "16Gi", 120, 1, secrets=(TRACKING,)),
        "register": Needs("1", "4Gi", 30, 2, secrets=(TRACKING, LEDGER)),
        "rollout": Needs("4", "16Gi", 240, 1, secrets=(TRACKING, LEDGER)),
        "promote": Needs("1", "2Gi", 15, 2, secrets=(TRACKING, LEDGER)),
        "finish": Needs("1", "2Gi", 15, 2, secrets=(TRACKING, LEDGER)),
    }
)
BACKOFF = MappingProxyType({"backoff_duration": "30s", "backoff_factor": 2.0, "backoff_max_duration": "600s"})


def apply_profile(task: dsl.PipelineTask, step_name: str, profile: str, resources: Resources | None = None) -> None:
    """Set a task's platform settings for a profile.

    Args:
        task: the task inside a pipeline function.
        step_name: name of the step, a key of `NEEDS`; unknown names get the smallest needs and no secret.
        profile: laptop or gpu-pool.
        resources: the recipe's [resources]; empty fields take the defaults above.

    Raises:
        UserError: no such profile or pool.
    """
    if profile not in PROFILES:
        raise UserError(f"profile {profile!r}: not one of {', '.join(PROFILES)}; choose with --profile")
    if profile == "laptop":
        return
    chosen = resources or Resources()
    needs = NEEDS.get(step_name, Needs())
    _schedule(task, needs)
    _mount_home(task)
    for secret in needs.secrets:
        _expose(task, secret)
    if needs.gpu:
        place_on_pool(task, pool_for(chosen), chosen.gpus or DEFAULT_GPUS, chosen.queue or DEFAULT_QUEUE)
    else:
        task.set_cpu_request(needs.cpu).set_memory_request(needs.memory).set_memory_limit(needs.memory)


def pool_for(resources: Resources) -> Pool:
    """The pool that the recipe names, else the default one."""
    return POOLS[resources.accelerator or DEFAULT_POOL]


def place_on_pool(task: dsl.PipelineTask, pool: Pool, gpus: int, queue: str) -> None:
    """Put a task on a GPU pool: selector, toleration, accelerator, shared memory, queue, requests.

    /dev/shm counts against the container's memory limit, so the limit carries it on top of the request.
    """
    from kfp import kubernetes

    kubernetes.add_node_selector(task, pool.product_label, pool.product)
    kubernetes.add_toleration(task, key=pool.taint, operator="Exists", effect="NoSchedule")
    shm_gib = pool.shm_gib_per_gpu * gpus
    kubernetes.empty_dir_mount(task, "shm", SHARED_MEMORY, medium="Memory", size_limit=f"{shm_gib}Gi")
    kubernetes.add_pod_label(task, QUEUE_LABEL, queue)
    task.set_accelerator_type(pool.resource).set_accelerator_limit(gpus)
    host_gib = pool.host_memory_gib_per_gpu * gpus
    task.set_cpu_request(str(pool.cpu_per_gpu * gpus))
    task.set_memory_request(f"{host_gib}Gi").set_memory_limit(f"{host_gib + shm_gib}Gi")


def _schedule(task: dsl.PipelineTask, needs: Needs) -> None:
    from kfp import kubernetes

    kubernetes.set_timeout(task, needs.timeout_minutes * 60)
    backoff: dict[str, Any] = dict(BACKOFF)
    task.set_retry(needs.retries, **backoff)


def _mount_home(task: dsl.PipelineTask) -> None:
    """Steps of one run share records and stores through the home: a ReadWriteMany claim."""
    from kfp import kubernetes

    kubernetes.mount_pvc(task, pvc_name=HOME_CLAIM, mount_path=HOME_MOUNT)


def _expose(task: dsl.PipelineTask, secret: Secret) -> None:
    from kfp import kubernetes

    kubernetes.use_secret_as_env(task, secret.name, dict(secret.keys), optional=secret.optional)
