"""Ranks as a Kubeflow Trainer TrainJob: created once, found again by name, followed by reading its conditions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from components.core.errors import PilotlineError, TransientError, UserError, one_line
from components.training.backends.launch import QUEUED, Ended, Launch, Watch, placement
from components.training.backends.trainjob_spec import KEY_ANNOTATION, NODE, trainjob

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
PODS = f"jobset.sigs.k8s.io/jobset-name={{name}},jobset.sigs.k8s.io/replicatedjob-name={NODE}"
POLL_SECONDS = 2.0
WATCH_SECONDS = 0.25
REQUEST_SECONDS = 10.0
TRIES, FIRST_WAIT_SECONDS = 5, 0.5  # of one request, where the API server does not answer
GONE_SECONDS = 300.0  # a deleted job's pods get their grace, and save, before it is gone
LOG_LINES = 40
READY = "nodes are ready"
T = TypeVar("T")


class TrainJobBackend:
    """Speaks to the cluster of the kubeconfig, or to the one that this pod is in."""

    name = "trainjob"

    def __init__(self, api_client: Any = None) -> None:
        from kubernetes import client

        self._client, self._own_namespace = (api_client, "default") if api_client else _configured()
        self._objects = client.CustomObjectsApi(self._client)
        self._core = client.CoreV1Api(self._client)

    def place(self) -> str:
        """The cluster in words; UserError where its TrainJobs cannot be read, TransientError where it is away."""
        listed = self._ask(
            lambda: self._objects.list_namespaced_custom_object(
                GROUP, VERSION, self._own_namespace, PLURAL, limit=1, _request_timeout=REQUEST_SECONDS
            ),
            tries=1,
        )
        if listed is None:
            raise UserError(f"no TrainJobs at {self._client.configuration.host}: install Kubeflow Trainer {VERSION}")
        return f"{self._client.configuration.host}, namespace {self._own_namespace}"

    def submit(self, launch: Launch) -> str:
        """Create the TrainJob, or find it; one that failed, or whose export is gone, is deleted first."""
        _check_volume(launch)
        body = trainjob(launch)
        for _ in range(3):
            found = self._read(launch)
            if found is None:
                if self._create(launch, body):
                    return self._called(launch)
                continue  # made by another launcher in between: read it back
            _refuse_other(found, launch)
            ended = _ended(found)
            if ended is None or (ended.status == 0 and launch.is_exported):
                return self._called(launch)
            self.cancel(launch)
        raise TransientError(
            f"TrainJob {self._called(launch)}: others create and delete it; run again when they are done"
        )

    def wait(self, launch: Launch, seconds: float, watch: Watch) -> Ended:
        """Follow the TrainJob's conditions, and keep the end of its pods' logs in the job's log."""
        deadline, said = time.monotonic() + seconds, ""
        while True:
            found = self._read(launch)
            if found is None:
                return Ended(1, f"TrainJob {self._called(launch)} was deleted")
            if ended := _ended(found):
                _note(launch.log, self.logs(launch))
                return ended
            if (state := _state(found)) != said:
                said = state
                _note(launch.log, f"[trainjob] {self._called(launch)}: {state}\n")
            _pause(deadline, watch, launch, said)

    def logs(self, launch: Launch) -> str:
        """The last lines of every node's pod, in the order of their names."""
        listed = self._ask(
            lambda: self._core.list_namespaced_pod(
                self._namespace(launch), label_selector=PODS.format(name=launch.name), _request_timeout=REQUEST_SECONDS
            )
        )
        pods = sorted(pod.metadata.name for pod in listed.items) if listed else []
        return "".join(f"[{pod}]\n{self._pod_log(launch, pod)}\n" for pod in pods)

    def cancel(self, launch: Launch) -> None:
        """Delete the TrainJob with all that it owns, and wait until it is gone (bounded)."""
        self._ask(
            lambda: self._objects.delete_namespaced_custom_object(
                *self._place(launch),
                launch.name,
                body={"propagationPolicy": "Foreground"},
                _request_timeout=REQUEST_SECONDS,
            )
        )
        deadline = time.monotonic() + GONE_SECONDS
        while self._read(launch) is not None:
            if time.monotonic() > deadline:
                raise TransientError(
                    f"TrainJob {self._called(launch)}: deleted, but not gone in {GONE_SECONDS:g} s; "
                    "see `kubectl describe` and run again"
                )
            time.sleep(WATCH_SECONDS)

    def result(self, launch: Launch) -> Ended | None:
        """What the TrainJob's conditions say."""
        found = self._read(launch)
        return None if found is None else _ended(found)

    def _namespace(self, launch: Launch) -> str:
        return launch.recipe.resources.namespace or self._own_namespace

    def _called(self, launch: Launch) -> str:
        return f"{self._namespace(launch)}/{launch.name}"

    def _place(self, launch: Launch) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self._namespace(launch), PLURAL

    def _read(self, launch: Launch) -> dict[str, Any] | None:
        return self._ask(
            lambda: self._objects.get_namespaced_custom_object(
                *self._place(launch), launch.name, _request_timeout=REQUEST_SECONDS
            )
        )

    def _create(self, launch: Launch, body: dict[str, Any]) -> bool:
        """False where one is there already; an answer that was lost is settled by reading back, not by trying again."""
        from kubernetes.client.exceptions import ApiException

        try:
            self._objects.create_namespaced_custom_object(
                *self._place(launch), body=body, _request_timeout=REQUEST_SECONDS
            )
        except Exception as error:
            if isinstance(error, ApiException) and error.status == 404:
                raise UserError(
                    f"namespace {self._namespace(launch)}: absent, or Kubeflow Trainer is not installed (no "
                    f"{GROUP}/{VERSION} TrainJob); see deploy/kubernetes/training/"
                ) from error
            if isinstance(error, ApiException) and error.status != 409 and error.status < 500:
                raise _refused(error) from error
            return False
        return True

    def _pod_log(self, launch: Launch, pod: str) -> str:
        text = self._ask(
            lambda: self._core.read_namespaced_pod_log(
                pod, self._namespace(launch), container=NODE, tail_lines=LOG_LINES, _request_timeout=REQUEST_SECONDS
            )
        )
        return text or ""

    def _ask(self, request: Callable[[], T], tries: int = TRIES) -> T | None:
        """The answer; None for 404. An API server that is away is asked again, a bounded number of times."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        wait = FIRST_WAIT_SECONDS
        for left in reversed(range(tries)):
            try:
                return request()
            except ApiException as error:
                if error.status == 404:
                    return None
                if 400 <= error.status < 500 and error.status != 429:
                    raise _refused(error) from error
                reason = f"{error.status} {error.reason}"
            except HTTPError as error:
                reason = one_line(error)
            if left:
                time.sleep(wait)
                wait *= 2
        raise TransientError(f"Kubernetes API: no answer in {tries} tries ({reason[:200]}); run again to go on waiting")


def _configured() -> tuple[Any, str]:
    """A client for the kubeconfig's cluster, else for this pod's, and the namespace to use."""
    from kubernetes import client, config

    try:
        if NAMESPACE_FILE.exists():
            config.load_incluster_config()
            return client.ApiClient(), NAMESPACE_FILE.read_text().strip()
        file = os.environ.get("KUBECONFIG") or None  # the client reads it when it is imported, and never again
        _, active = config.list_kube_config_contexts(file)
        config.load_kube_config(file)
        return client.ApiClient(), active["context"].get("namespace") or "default"
    except (config.ConfigException, OSError, KeyError, TypeError) as error:
        raise UserError(
            f"training.backend trainjob: no cluster is configured here ({one_line(error)[:120]}); set KUBECONFIG, run "
            "in a pod, or set training.backend to local or slurm"
        ) from error


def _check_volume(launch: Launch) -> None:
    mount = Path(placement(launch.recipe).pool.volume.mount)
    if not launch.job_file.is_absolute() or not launch.job_file.resolve().is_relative_to(mount.resolve()):
        raise UserError(
            f"{launch.folder}: pods mount the shared volume at {mount} and would not see this folder; choose a --home "
            "there, or name the volume's place in resources.pool.volume"
        )


def _refuse_other(found: dict[str, Any], launch: Launch) -> None:
    key = found["metadata"].get("annotations", {}).get(KEY_ANNOTATION)
    if key != launch.key:
        raise UserError(f"TrainJob {launch.name}: belongs to another training ({str(key)[:12]}); remove it")


def _conditions(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    listed = found.get("status", {}).get("conditions", [])
    return {one["type"]: one for one in listed if one.get("status") == "True"}


def _ended(found: dict[str, Any]) -> Ended | None:
    conditions = _conditions(found)
    if "Complete" in conditions:
        return Ended(0)
    if failed := conditions.get("Failed"):
        return Ended(1, f"TrainJob failed: {failed.get('reason', '')}: {failed.get('message', '')}"[:300])
    return None


def _state(found: dict[str, Any]) -> str:
    """In words: deleted, suspended (Kueue has not admitted it), or how many of its pods are ready."""
    if found["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    if suspended := _conditions(found).get("Suspended"):
        return f"waits for admission ({suspended.get('message', '') or suspended.get('reason', '')})"
    jobs = [job for job in found.get("status", {}).get("jobsStatus", []) if job["name"] == NODE]
    if jobs and jobs[0]["ready"]:
        return READY
    return "waits for its pods"


def _pause(deadline: float, watch: Watch, launch: Launch, state: str) -> None:
    """Until the next look at the cluster; the launcher's own work goes on meanwhile."""
    until = time.monotonic() + POLL_SECONDS
    while time.monotonic() < until:
        watch(0 if state.startswith(READY) else QUEUED)
        if time.monotonic() > deadline:
            raise TransientError(
                f"TrainJob {launch.name} ({state}) did not end in time; it goes on, and the same command finds it "
                "again; or raise training.timeout_minutes"
            )
        time.sleep(min(WATCH_SECONDS, POLL_SECONDS))


def _note(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as stream:
        stream.write(text)


def _refused(error: Any) -> PilotlineError:
    """A refusal of the API server: permissions, admission, or an object that it does not take."""
    said = one_line(Exception(str(error.body or error.reason)))[:300]
    mend = {401: "log in again", 403: "let the account read and write trainjobs, see deploy/kubernetes/training/"}
    return UserError(f"Kubernetes API refused: {error.status} {said}; {mend.get(error.status, 'mend the recipe')}")
