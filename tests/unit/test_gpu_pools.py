"""Profiles change where a step runs, never what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.recipe import Resources
from pipelines.compile import Package, compile_pipeline, read_package
from pipelines.gpu_pools import HOME_MOUNT, POOLS, PRIORITY_LABEL, QUEUE_LABEL, for_cluster, pool_for
from tests.fakes.demo_pipeline import demo
from tests.fakes.training_case import tiny_recipe

PRODUCTS = {  # as NVIDIA's GPU feature discovery labels the nodes
    "a100": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    "h100": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    "h200": {"nvidia.com/gpu.product": "NVIDIA-H200"},
    "l4": {"nvidia.com/gpu.product": "NVIDIA-L4"},
}
OWN = """
[defaults]
queue = "batch"
[pools.h100]
node_selector = { "cloud.google.com/gke-accelerator" = "nvidia-h100-80gb" }
tolerations = []
[pools.b200]
planner_gpu = ""
node_selector = { gpu = "b200" }
memory_gib = 180
cpu_per_gpu = 24
host_memory_gib_per_gpu = 250
shm_gib_per_gpu = 32
gres = "gpu:b200"
env = { NCCL_DEBUG = "INFO" }
"""


def _compiled(folder: Path, profile: str, resources: Resources | None = None) -> Package:
    return read_package(compile_pipeline(demo(profile, resources), folder / f"{profile}.yaml", profile))


def _gib(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _without_settings(package: Package) -> Any:
    """The pipeline without what a profile may set."""
    spec = package.spec
    for executor in spec["deploymentSpec"]["executors"].values():
        executor["container"].pop("resources", None)
        executor["container"].pop("env", None)
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
    assert settings["nodeSelector"]["labels"] == PRODUCTS[accelerator]
    assert settings["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert settings["podMetadata"]["labels"] == {QUEUE_LABEL: "team-a", PRIORITY_LABEL: "pilotline-training"}
    (shm,) = settings["emptyDirMounts"]
    assert (shm["mountPath"], shm["medium"]) == ("/dev/shm", "Memory")
    asked = package.executors["exec-train"]["container"]["resources"]
    assert asked["accelerator"]["resourceType"] == "nvidia.com/gpu"
    assert asked["accelerator"]["resourceCount"] == "4"
    assert _gib(asked["resourceMemoryLimit"]) == _gib(asked["resourceMemoryRequest"]) + _gib(shm["sizeLimit"])
    assert settings["secretAsEnv"][0]["keyToEnv"][0]["envVar"] == "PILOTLINE_MLFLOW_URI"
    assert int(settings["activeDeadlineSeconds"]) == pool.timeout_minutes * 60
    assert {one["name"]: one["value"] for one in package.executors["exec-train"]["container"]["env"]} == pool.env
    assert pool.env["NCCL_DEBUG"] == "WARN"
    retry = package.spec["root"]["dag"]["tasks"]["train"]["retryPolicy"]
    assert retry["maxRetryCount"] == 2
    assert retry["backoffFactor"] == 2.0
    assert retry["backoffDuration"] == "30s"


def test_empty_resources_take_the_defaults(tmp_path: Path) -> None:
    """The laptop recipe compiles for the pool: one GPU of the default kind on the default queue."""
    package = _compiled(tmp_path, "gpu-pool", Resources())
    assert package.kubernetes["exec-train"]["podMetadata"]["labels"][QUEUE_LABEL] == "pilotline"
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


def test_pools_of_ones_own_replace_single_settings_and_add_pools(tmp_path: Path) -> None:
    """Another cluster's label names need no code: a file says what differs, and the rest stays as shipped."""
    (tmp_path / "own.toml").write_text(OWN)
    mine = Resources(accelerator="h100", pools=str(tmp_path / "own.toml"))
    settings = _compiled(tmp_path, "gpu-pool", mine).kubernetes["exec-train"]
    assert settings["nodeSelector"]["labels"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert "tolerations" not in settings
    assert settings["podMetadata"]["labels"][QUEUE_LABEL] == "batch"
    assert pool_for(mine).shm_gib_per_gpu == pool_for(Resources(accelerator="h100")).shm_gib_per_gpu
    other = _compiled(tmp_path, "gpu-pool", Resources(accelerator="b200", pools=mine.pools))
    assert other.kubernetes["exec-train"]["nodeSelector"]["labels"] == {"gpu": "b200"}


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"accelerator": "h10"}, r"'h10': no such pool \(known: a100, cpu, h100, h200, l4\); did you mean 'h100'"),
        ({"accelerator": "b200"}, r"'b200': no such pool \(known: a100, cpu, h100, h200, l4\)"),
        ({"pools": "absent.toml"}, r"resources\.pools 'absent\.toml': not found"),
        ({"accelerator": "l4", "pool": {"shm_gib": 3}}, r"pool 'l4' has an unknown setting 'shm_gib'; did you mean"),
        ({"accelerator": "l4", "pool": {"retries": -1}}, r"pool 'l4', setting 'retries': .* got '-1'"),
        ({"accelerator": "l4", "pool": {"qos": "a b"}}, r"pool 'l4', setting 'qos'"),
    ],
)
def test_a_pool_that_is_none_is_one_line_with_the_known_ones(resources: dict[str, Any], said: str) -> None:
    """What, where and what to do; nothing is compiled."""
    with pytest.raises(UserError, match=said) as refused:
        pool_for(Resources(**resources))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["[pools.x", "[pool.x]\n", "[pools]\nx = 1\n", "defaults = 3\n"])
def test_a_pool_file_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    """Not TOML, an unknown table, a pool that is no table: named with the file."""
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(UserError, match=r"resources\.pools .*own\.toml") as refused:
        pool_for(Resources(pools=str(tmp_path / "own.toml")))
    assert "\n" not in str(refused.value)


def test_a_recipe_for_pods_names_no_file_of_this_machine(tmp_path: Path) -> None:
    """The pool travels in the recipe: in the pod the same settings hold without the file."""
    (tmp_path / "own.toml").write_text(OWN)
    recipe = tiny_recipe(training={"ranks": 2})
    mine = recipe.model_copy(
        update={"resources": Resources(accelerator="b200", pools=str(tmp_path / "own.toml"), queue="q")}
    )
    sent = for_cluster(mine, "gpu-pool")
    assert str(tmp_path) not in sent.to_json()
    assert pool_for(sent.resources) == pool_for(mine.resources)
    assert (sent.resources.queue, sent.resources.profile) == ("q", "gpu-pool")
    assert for_cluster(sent, "gpu-pool") == sent
    assert for_cluster(mine, "laptop") == mine


def test_a_pod_does_not_submit_to_slurm() -> None:
    """Refused when the file is compiled, with the back-ends that can."""
    with pytest.raises(UserError, match="use trainjob or local"):
        for_cluster(tiny_recipe(training={"backend": "slurm"}), "gpu-pool")
