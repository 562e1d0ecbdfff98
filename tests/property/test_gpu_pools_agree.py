"""One profile, two files: the pipeline's training step and the TrainJob agree on every setting that both have."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from components.core.recipe import Recipe
from components.training.backends.trainjob_spec import trainjob
from pipelines.compile import compile_retrain, read_package
from tests.fakes.training_launch import KEY, Launch, recipe_for

LABELS = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
KEYS = st.from_regex(r"[a-z]{1,6}\.example/[a-z]{1,8}", fullmatch=True)
SIZES = st.integers(1, 64)
OWN = st.fixed_dictionaries(
    {},
    optional={
        "node_selector": st.dictionaries(KEYS, LABELS, min_size=1, max_size=3),
        "tolerations": st.lists(
            st.fixed_dictionaries({"key": KEYS, "operator": st.just("Equal"), "value": LABELS}), max_size=2
        ),
        "resource": st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu"]),
        "cpu_per_gpu": SIZES,
        "host_memory_gib_per_gpu": SIZES,
        "shm_gib_per_gpu": SIZES,
        "timeout_minutes": st.integers(1, 10_000),
        "volume": st.fixed_dictionaries({"claim": LABELS, "mount": LABELS.map("/{}".format)}),
        "secrets": st.lists(
            st.fixed_dictionaries({"name": LABELS, "keys": st.dictionaries(LABELS, LABELS.map(str.upper), min_size=1)}),
            max_size=2,
            unique_by=lambda secret: secret["name"],
        ),
        "env": st.dictionaries(LABELS.map(lambda name: f"NCCL_{name.upper()}"), LABELS, max_size=3),
    },
)


@st.composite
def resources(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """Ranks and the [resources] of a recipe for one node."""
    ranks = draw(st.integers(1, 4))
    return ranks, {
        "accelerator": draw(st.sampled_from(["a100", "h100", "h200", "l4"])),
        "gpus": draw(st.sampled_from([0, ranks, 8])),
        "queue": draw(st.one_of(st.just(""), LABELS)),
        "priority": draw(st.one_of(st.just(""), LABELS)),
        "pool": draw(OWN),
    }


@pytest.mark.slow
@settings(
    deadline=None, max_examples=8, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # each compiles a pipeline
@given(asked=resources())
def test_pipeline_and_trainjob_agree_on_every_shared_setting(asked: tuple[int, dict[str, Any]]) -> None:
    """Read back from both files: where it lands, what it gets, how long it may run, what it sees."""
    ranks, chosen = asked
    there = _of_trainjob(
        trainjob(Launch(KEY, Path("/x/job.json"), recipe_for("trainjob", ranks, **chosen), Path("/l")))
    )
    step = _of_pipeline(recipe_for("local", ranks, **chosen))
    assert step == there
    for name, where in (("node_selector", "selector"), ("env", "env")):
        if name in chosen["pool"]:
            assert there[where] == chosen["pool"][name]
    assert there["gpus"] == (chosen["gpus"] or ranks)


def _of_trainjob(body: dict[str, Any]) -> dict[str, Any]:
    spec = body["spec"]
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    asked, limits = spec["trainer"]["resourcesPerNode"]["requests"], spec["trainer"]["resourcesPerNode"]["limits"]
    (resource,) = set(limits) - {"memory"}
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    env = spec["trainer"]["env"]
    return {
        "selector": pod["nodeSelector"],
        "tolerations": _tolerations(pod.get("tolerations", [])),
        "labels": {name: value for name, value in body["metadata"]["labels"].items() if name.startswith("kueue")},
        "resource": resource,
        "gpus": int(limits[resource]),
        "cpu": float(asked["cpu"]),
        "memory": (asked["memory"], limits["memory"]),
        "shm": (mounts["shm"], volumes["shm"]["emptyDir"]),
        "volume": (volumes["home"]["persistentVolumeClaim"]["claimName"], mounts["home"]),
        "seconds": spec["activeDeadlineSeconds"],
        "secrets": sorted(
            (one["valueFrom"]["secretKeyRef"]["name"], one["valueFrom"]["secretKeyRef"]["key"], one["name"])
            for one in env
            if "valueFrom" in one
        ),
        "env": {one["name"]: one["value"] for one in env if one["name"].startswith(("NCCL", "TORCH_NCCL"))},
    }


def _of_pipeline(recipe: Recipe) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        package = read_package(compile_retrain(recipe, Path(folder) / "p.yaml", "gpu-pool"))
    settings_, container = package.kubernetes["exec-train"], package.executors["exec-train"]["container"]
    asked = container["resources"]
    (shm,), (volume,) = settings_["emptyDirMounts"], settings_["pvcMount"]
    return {
        "selector": settings_["nodeSelector"]["labels"],
        "tolerations": _tolerations(settings_.get("tolerations", [])),
        "labels": settings_["podMetadata"]["labels"],
        "resource": asked["accelerator"]["resourceType"],
        "gpus": int(asked["accelerator"]["resourceCount"]),
        "cpu": float(asked["resourceCpuRequest"]),
        "memory": (asked["resourceMemoryRequest"], asked["resourceMemoryLimit"]),
        "shm": (shm["mountPath"], {"medium": shm["medium"], "sizeLimit": shm["sizeLimit"]}),
        "volume": (volume["constant"], volume["mountPath"]),
        "seconds": int(settings_["activeDeadlineSeconds"]),
        "secrets": sorted(
            (secret["secretName"], pair["secretKey"], pair["envVar"])
            for secret in settings_.get("secretAsEnv", [])
            for pair in secret["keyToEnv"]
        ),
        "env": {one["name"]: one["value"] for one in container.get("env", [])},
    }


def _tolerations(found: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(
        ({name: value for name, value in one.items() if value} for one in found), key=lambda one: sorted(one.items())
    )
