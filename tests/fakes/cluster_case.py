"""A cluster on loopback for rollouts: API double, kubelet, gateway, and the scoring service's pod as a real process.

python -m tests.fakes.cluster_case --root DIR --run RUN     one rollout of version 2, with $KUBECONFIG's cluster
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from components.core.home import Home
from components.core.ledger import Ledger
from components.core.paths import PROJECT_ROOT
from components.core.processes import free_port, wait_until
from components.core.protocols import Decision, GoldenRow
from components.core.publish import publishing
from components.core.recipe import Recipe
from components.core.records import Evidence, ModelVersionRef, RolloutReport, SplitRef, TrainingSetRef
from components.models.files import model_digest
from components.rollout.rollout import roll_out
from components.serving.cluster_stack import ClusterStack
from components.serving.control import ARMS, ServingState, read_state
from components.serving.load import Drive
from components.serving.replicas.kubernetes import KubernetesReplicas
from pipelines.cluster_serving import stack_of
from tests.fakes.fake_gateway import FakeGateway
from tests.fakes.gateway_rules import accepting, new_route
from tests.fakes.kubelet import Kubelet
from tests.fakes.kubernetes_api import KubernetesApi, Object
from tests.fakes.serving_case import expected_score, make_shell, rows, tiny_recipe

NAMESPACE, ROUTE = "serving", ("gateway.networking.k8s.io/v1", "httproutes", "pilotline-model")
GATEWAY = "pilotline-models"
ROW: dict[str, Any] = {"features": {"count": 3.0, "rate": 0.2}, "text": "my card"}
ROLLOUT: dict[str, Any] = {
    "golden_requests": 8, "shadow_requests": 0, "steps": [50], "min_canary_requests": 30,
    "requests_per_second": 40.0, "deadline_seconds": 60.0, "error_margin": 0.2, "latency_ratio": 20.0,
    "slo_requests": 150, "slo_error_rate": 0.05,
}  # fmt: skip


@dataclass
class Cluster:
    """What is in it; `ports` of the scoring service and of its control port."""

    root: Path
    api: KubernetesApi
    kubelet: Kubelet
    gateway: FakeGateway
    ports: tuple[int, int]
    pod: subprocess.Popen[bytes] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def home(self) -> Home:
        """The share that all pods mount."""
        return Home.at(self.root / "home")

    @property
    def route(self) -> Object:
        """The HTTPRoute as it is."""
        return self.api.get(*ROUTE, NAMESPACE)

    @property
    def state(self) -> ServingState:
        """What the scoring service was told last."""
        return read_state(self.home.root / "serving" / "state.json")

    def deployments(self) -> list[str]:
        """Names of all Deployments."""
        return sorted(one["metadata"]["name"] for one in self.api.list("apps/v1", "deployments", NAMESPACE))

    def start_pod(self) -> None:
        """The scoring service's pod comes up, or comes back."""
        module = [sys.executable, "-m", "pipelines.scoring_cluster", "--module", "tests.fakes.serving_case"]
        ports = ["--port", str(self.ports[0]), "--control-port", str(self.ports[1]), "--host", "127.0.0.1"]
        with (self.root / "pod.log").open("ab") as log:
            self.pod = subprocess.Popen(
                [*module, *ports, "--home", str(self.home.root)], cwd=PROJECT_ROOT, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        assert wait_until(lambda: (self.home.root / "serving" / "control.key").exists(), 30.0, every=0.05)

    def end_pod(self) -> None:
        """It is told to end, and ends."""
        if self.pod is not None:
            self.pod.terminate()
            self.pod.wait(60)
            self.pod = None

    def recipe(self, **rollout: Any) -> Recipe:
        """A recipe that serves here."""
        return recipe_for(self.root, self.ports, **rollout)

    def version(self, version: str) -> tuple[Path, str, str, GoldenRow]:
        """What a stack's `start` wants of a version: a model of its own, and the score that was registered for it."""
        model = self.root / f"model-{version}"
        if not model.exists():
            make_shell(model, note=version)
        score = expected_score(model, ROW)
        return model, version, model_digest(model), GoldenRow(ROW["features"], ROW["text"], score, 0.001)

    def clear(self) -> None:
        """Nothing is served, nothing fails."""
        self.api.faults.clear()
        self.kubelet.faults.clear()
        with self.stack() as stack:
            for arm in reversed(ARMS):
                stack.stop(arm)
        assert self.deployments() == []

    def stack(self, recipe: Recipe | None = None) -> ClusterStack:
        """A controller's stack on this cluster, as the pipeline opens it; not entered."""
        return open_here(recipe or self.recipe(), self.home, self.root, self.api.client())


def recipe_for(root: Path, ports: tuple[int, int], **rollout: Any) -> Recipe:
    """The recipe of a rollout in the cluster at these ports, whose share is `root`."""
    urls = {"scoring_url": f"http://127.0.0.1:{ports[0]}", "control_url": f"http://127.0.0.1:{ports[1]}"}
    serving = {"backend": "kubernetes", "request_timeout_seconds": 2.0, "start_timeout_seconds": 30.0,
               "cluster": {"namespace": NAMESPACE, **urls}}  # fmt: skip
    pool = {"volume": {"claim": "pilotline-home", "mount": str(root)}}
    return tiny_recipe(serving=serving, rollout=ROLLOUT | rollout, resources={"pool": pool})


def open_here(recipe: Recipe, home: Home, training_set: Path, client: Any) -> ClusterStack:
    """As `pipelines.cluster_serving.stack_of`; models of tests are not signed, and looks come quicker."""
    stack = stack_of(recipe, home, "run-1", training_set, client, None)
    replicas: KubernetesReplicas = stack._replicas
    replicas._look = 0.05
    return stack


@contextmanager
def open_cluster_case(root: Path) -> Iterator[Cluster]:
    """Everything up, nothing served."""
    with ExitStack() as stack:
        api = stack.enter_context(KubernetesApi(namespaces=(NAMESPACE,)))
        kubelet, accept = Kubelet(api, root / "node"), accepting(api)

        def act(event: str, item: Object) -> None:
            accept(event, item)
            kubelet(event, item)

        api.on_change = act
        api.create(new_route(), NAMESPACE, writer="kubectl-client-side-apply")

        def port_of(name: str) -> int | None:
            server = kubelet.servers.get(name)
            return server.server_port if server else None

        gateway = stack.enter_context(FakeGateway(lambda: api.get(*ROUTE, NAMESPACE), port_of))
        listeners = [{"name": "models", "protocol": "HTTP", "port": gateway.port}]
        api.create({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": GATEWAY},
                    "spec": {"gatewayClassName": "test", "listeners": listeners}}, NAMESPACE)  # fmt: skip
        address = {"addresses": [{"type": "IPAddress", "value": "127.0.0.1"}]}
        api.set_status("gateway.networking.k8s.io/v1", "gateways", GATEWAY, address, NAMESPACE)
        (root / "kubeconfig").write_text(yaml.safe_dump(api.kubeconfig()))
        found = Cluster(root, api, kubelet, gateway, (free_port(), free_port()))
        (root / "ports.json").write_text(json.dumps(found.ports))
        stack.callback(found.end_pod)
        found.start_pod()
        yield found


@contextmanager
def users(stack: ClusterStack) -> Iterator[list[Decision]]:
    """Callers at 30 requests a second while the block runs; their decisions afterwards."""
    decisions: list[Decision] = []
    over = threading.Event()
    drive = Drive(stack.url, rows(3000), 30.0, 5.0, lambda _: over.is_set())
    thread = threading.Thread(target=lambda: decisions.extend(drive.run()))
    thread.start()
    try:
        yield decisions
    finally:
        over.set()
        thread.join()


def publish_versions(root: Path, champion: bool = True) -> None:
    """Version 2 to be rolled out beside champion 1, or alone: other weights and the same prompt score alike."""
    dirs = {"1": root / "model-1", "2": root / "model-2"}
    for version, folder in dirs.items():
        make_shell(folder, note=version)
    digests = {version: model_digest(folder) for version, folder in dirs.items()}
    given = rows(37)
    frame = pd.DataFrame([row["features"] | {"shop": row["entities"]["shop"], "text": row["text"]} for row in given])
    frame["row_id"] = [f"r{number}" for number in range(len(frame))]
    frame["label"] = [number % 2 for number in range(len(frame))]
    frame["event_timestamp"] = pd.Timestamp("2026-01-01", tz="UTC")
    scores = [expected_score(dirs["2"], row) for row in given]
    split = SplitRef(name="test", rows=37, positives=18, digest="t", time_min="", time_max="")
    with publishing(root / "set") as folder:
        frame.to_parquet(folder / "test.parquet")
        TrainingSetRef(
            digest="set", snapshot_digest="s", clean_digest="c", feature_repo="f", feature_service="s",
            features=("count", "rate"), entities=("shop",), as_of="", embargo_days=0, splits=(split,),
        ).write(folder)  # fmt: skip
    evidence = Evidence(
        model_digest=digests["2"], training_set_digest="set", test_digest="t", rows=37, positives=18,
        metrics={}, baselines={}, slices={},
    )  # fmt: skip
    with publishing(root / "evidence") as folder:
        told = {"row_id": frame["row_id"], "label": frame["label"], "score": scores, "champion_score": scores}
        pd.DataFrame(told).to_parquet(folder / "predictions.parquet")
        evidence.write(folder)
    with publishing(root / "version") as folder:
        ModelVersionRef(
            name="tiny", version="2", digest=digests["2"], gate_passed=True, gate=(),
            champion_version="1" if champion else "", champion_digest=digests["1"] if champion else "",
            evidence_digest=evidence.record_digest,
        ).write(folder)  # fmt: skip


def roll(root: Path, recipe: Recipe, client: Any, run_id: str) -> RolloutReport:
    """The rollout's public function, with a stack on the cluster."""
    folders = [root / name for name in ("version", "set", "evidence")]
    first = not ModelVersionRef.read(root / "version").champion_version
    dirs: dict[str, Path | None] = {"stable": None if first else root / "model-1", "candidate": root / "model-2"}
    home = Home.at(root / "home")
    with closing(Ledger(home.ledger_url)) as ledger:
        opening: Any = lambda: open_here(recipe, home, root / "set", client)  # noqa: E731
        return roll_out(recipe, *folders, root / f"report-{run_id}", opening, dirs, ledger, run_id)


def main() -> int:
    """One controller as a process of its own, so that a test can kill it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--canary-requests", type=int, default=30)
    given = parser.parse_args()
    from components.serving.cluster import connect

    ports = json.loads((given.root / "ports.json").read_text())
    recipe = recipe_for(given.root, tuple(ports), min_canary_requests=given.canary_requests)
    client = connect({"KUBECONFIG": str(given.root / "kubeconfig"), "HOME": os.environ.get("HOME", "/")})
    print(json.dumps({"outcome": roll(given.root, recipe, client, given.run).outcome}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
