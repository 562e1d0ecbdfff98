"""Profiles change where a step runs, never what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.recipe import Resources
from pipelines.compile import Package, compile_pipeline, read_package
from pipelines.gpu_pools import HOME_MOUNT, NEEDS, POOLS, QUEUE_LABEL
from tests.fakes.demo_pipeline import demo


def _compiled(folder: Path, profile: str, resources: Resources | None = None) -> Package:
    return read_package(compile_pipeline(demo(profile, resources), folder / f"{profile}.yaml", profile))


def _gib(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _without_settings(package: Package) -> Any:
    """The pipeline without what a profile may set."""
    spec = package.spec
    for executor in spec["deploymentSpec"]["executors"].values():
        executor["container"].pop("resources", None)
    for task in spec["root"]["dag"]["tasks"].values():
        task.pop("retryPolicy", None)
    return spec


def test_profiles_share_graph_and_components(tmp_path: Path) -> None:
    """Apart from resources and retries both files are the same pipeline."""
    laptop, pool = _compiled(tmp_path, "laptop"), _compiled(tmp_path, "gpu-pool")
    assert _without_settings(laptop) == _without_settings(pool)


def test_laptop_adds_nothing(tmp_path: Path) -> None:
    """The laptop file has no platform document, no resources and no retries."""
    package = _compiled(tmp_path, "laptop")
    assert package.platform == {}
    assert all("resources" not in executor["container"] for executor in package.executors.values())
    assert all("retryPolicy" not in task for task in package.spec["root"]["dag"]["tasks"].values())


@pytest.mark.parametrize("accelerator", sorted(POOLS))
def test_training_step_lands_on_the_named_pool(tmp_path: Path, accelerator: str) -> None:
    """Selector, toleration, accelerator, shared memory, queue, secret, timeout and retries are all there."""
    package = _compiled(tmp_path, "gpu-pool", Resources(accelerator=accelerator, gpus=4, queue="team-a"))
    pool, settings = POOLS[accelerator], package.kubernetes["exec-train"]
    assert settings["nodeSelector"]["labels"] == {"nvidia.com/gpu.product": pool.product}
    assert settings["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert settings["podMetadata"]["labels"] == {QUEUE_LABEL: "team-a"}
    (shm,) = settings["emptyDirMounts"]
    assert (shm["mountPath"], shm["medium"]) == ("/dev/shm", "Memory")
    asked = package.executors["exec-train"]["container"]["resources"]
    assert asked["accelerator"]["resourceType"] == "nvidia.com/gpu"
    assert asked["accelerator"]["resourceCount"] == "4"
    assert _gib(asked["resourceMemoryLimit"]) == _gib(asked["resourceMemoryRequest"]) + _gib(shm["sizeLimit"])
    assert settings["secretAsEnv"][0]["keyToEnv"][0]["envVar"] == "PILOTLINE_MLFLOW_URI"
    assert int(settings["activeDeadlineSeconds"]) == NEEDS["train"].timeout_minutes * 60
    retry = package.spec["root"]["dag"]["tasks"]["train"]["retryPolicy"]
    assert retry["maxRetryCount"] == 2
    assert retry["backoffFactor"] == 2.0
    assert retry["backoffDuration"] == "30s"


def test_empty_resources_take_the_defaults(tmp_path: Path) -> None:
    """The laptop recipe compiles for the pool: one GPU of the default kind on the default queue."""
    package = _compiled(tmp_path, "gpu-pool", Resources())
    assert package.kubernetes["exec-train"]["podMetadata"]["labels"] == {QUEUE_LABEL: "pilotline"}
    assert package.executors["exec-train"]["container"]["resources"]["accelerator"]["resourceCount"] == "1"


def test_other_steps_keep_off_the_pool_and_share_the_home(tmp_path: Path) -> None:
    """A CPU step has requests and the home, and no GPU, queue or tracking secret."""
    package = _compiled(tmp_path, "gpu-pool")
    settings, asked = package.kubernetes["exec-ingest"], package.executors["exec-ingest"]["container"]["resources"]
    assert settings["pvcMount"][0]["mountPath"] == HOME_MOUNT
    assert not {"nodeSelector", "tolerations", "emptyDirMounts", "podMetadata"} & set(settings)
    assert asked["resourceMemoryRequest"] == "8Gi"
    assert "accelerator" not in asked
    assert [secret["secretName"] for secret in settings["secretAsEnv"]] == ["pilotline-source"]


def test_secret_values_never_enter_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the compiling process's environment is not in the compiled file."""
    monkeypatch.setenv("PILOTLINE_MLFLOW_URI", "postgresql://user:planted-secret@db/mlflow")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    out = compile_pipeline(demo("gpu-pool"), tmp_path / "demo.yaml", "gpu-pool")
    assert "planted-secret" not in out.read_text()


def test_unknown_profile_is_named(tmp_path: Path) -> None:
    """A misspelt profile lists the known ones."""
    with pytest.raises(UserError, match="laptop, gpu-pool"):
        demo("gpu-pol")
