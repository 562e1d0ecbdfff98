"""A TrainJob says what the recipe and the pool say, in the words of the published schema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from components.core.paths import PROJECT_ROOT
from components.training.backends.trainjob_spec import trainjob
from pipelines.gpu_pools import POOLS
from pipelines.training_jobs import render
from tests.fakes.golden import check_golden
from tests.fakes.training_launch import launch_for, recipe_for

VALIDATOR = PROJECT_ROOT.parent / "shared" / "tools" / "validate_manifests.py"
CASES = {
    "cpu": {},
    "h100-two-nodes": {"accelerator": "h100", "nodes": 2, "queue": "night", "namespace": "training"},
    **{name: {"accelerator": name} for name in sorted(POOLS)},
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_trainjob_is_the_golden_one(case: str) -> None:
    """Byte-identical to what was reviewed."""
    launch = launch_for("trainjob", 4, **CASES[case])  # type: ignore[arg-type]
    check_golden(f"trainjob-{case}.yaml", yaml.safe_dump(trainjob(launch), sort_keys=False))


def test_every_trainjob_and_manifest_is_valid_for_the_published_schemas(tmp_path: Path) -> None:
    """Golden TrainJobs, and what a cluster needs beside them, against the CRDs' own schemas."""
    if not VALIDATOR.exists():
        pytest.skip("the schemas are not beside this checkout (../shared)")
    files = sorted((PROJECT_ROOT / "tests" / "golden").glob("trainjob-*.yaml"))
    assert len(files) == len(CASES)
    manifests = PROJECT_ROOT / "deploy" / "kubernetes" / "training"
    done = subprocess.run(
        [sys.executable, str(VALIDATOR), *map(str, files), str(manifests)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("TrainJob") == len(CASES)


def test_secrets_enter_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the environment of who submits is not in the TrainJob; the ranks get it from the cluster's Secret."""
    monkeypatch.setenv("PILOTLINE_MLFLOW_URI", "postgresql://me:planted-secret@db/mlflow")
    _, text = render(recipe_for("trainjob", accelerator="h100"))
    assert "planted-secret" not in text
    (entry,) = [one for one in yaml.safe_load(text)["spec"]["trainer"]["env"] if one["name"] == "PILOTLINE_MLFLOW_URI"]
    assert entry["valueFrom"]["secretKeyRef"] == {"name": "pilotline-tracking", "key": "mlflow-uri", "optional": True}


def test_the_trainers_own_variables_are_left_to_it() -> None:
    """PET_* and the rendezvous are set by the trainer, which refuses a TrainJob that sets them."""
    spec = trainjob(launch_for("trainjob", 4, accelerator="h100", nodes=2))["spec"]["trainer"]
    assert not [one for one in spec["env"] if one["name"].startswith("PET_")]
    assert not [word for word in spec["command"] if word.startswith(("--nnodes", "--nproc", "--master", "--node-rank"))]
    assert (spec["numNodes"], spec["numProcPerNode"]) == (2, 2)


def test_the_runtime_restarts_a_gang_as_often_as_the_pools_say() -> None:
    """The shipped TrainingRuntime is the one that pools name, with their retries and one container that is patched."""
    path = PROJECT_ROOT / "deploy" / "kubernetes" / "training" / "runtime.yaml"
    runtime = yaml.safe_load(path.read_text())
    for pool in POOLS.values():
        assert runtime["metadata"]["name"] == pool.runtime
        assert runtime["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] == pool.retries
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert [one["name"] for one in job["template"]["spec"]["template"]["spec"]["containers"]] == ["node"]


def test_queue_priority_and_topology_of_the_pools_are_shipped() -> None:
    """What a default TrainJob names exists once deploy/kubernetes/training is applied."""
    documents = list(
        yaml.safe_load_all((PROJECT_ROOT / "deploy" / "kubernetes" / "training" / "queues.yaml").read_text())
    )
    names = {kind: [one["metadata"]["name"] for one in documents if one["kind"] == kind] for kind in
             ("LocalQueue", "WorkloadPriorityClass", "ResourceFlavor")}  # fmt: skip
    levels = [level["nodeLabel"] for one in documents if one["kind"] == "Topology" for level in one["spec"]["levels"]]
    for name, pool in POOLS.items():
        assert pool.queue in names["LocalQueue"]
        assert pool.priority in names["WorkloadPriorityClass"]
        assert pool.topology in levels
        (flavor,) = [one for one in documents if one["kind"] == "ResourceFlavor" and one["metadata"]["name"] == name]
        assert flavor["spec"]["nodeLabels"] == pool.node_selector
