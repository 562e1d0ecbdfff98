"""A training job as a Kubeflow Trainer TrainJob: a pure function of the launch, built with the SDK's API models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.core.errors import IntegrityError
from components.core.image import IMAGE
from components.training.backends.launch import WORKER, Launch, Placement, placement, rank_environment

API_VERSION = "trainer.kubeflow.org/v1alpha1"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-preferred-topology"
KEY_ANNOTATION = "pilotline/training-key"
MANAGER = "pilotline/training"  # who owns the patch of the runtime
NODE = "node"  # the replicated job and its container, as the trainer's own runtimes name them
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point in the pod, no file of ours


def trainjob(launch: Launch) -> dict[str, Any]:
    """The TrainJob as plain values, in the order of the API's fields.

    torchrun takes nodes, ranks per node and the rendezvous from the PET_* variables that the trainer sets.

    Raises:
        UserError: the recipe's resources do not fit together.
        IntegrityError: the API's models do not know a field that is written here.
    """
    where, asked = placement(launch.recipe), launch.recipe.resources
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {
            "name": launch.name,
            "labels": _without_empty(
                {
                    "app.kubernetes.io/part-of": "pilotline",
                    "app.kubernetes.io/component": "training",
                    QUEUE_LABEL: where.queue,
                    PRIORITY_LABEL: where.priority,
                }
            ),
            "annotations": {KEY_ANNOTATION: launch.key},
            **({"namespace": asked.namespace} if asked.namespace else {}),
        },
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": where.pool.runtime},
            "activeDeadlineSeconds": where.pool.timeout_minutes * 60,
            "trainer": {
                "image": asked.image or IMAGE,
                "command": _command(where),
                "args": [str(launch.job_file)],
                "env": _environment(where),
                "numNodes": where.nodes,
                "numProcPerNode": where.ranks_per_node,
                "resourcesPerNode": resources_per_node(where),
            },
            "runtimePatches": [
                {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [_patch(where)]}}}}
            ],
        },
    }
    return _checked(body)


def resources_per_node(where: Placement) -> dict[str, dict[str, str]]:
    """Requests and limits of a node's container.

    /dev/shm counts against the container's memory limit, so the limit carries it on top of the request.
    """
    cpu, memory, limit = str(where.cpus_per_node), f"{where.memory_gib}Gi", f"{where.memory_gib + where.shm_gib}Gi"
    gpus = {where.pool.resource: str(where.gpus_per_node)} if where.gpus_per_node else {}
    return {"limits": {"memory": limit} | gpus, "requests": {"cpu": cpu, "memory": memory} | gpus}


def _command(where: Placement) -> list[str]:
    stop = f"--shutdown-timeout={max(1, where.pool.grace_seconds - 10)}"
    return ["python", "-m", "torch.distributed.run", "--max-restarts=0", stop, "-m", WORKER]


def _environment(where: Placement) -> list[dict[str, Any]]:
    """Plain values, then secrets by reference; PET_* names are the trainer's own and refused by it."""
    plain = rank_environment(where, one_machine=where.nodes == 1)
    found: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in sorted(plain.items())]
    for secret in where.pool.secrets:
        for key, variable in sorted(secret.keys.items()):
            reference = {"name": secret.name, "key": key, "optional": secret.optional}
            found.append({"name": variable, "valueFrom": {"secretKeyRef": reference}})
    return found


def _patch(where: Placement) -> dict[str, Any]:
    """What the runtime's node pods get from the pool."""
    pool = where.pool
    spec: dict[str, Any] = {
        "nodeSelector": pool.node_selector,
        "tolerations": [_without_empty(one.model_dump()) for one in pool.tolerations],
        "terminationGracePeriodSeconds": pool.grace_seconds,
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": pool.volume.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{where.shm_gib}Gi"}},
        ],
        "containers": [
            {
                "name": NODE,
                "volumeMounts": [
                    {"name": "home", "mountPath": pool.volume.mount},
                    {"name": "shm", "mountPath": SHARED_MEMORY},
                ],
            }
        ],
    }
    template: dict[str, Any] = {"spec": _without_empty(spec)}
    if where.topology:
        template = {"metadata": {"annotations": {TOPOLOGY_ANNOTATION: where.topology}}} | template
    return {"name": NODE, "template": {"spec": {"template": template}}}


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", [], {}, ())}


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    """The same values after a walk through the SDK's models, which check types and know no field but the API's."""
    from kubeflow_trainer_api import models

    made = models.TrainerV1alpha1TrainJob.from_dict(body)
    if made is None or made.to_dict() != body:
        raise IntegrityError("TrainJob: the installed kubeflow-trainer-api drops fields; install the locked version")
    return body
