"""What a cluster does with a replica's Deployment, as far as one machine can: for `KubernetesApi.on_change`.

The init container's command really runs; the model server is the fake one; the start-up probe is the script from the
replica's own ConfigMap, asked of that server; `readyReplicas` says what it found; the preStop script runs at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.core.paths import PROJECT_ROOT
from tests.fakes.fake_model_server import PROBES, FakeModelServer
from tests.fakes.kubernetes_api import ApiError, KubernetesApi, Object

DEPLOYMENTS = ("apps/v1", "deployments")


@dataclass
class Kubelet:
    """Runs Deployments of one API double; `fault` is what the next model servers have (see `fake_model_server`)."""

    api: KubernetesApi
    folder: Path
    fault: str = ""
    faults: dict[str, tuple[str, int]] = field(default_factory=dict)  # served name → fault, requests spared of it
    stuck: str = ""  # a reason why no pod is placed: "Unschedulable"
    servers: dict[str, FakeModelServer] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)  # by probes and preStop, in order

    def __call__(self, event: str, item: Object) -> None:
        """See each write; Deployments are worked on beside the request."""
        if item["kind"] == "Deployment" and event in ("ADDED", "DELETED"):
            work = self._run if event == "ADDED" else self._end
            threading.Thread(target=work, args=(item,), daemon=True).start()

    def kill(self, name: str) -> None:
        """The server of a Deployment dies, and its pod is no longer ready."""
        server = self.servers.pop(name)
        server.shutdown()
        server.server_close()
        self._report(name, ready=0)

    def _run(self, item: Object) -> None:
        name, pod = item["metadata"]["name"], item["spec"]["template"]["spec"]
        self._pod(item, {"phase": "Pending"})
        if self.stuck:
            why = {"type": "PodScheduled", "status": "False", "reason": self.stuck, "message": "0/3 nodes: no GPU free"}
            self._pod(item, {"phase": "Pending", "conditions": [why]})
            return
        target = self.folder / name
        target.mkdir(parents=True, exist_ok=True)
        fetch = pod["initContainers"][0]
        words = [str(target) if word == "/model" else word for word in fetch["command"][1:]]
        done = subprocess.run([sys.executable, *words], cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            ended = {"exitCode": done.returncode, "reason": "Error", "message": done.stderr.strip()}
            state = {"name": fetch["name"], "image": fetch["image"], "imageID": "", "ready": False, "restartCount": 1,
                     "state": {"terminated": ended}}  # fmt: skip
            self._pod(item, {"phase": "Pending", "initContainerStatuses": [state]})
            return
        self._serve(item, pod["containers"][0])

    def _serve(self, item: Object, container: Object) -> None:
        name = item["metadata"]["name"]
        names = _names(container["command"])
        fault, spared = self.faults.get(names[0], (self.fault, 0))
        server = FakeModelServer(0, names, fault)
        server.answered = PROBES - spared if fault != "unready" else 0  # faults begin with the first request
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.servers[name] = server
        probe = container["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if name not in self.servers:
                return
            if self._exec(item, probe["exec"]["command"]) == 0:
                self._report(name, ready=1)
                return
            time.sleep(0.1)

    def _end(self, item: Object) -> None:
        name = item["metadata"]["name"]
        if name in self.servers:
            command = item["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            self._exec(item, [*command[:3], "0", command[4]])  # no gateway here has to forget anything
            server = self.servers.pop(name, None)
            if server is not None:
                server.shutdown()
                server.server_close()
        with suppress(ApiError):
            self.api.delete("v1", "pods", f"{name}-0", item["metadata"]["namespace"])

    def _exec(self, item: Object, command: Sequence[str]) -> int:
        """A script of the ConfigMap, with the container's port as it is here."""
        name = item["metadata"]["name"]
        files = self.folder / f"{name}-probe"
        files.mkdir(exist_ok=True)
        with suppress(ApiError):  # gone with its owner: what was mounted stays
            data = self.api.get("v1", "configmaps", name, item["metadata"]["namespace"])["data"]
            for file, text in data.items():
                (files / file).write_text(text)
        port = self.servers[name].server_port
        golden = files / "golden.json"
        if not golden.exists():
            return 1
        golden.write_text(json.dumps(json.loads(golden.read_text()) | {"url": f"http://127.0.0.1:{port}"}))
        words = [word.replace("/pilotline/probe", str(files)) for word in command[1:]]
        words = [f"http://127.0.0.1:{port}" if word.startswith("http://") else word for word in words]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60)
        self.said.append(done.stdout.strip())
        return done.returncode

    def _report(self, name: str, ready: int) -> None:
        with suppress(ApiError):
            status = {"observedGeneration": 1, "replicas": 1, "readyReplicas": ready, "availableReplicas": ready}
            self.api.set_status(*DEPLOYMENTS, name, status, "serving")

    def _pod(self, item: Object, status: dict[str, Any]) -> None:
        about = item["metadata"]
        name, labels = f"{about['name']}-0", item["spec"]["template"]["metadata"]["labels"]
        container = {"name": "model", "image": "x"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
                "spec": {"containers": [container]}}  # fmt: skip
        with suppress(ApiError):
            self.api.create(body, about["namespace"])
        with suppress(ApiError):
            self.api.set_status("v1", "pods", name, status, about["namespace"])


def _names(command: Sequence[str]) -> list[str]:
    start = list(command).index("--served-model-name") + 1
    rest = list(command)[start:]
    return rest[: next(place for place, word in enumerate(rest) if word.startswith("--"))]
