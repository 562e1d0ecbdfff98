"""A replica's objects in a cluster, as plain values: Deployment, Service, ConfigMap and PodDisruptionBudget."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.serving.replica import ReplicaSpec
from components.serving.vllm import KEEP_ALIVE_SECONDS

PORT = 8000
MODEL_MOUNT, PROBE_MOUNT, WORK_MOUNT, SHM_MOUNT = "/model", "/pilotline/probe", "/tmp", "/dev/shm"  # noqa: S108
PROBES = Path(__file__).with_name("probes")
DIGEST_ANNOTATION, RENDERED_ANNOTATION = "pilotline.dev/digest", "pilotline.dev/rendered"
FORGET_SECONDS = 10  # until gateways have taken an ending pod out of their endpoints
SPARE_SECONDS = 20  # for the server to end by itself after the drain
PROBE_PERIOD_SECONDS = 5
USER = 10001
QUEUE_METRIC = "vllm:num_requests_waiting"
SLOWLY_DOWN = {"scaleDown": {"stabilizationWindowSeconds": 600}}

Object = dict[str, Any]


@dataclass(frozen=True)
class Placement:
    """Where replicas run and what each gets; made from the pool that the recipe names."""

    gpus: int
    cpu: str
    memory: str
    shm: str
    resource: str = "nvidia.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class ClusterServing:
    """The cluster's side of serving, the same for every version.

    `longest_request_seconds` is the router's own limit; the grace period is longer. With `most_replicas` above
    `replicas` an autoscaler follows the requests that wait in vLLM's queue, so many a replica: `hpa` needs an adapter
    that serves Prometheus' `vllm:num_requests_waiting` as a metric of pods, `keda` asks Prometheus itself.
    """

    namespace: str
    image: str  # vLLM, by tag or better by digest
    tools_image: str  # Pilotline, for the init container
    claim: str  # ReadWriteMany claim with the home, where registered models lie
    mount: str
    placement: Placement
    longest_request_seconds: float
    replicas: int = 1
    most_replicas: int = 1
    waiting_per_replica: int = 4
    account: str = "pilotline-model"
    autoscaler: str = "hpa"
    prometheus_url: str = ""


def replica_name(spec: ReplicaSpec) -> str:
    """A DNS label of this model, version and digest alone; a long model name is cut, the hash at the end is not."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{spec.name}-v{spec.version}".lower())
    whole = hashlib.sha256(json.dumps([spec.name, spec.version, spec.digest]).encode()).hexdigest()
    return f"m-{words[:48].strip('-')}-{whole[:10]}"


def grace_seconds(cluster: ClusterServing) -> int:
    """SIGTERM to SIGKILL: longer than the routers' forgetting and the longest request together."""
    return FORGET_SECONDS + math.ceil(cluster.longest_request_seconds) + SPARE_SECONDS


def render(cluster: ClusterServing, spec: ReplicaSpec, served_names: Sequence[str], max_model_len: int,
           golden: Mapping[str, Any]) -> list[Object]:  # fmt: skip
    """The Deployment first, which owns the others once the API server gave it a uid."""
    name, labels = replica_name(spec), _labels(spec)
    scripts = {script: (PROBES / script).read_text(encoding="utf-8") for script in ("ready.py", "drain.py")}
    about = {"name": name, "namespace": cluster.namespace, "labels": labels}
    budget = {"minAvailable": 1} if cluster.replicas == 1 else {"maxUnavailable": 1}
    deployment = _deployment(cluster, spec, labels, _command(cluster, spec, served_names, max_model_len))
    ports = [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}]
    objects = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": deployment},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about,
         "data": scripts | {"golden.json": json.dumps(golden, sort_keys=True)}},
        {"apiVersion": "v1", "kind": "Service", "metadata": about,
         "spec": {"type": "ClusterIP", "selector": labels, "ports": ports}},
        # With one replica an eviction would be an outage, so it waits for people; one that is ill may always go.
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": about,
         "spec": budget | {"selector": {"matchLabels": labels}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}},
    ]  # fmt: skip
    if cluster.most_replicas > cluster.replicas:
        objects.append(_keda(cluster, about) if cluster.autoscaler == "keda" else _autoscaler(cluster, about))
    rendered = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
    about["annotations"] = {DIGEST_ANNOTATION: spec.digest, RENDERED_ANNOTATION: rendered}
    return objects


def _autoscaler(cluster: ClusterServing, about: Object) -> Object:
    """Up at once, down after ten quiet minutes: a replica takes minutes to start."""
    target = {"type": "AverageValue", "averageValue": str(cluster.waiting_per_replica)}
    waiting = {"metric": {"name": QUEUE_METRIC}, "target": target}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": about["name"]},
        "minReplicas": cluster.replicas,
        "maxReplicas": cluster.most_replicas,
        "metrics": [{"type": "Pods", "pods": waiting}],
        "behavior": SLOWLY_DOWN,
    }
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": about, "spec": spec}


def _keda(cluster: ClusterServing, about: Object) -> Object:
    """The same by KEDA, which makes the HorizontalPodAutoscaler; never to zero, that would be an outage."""
    pods = f'namespace="{cluster.namespace}",pod=~"{about["name"]}-.*"'
    trigger = {
        "type": "prometheus",
        "metadata": {
            "serverAddress": cluster.prometheus_url,
            "query": f"sum({QUEUE_METRIC}{{{pods}}})",
            "threshold": str(cluster.waiting_per_replica),
        },
    }
    spec = {
        "scaleTargetRef": {"name": about["name"]},
        "minReplicaCount": cluster.replicas,
        "maxReplicaCount": cluster.most_replicas,
        "pollingInterval": 15,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": SLOWLY_DOWN}},
        "triggers": [trigger],
    }
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": about, "spec": spec}


def _labels(spec: ReplicaSpec) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "pilotline-model",
        "app.kubernetes.io/part-of": "pilotline",
        "app.kubernetes.io/instance": replica_name(spec),
    }


def _command(cluster: ClusterServing, spec: ReplicaSpec, served_names: Sequence[str], max_model_len: int) -> list[str]:
    settings, gpus = spec.settings, cluster.placement.gpus
    words = ["vllm", "serve", MODEL_MOUNT, "--served-model-name", *served_names, "--host", "0.0.0.0"]  # noqa: S104
    words += ["--port", str(PORT), "--dtype", settings.dtype, "--max-model-len", str(max_model_len)]
    words += ["--max-num-seqs", str(settings.max_sequences), "--enable-request-id-headers"]
    return words + (["--tensor-parallel-size", str(gpus)] if gpus > 1 else [])


def _deployment(cluster: ClusterServing, spec: ReplicaSpec, labels: Object, command: list[str]) -> Object:
    start = spec.settings.start_timeout_seconds
    place = cluster.placement
    pod = {
        "serviceAccountName": cluster.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(cluster),
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": dict(place.node_selector),
        "tolerations": [dict(one) for one in place.tolerations],
        "initContainers": [_fetch(cluster, spec)],
        "containers": [_server(cluster, command, start)],
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": cluster.claim, "readOnly": True}},
            {"name": "model", "emptyDir": {}},
            {"name": "work", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": place.shm}},
            {"name": "probe", "configMap": {"name": replica_name(spec), "defaultMode": 0o444}},
        ],
    }  # fmt: skip
    return {
        "replicas": cluster.replicas,
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": math.ceil(start) + 60,
        # No pod beside the old one: with no spare GPU a surge would wait for ever.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels, "annotations": {DIGEST_ANNOTATION: spec.digest}}, "spec": pod},
    }


def _fetch(cluster: ClusterServing, spec: ReplicaSpec) -> Object:
    module = ["python", "-m", "components.serving.replicas.fetch_model"]
    return {
        "name": "fetch-model",
        "image": cluster.tools_image,
        "command": [*module, "--source", str(spec.model_dir), "--digest", spec.digest, "--to", MODEL_MOUNT],
        "securityContext": _locked(),
        "resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [
            {"name": "home", "mountPath": cluster.mount, "readOnly": True},
            {"name": "model", "mountPath": MODEL_MOUNT},
        ],
    }


def _server(cluster: ClusterServing, command: list[str], start_seconds: float) -> Object:
    """vLLM. The start-up probe scores the golden request, and no other probe counts before it.

    Afterwards readiness is the server's own /health: a scored request would wait in the queue under load, and its
    time-out would take the busiest replica away from its callers.
    """
    place, url = cluster.placement, f"http://127.0.0.1:{PORT}"
    drain = [f"{PROBE_MOUNT}/drain.py", url, str(FORGET_SECONDS), str(math.ceil(cluster.longest_request_seconds))]
    gpus = {place.resource: str(place.gpus)} if place.gpus else {}
    health = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5, "periodSeconds": 10}
    tries = max(1, math.ceil(start_seconds / PROBE_PERIOD_SECONDS))
    return {
        "name": "model",
        "image": cluster.image,
        "command": command,
        "env": [{"name": name, "value": value} for name, value in _environment().items()],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": place.cpu, "memory": place.memory} | gpus,
            "limits": {"memory": place.memory} | gpus,
        },
        "startupProbe": {
            "exec": {"command": ["python3", f"{PROBE_MOUNT}/ready.py", f"{PROBE_MOUNT}/golden.json"]},
            "periodSeconds": PROBE_PERIOD_SECONDS, "timeoutSeconds": 35, "failureThreshold": tries,
        },
        "readinessProbe": health | {"failureThreshold": 2},
        "livenessProbe": health | {"failureThreshold": 6},
        "lifecycle": {"preStop": {"exec": {"command": ["python3", *drain]}}},
        "securityContext": _locked(),
        "volumeMounts": [
            {"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True},
            {"name": "probe", "mountPath": PROBE_MOUNT, "readOnly": True},
            {"name": "work", "mountPath": WORK_MOUNT},
            {"name": "shm", "mountPath": SHM_MOUNT},
        ],
    }  # fmt: skip


def _environment() -> dict[str, str]:
    """No hub, no telemetry, caches where the pod may write, and a name for the user, whom no password file knows."""
    return {
        "HOME": WORK_MOUNT,
        "USER": "pilotline",
        "XDG_CACHE_HOME": f"{WORK_MOUNT}/cache",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_SECONDS),
    }


def _locked() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
