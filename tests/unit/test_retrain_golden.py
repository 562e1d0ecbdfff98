"""The compiled retraining pipeline: the file that is run locally and uploaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.core.image import IMAGE
from components.core.paths import PROJECT_ROOT
from components.core.recipe import load_recipe
from pipelines.compile import compile_retrain, read_package
from pipelines.recipes import locate
from tests.fakes.golden import check_golden

STEPS = {"ingest", "validate", "featurise", "guard", "train", "evaluate", "register", "rollout", "promote", "finish"}


@pytest.mark.parametrize("profile", ["laptop", "gpu-pool"])
def test_the_compiled_pipeline_is_the_golden_one(profile: str, tmp_path: Path) -> None:
    """Byte-identical from one compile to the next, and to the file under golden/."""
    recipe = load_recipe(locate("laptop"))
    first = compile_retrain(recipe, tmp_path / "a.yaml", profile, with_recipe=False)
    second = compile_retrain(recipe, tmp_path / "b.yaml", profile, with_recipe=False)
    assert first.read_bytes() == second.read_bytes()
    check_golden(f"retrain-{profile}.yaml", first.read_text())


def test_every_step_names_the_one_image(tmp_path: Path) -> None:
    """The Dockerfile's name is the image of every executor."""
    package = read_package(compile_retrain(load_recipe(locate("laptop")), tmp_path / "a.yaml", "laptop"))
    assert {label.removeprefix("exec-") for label in package.executors} == STEPS
    assert {executor["container"]["image"] for executor in package.executors.values()} == {IMAGE}
    assert f'"{IMAGE}"' in (PROJECT_ROOT / "deploy" / "images" / "Dockerfile").read_text()


def test_the_training_step_is_on_a_gpu_pool(tmp_path: Path) -> None:
    """Selector, toleration, accelerator, shared memory, queue label and secrets, on train alone."""
    recipe = load_recipe(locate("laptop"), ["resources.accelerator=h100", "resources.gpus=4", "resources.queue=night"])
    package = read_package(compile_retrain(recipe, tmp_path / "a.yaml", "gpu-pool"))
    train = package.kubernetes["exec-train"]
    assert list(train["nodeSelector"]["labels"].values()) == ["NVIDIA-H100-80GB-HBM3"]
    assert train["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert train["emptyDirMounts"][0]["medium"] == "Memory"
    assert train["podMetadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "night"
    assert train["secretAsEnv"]
    accelerator = package.executors["exec-train"]["container"]["resources"]["accelerator"]
    assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("nvidia.com/gpu", "4")
    assert [label for label, found in package.kubernetes.items() if "nodeSelector" in found] == ["exec-train"]


def test_a_step_that_starts_a_trainjob_waits_without_a_gpu(tmp_path: Path) -> None:
    """The TrainJob takes the GPUs: a step that held some meanwhile would wait for itself in a full queue."""
    recipe = load_recipe(locate("laptop"), ["resources.accelerator=h100", "training.backend=trainjob"])
    package = read_package(compile_retrain(recipe, tmp_path / "a.yaml", "gpu-pool"))
    settings = package.kubernetes["exec-train"]
    assert not {"nodeSelector", "tolerations", "emptyDirMounts", "podMetadata"} & set(settings)
    assert "accelerator" not in package.executors["exec-train"]["container"]["resources"]
    assert settings["secretAsEnv"]
    assert int(settings["activeDeadlineSeconds"]) == 24 * 3600


def test_parameters_are_described() -> None:
    """What the Kubeflow UI shows beside a field is there for every pipeline parameter and every step."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        package = read_package(compile_retrain(load_recipe(locate("laptop")), Path(folder) / "a.yaml", "laptop"))
    assert all(parameter.get("description") for parameter in package.parameters.values())
