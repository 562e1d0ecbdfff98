"""Replicas as Deployments: one Deployment, Service, ConfigMap and disruption budget for each version."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from components.core.errors import IntegrityError, TransientError, one_line
from components.core.processes import wait_until
from components.core.protocols import Served
from components.models.files import model_digest
from components.models.spec import spec_for
from components.serving.cluster import CALL_SECONDS, ConflictError, NotFoundError, call
from components.serving.replica import ReplicaSpec, context_tokens, served_name
from components.serving.replicas.interface import Golden
from components.serving.replicas.manifests import (
    PORT,
    RENDERED_ANNOTATION,
    ClusterServing,
    Object,
    grace_seconds,
    render,
    replica_name,
)
from components.serving.router.interface import Backend

LOOK_SECONDS = 0.5
DRAIN_SECONDS = 30.0
REPLICAS = "app.kubernetes.io/name=pilotline-model"
BROKEN = IntegrityError.exit_code  # of the init container: the digest does not hold


class KubernetesReplicas:
    """Starts replicas in one namespace."""

    def __init__(self, api: Any, cluster: ClusterServing, look_seconds: float = LOOK_SECONDS) -> None:
        """`api` is a `kubernetes.client.ApiClient`; `look_seconds` lies between two looks at a replica's state."""
        self._api, self._cluster, self._look = api, cluster, look_seconds

    def launch(self, spec: ReplicaSpec, golden: Golden) -> KubernetesReplica:
        """Check the files and create the objects; those of the same version and settings are taken over."""
        found = model_digest(spec.model_dir)
        if found != spec.digest:
            raise IntegrityError(
                f"model {spec.name} version {spec.version} ({spec.model_dir}): its files have digest {found[:12]}, "
                f"{spec.digest[:12]} was registered; restore the files or register the version again"
            )
        renderer = spec_for(spec.family).renderer(spec.model_dir)
        names = (served_name(spec), spec.name)
        asked = golden.request(renderer, names[0], f"http://127.0.0.1:{PORT}")
        objects = render(self._cluster, spec, names, context_tokens(spec.model_dir, renderer), asked)
        replica = KubernetesReplica(self._api, self._cluster, spec, self._look)
        replica.create(objects)
        return replica

    def adopt(self, spec: ReplicaSpec) -> KubernetesReplica:
        """One that an earlier controller launched and saw ready; nothing is asked of the cluster."""
        replica = KubernetesReplica(self._api, self._cluster, spec, self._look)
        replica.was_ready = True
        return replica

    def names(self) -> list[str]:
        """Names of all replicas' Deployments in the namespace."""
        from kubernetes import client

        ask, namespace = client.AppsV1Api(self._api).list_namespaced_deployment, self._cluster.namespace
        about = {"label_selector": REPLICAS, "_request_timeout": CALL_SECONDS}
        found = call(f"Deployments of {namespace}", lambda: ask(namespace, **about))
        return sorted(one.metadata.name for one in found.items)

    def remove(self, name: str) -> None:
        """Delete a Deployment by its name, and with it what it owns; its pods drain themselves."""
        from kubernetes import client

        delete, namespace = client.AppsV1Api(self._api).delete_namespaced_deployment, self._cluster.namespace
        about = {"body": client.V1DeleteOptions(propagation_policy="Background"), "_request_timeout": CALL_SECONDS}
        with suppress(NotFoundError):
            call(f"Deployment {namespace}/{name}", lambda: delete(name, namespace, **about))


class KubernetesReplica:
    """One Deployment and what it owns."""

    def __init__(self, api: Any, cluster: ClusterServing, spec: ReplicaSpec, look_seconds: float) -> None:
        from kubernetes import client

        self.spec, self.name = spec, replica_name(spec)
        self._cluster, self._look, self._namespace = cluster, look_seconds, cluster.namespace
        self._apps, self._core = client.AppsV1Api(api), client.CoreV1Api(api)
        self._client = client
        self._what = f"Deployment {cluster.namespace}/{self.name}"
        self._started, self.was_ready, self._stopped = time.monotonic(), False, False
        self._uid = ""  # of the Deployment made here; one of the same name that another controller made is not ours

    @property
    def backend(self) -> Backend:
        """The Service, as the route names it."""
        return Backend(self.name, PORT)

    @property
    def served(self) -> Served:
        """The record of this replica; no process id is known."""
        spec = self.spec
        return Served(
            arm=spec.arm,
            url=f"http://{self.name}.{self._namespace}.svc:{PORT}",
            served_name=served_name(spec),
            version=spec.version,
            digest=spec.digest,
            model_dir=spec.model_dir,
            engine=f"vllm in {self._cluster.image}",
            pid=0,
        )

    @property
    def alive(self) -> bool:
        """Whether the Deployment is there and, once it was ready, still has a ready pod."""
        found = self._deployment()
        if found is None:
            return False
        ready = (found.status.ready_replicas if found.status else 0) or 0
        return ready > 0 or not self.was_ready

    def create(self, objects: list[Object]) -> None:
        """Create what is not there yet; the Deployment owns the rest, so that deleting it deletes all."""
        first, *others = objects
        owner = self._create(first)
        self._uid = owner.metadata.uid
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.name, "uid": owner.metadata.uid}
        for body in others:
            owned = body | {"metadata": body["metadata"] | {"ownerReferences": [reference]}}
            self._create(owned)

    def wait_ready(self) -> Served:
        """Wait until all pods are ready, which their start-up probes say once the golden request was scored."""
        limit = self.spec.settings.start_timeout_seconds
        ended, gone = "", False

        def settled() -> bool:
            nonlocal ended, gone
            try:
                ended, gone = self._broken(), self._gone()
                return bool(ended) or gone or self._is_ready()
            except TransientError:  # the API stumbles, which says nothing about the replica
                return self._stopped

        left = max(0.0, limit - (time.monotonic() - self._started))
        ready = wait_until(settled, left, every=self._look)
        if self._stopped or gone:
            raise TransientError(f"{self._what}: was {'stopped' if self._stopped else 'deleted'} before it was ready")
        if ready and not ended:
            self.was_ready = True
            return self.served
        reasons = self._reasons() or "no pod says why"
        self.stop(lambda: 0)
        if ended:
            raise IntegrityError(f"{self._what}: {ended}; restore the files or register the version again")
        raise TransientError(
            f"{self._what} was not ready after {limit:.0f} s ({reasons}); see its pods' logs or raise "
            "serving.start_timeout_seconds"
        )

    def stop(self, in_flight: Callable[[], int | None]) -> None:
        """Wait for the router where it tells, then delete; each pod drains itself before SIGTERM."""
        wait_until(lambda: not in_flight(), DRAIN_SECONDS, every=0.05)
        self._stopped = True
        found = self._deployment()
        if found is not None and self._uid not in ("", found.metadata.uid):
            return
        if found is not None:
            conditions = self._client.V1Preconditions(uid=found.metadata.uid)
            options = self._client.V1DeleteOptions(preconditions=conditions, propagation_policy="Background")
            with suppress(NotFoundError):
                self._ask(
                    lambda: self._apps.delete_namespaced_deployment(
                        self.name, self._namespace, body=options, _request_timeout=CALL_SECONDS
                    )
                )
        if not wait_until(lambda: not self._pods(), grace_seconds(self._cluster) + DRAIN_SECONDS, every=self._look):
            raise TransientError(f"{self._what}: its pods have not ended; see `kubectl get pods -n {self._namespace}`")

    def _create(self, body: Object) -> Any:
        create, read = self._verbs(body)
        what = f"{body['kind']} {self._namespace}/{self.name}"
        try:
            return call(what, create)
        except ConflictError:
            found = call(what, read)
        wanted = body["metadata"]["annotations"][RENDERED_ANNOTATION]
        owners = [one["uid"] for one in body["metadata"].get("ownerReferences", [])]
        if _marks(found) != (wanted, owners):
            raise TransientError(f"{what}: is there with other settings or another owner; stop that replica first")
        return found

    def _verbs(self, body: Object) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """How an object is created and read."""
        apps, core, kind = self._apps, self._core, body["kind"]
        about = {"_request_timeout": CALL_SECONDS}
        if kind == "ScaledObject":
            custom = self._client.CustomObjectsApi(apps.api_client)
            where = (*body["apiVersion"].split("/"), self._namespace, "scaledobjects")
            return (
                lambda: custom.create_namespaced_custom_object(*where, body, **about),
                lambda: custom.get_namespaced_custom_object(*where, self.name, **about),
            )
        policy, scaling = self._client.PolicyV1Api(apps.api_client), self._client.AutoscalingV2Api(apps.api_client)
        create, read = {
            "Deployment": (apps.create_namespaced_deployment, apps.read_namespaced_deployment),
            "ConfigMap": (core.create_namespaced_config_map, core.read_namespaced_config_map),
            "Service": (core.create_namespaced_service, core.read_namespaced_service),
            "PodDisruptionBudget": (
                policy.create_namespaced_pod_disruption_budget,
                policy.read_namespaced_pod_disruption_budget,
            ),
            "HorizontalPodAutoscaler": (
                scaling.create_namespaced_horizontal_pod_autoscaler,
                scaling.read_namespaced_horizontal_pod_autoscaler,
            ),
        }[kind]
        return lambda: create(self._namespace, body, **about), lambda: read(self.name, self._namespace, **about)

    def _deployment(self) -> Any | None:
        try:
            return self._ask(
                lambda: self._apps.read_namespaced_deployment(self.name, self._namespace, _request_timeout=CALL_SECONDS)
            )
        except NotFoundError:
            return None

    def _is_ready(self) -> bool:
        found = self._deployment()
        status = found.status if found else None
        if found is None or status is None or (status.observed_generation or 0) < found.metadata.generation:
            return False
        return (status.ready_replicas or 0) >= found.spec.replicas

    def _gone(self) -> bool:
        found = self._deployment()
        return self._stopped or found is None or self._uid not in ("", found.metadata.uid)

    def _pods(self) -> list[Any]:
        selector = f"app.kubernetes.io/instance={self.name}"
        found: list[Any] = self._ask(
            lambda: self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=CALL_SECONDS
            )
        ).items
        return found

    def _broken(self) -> str:
        """What the init container says where the digest does not hold; empty otherwise."""
        for pod in self._pods():
            for state in _ends(pod.status.init_container_statuses if pod.status else None):
                if state.exit_code == BROKEN:
                    return " ".join((state.message or "the copied files are not those registered").split())
        return ""

    def _reasons(self) -> str:
        """Why pods are not ready, in the cluster's own words."""
        try:
            found = [reason for pod in self._pods() for reason in _waits(pod)]
        except TransientError as error:
            return one_line(error)
        return "; ".join(dict.fromkeys(found))

    def _ask(self, request: Callable[[], Any]) -> Any:
        return call(self._what, request)


def _marks(found: Any) -> tuple[str, list[str]]:
    """By what settings an object was made, and who owns it; custom kinds are plain values."""
    if isinstance(found, dict):
        about = found["metadata"]
        owners = [one["uid"] for one in about.get("ownerReferences", [])]
        return str(about.get("annotations", {}).get(RENDERED_ANNOTATION)), owners
    about = found.metadata
    owners = [one.uid for one in about.owner_references or []]
    return str((about.annotations or {}).get(RENDERED_ANNOTATION)), owners


def _ends(statuses: Any) -> list[Any]:
    ended = [one.state.terminated for one in statuses or [] if one.state]
    ended += [one.last_state.terminated for one in statuses or [] if one.last_state]
    return [one for one in ended if one is not None]


def _waits(pod: Any) -> list[str]:
    status = pod.status
    if status is None:
        return []
    found = [f"{one.reason}: {one.message}" for one in status.conditions or [] if one.status == "False" and one.message]
    for one in [*(status.init_container_statuses or []), *(status.container_statuses or [])]:
        waiting = one.state.waiting if one.state else None
        if waiting is not None:
            found.append(f"{one.name} waits: {waiting.reason} {waiting.message or ''}".strip())
        found += [f"{one.name} ended with status {end.exit_code}" for end in _ends([one]) if end.exit_code]
    return found
