"""Kubeflow Trainer's part beside the API double: a TrainJob's container runs as a process of this machine.

The command, its arguments and its variables are those of the TrainJob, with the PET_* variables that the trainer
sets. A secret's variable stays unset. One node only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from components.core.processes import end, free_port
from components.training.backends.launch import importable
from tests.fakes.kubernetes_api import ApiError, KubernetesApi

VERSION, PLURAL = "trainer.kubeflow.org/v1alpha1", "trainjobs"


class TrainerController:
    """A context manager; processes end with it, and with their TrainJob."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api, self.started = api, 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> TrainerController:
        self.api.on_change = self._changed
        return self

    def __exit__(self, *_: object) -> None:
        self.api.on_change = None
        for process in self._processes.values():
            end(process, 1.0)

    def _changed(self, event: str, body: dict[str, Any]) -> None:
        if body.get("kind") != "TrainJob":
            return
        uid = body["metadata"]["uid"]
        if event == "ADDED":
            self.started += 1
            threading.Thread(target=self._run, args=(uid, body), daemon=True).start()
        elif event == "DELETED" and (process := self._processes.get(uid)):
            process.kill()

    def _run(self, uid: str, body: dict[str, Any]) -> None:
        trainer, about = body["spec"]["trainer"], body["metadata"]
        python, *words = trainer["command"]
        assert python == "python"
        process = subprocess.Popen(
            [sys.executable, *words, *trainer["args"]],
            env={**os.environ, **_variables(trainer)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes[uid] = process
        pod = self._pod(about)
        self._report(about, {"jobsStatus": [_nodes(ready=1)]})
        output, _ = process.communicate()
        self.api.logs[(about["namespace"], pod)] = output.decode(errors="replace")
        kind, reason = ("Complete", "JobsCompleted") if process.returncode == 0 else ("Failed", "JobsFailed")
        self._report(about, {"conditions": [condition(kind, reason)]})

    def _pod(self, about: dict[str, Any]) -> str:
        labels = {
            "jobset.sigs.k8s.io/jobset-name": about["name"],
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
        }
        name = f"{about['name']}-node-0-0-{self.started}"
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [{"name": "node", "image": "none"}]},
        }
        self.api.create(body, about["namespace"])
        return name

    def _report(self, about: dict[str, Any], status: dict[str, Any]) -> None:
        with suppress(ApiError):
            self.api.set_status(VERSION, PLURAL, about["name"], status, about["namespace"])


def condition(kind: str, reason: str, message: str = "told by the test") -> dict[str, Any]:
    """A condition that holds."""
    since = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}


def _nodes(ready: int) -> dict[str, Any]:
    return {"name": "node", "ready": ready, "active": 1, "failed": 0, "succeeded": 0, "suspended": 0}


def _variables(trainer: dict[str, Any]) -> dict[str, str]:
    plain = {one["name"]: one["value"] for one in trainer["env"] if "value" in one}
    assert trainer["numNodes"] == 1
    return plain | {
        "PYTHONPATH": importable(),
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
    }
