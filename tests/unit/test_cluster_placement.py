"""Replicas in a cluster go where the recipe's pool is, and what cannot be honoured there is refused in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.home import Home
from components.core.recipe import Recipe
from pipelines.cluster_placement import cluster_of, placement_of
from pipelines.gpu_pools import for_cluster
from pipelines.wiring import open_stack
from tests.fakes.serving_case import tiny_recipe

PRODUCT = "nvidia.com/gpu.product"


def _recipe(cluster: dict[str, Any] | None = None, **resources: Any) -> Recipe:
    return tiny_recipe(serving={"backend": "kubernetes", "cluster": cluster or {}}, resources=resources)


@pytest.mark.parametrize(("accelerator", "product", "cores", "memory"), [
    ("l4", "NVIDIA-L4", 8, 48), ("a100", "NVIDIA-A100-SXM4-80GB", 12, 120), ("h200", "NVIDIA-H200", 16, 240),
])  # fmt: skip
def test_replicas_land_on_the_pool_that_training_lands_on(
    accelerator: str, product: str, cores: int, memory: int
) -> None:
    """Selector, toleration, cores and memory a GPU are the pool's; one GPU where the recipe says nothing."""
    _, place = placement_of(_recipe(accelerator=accelerator))
    assert place.node_selector == {PRODUCT: product}
    assert place.tolerations == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert (place.gpus, place.resource, place.cpu, place.memory) == (1, "nvidia.com/gpu", str(cores), f"{memory}Gi")


def test_serving_may_name_a_pool_and_gpus_of_its_own() -> None:
    """Trained on A100s, served on two L4s of a node; without any pool on CPU nodes, without a GPU."""
    _, place = placement_of(_recipe({"accelerator": "l4", "gpus": 2}, accelerator="a100"))
    assert (place.node_selector, place.gpus, place.cpu) == ({PRODUCT: "NVIDIA-L4"}, 2, "16")
    _, place = placement_of(_recipe())
    assert (place.gpus, dict(place.node_selector), list(place.tolerations)) == (0, {}, [])


def test_a_clusters_own_labels_come_from_the_recipes_pool() -> None:
    """What a recipe says of its pool holds for replicas too."""
    own = {"node_selector": {"gpu": "x"}, "tolerations": [{"key": "only", "operator": "Equal", "value": "gpus"}]}
    _, place = placement_of(_recipe(accelerator="l4", pool=own))
    assert place.node_selector == {"gpu": "x"}
    assert place.tolerations == [{"key": "only", "operator": "Equal", "value": "gpus", "effect": "NoSchedule"}]


@pytest.mark.parametrize(("cluster", "resources", "said"), [
    ({"gpus": 2}, {}, r"pool cpu has none"),
    ({"gpus": 9}, {"accelerator": "l4"}, r"a node of pool l4 has 8"),
    ({"accelerator": "l5"}, {}, r"'l5': no such pool"),
    ({"replicas": 3, "most_replicas": 2}, {}, r"less than replicas 3"),
])  # fmt: skip
def test_what_no_node_has_is_refused_when_the_file_is_compiled(
    cluster: dict[str, Any], resources: dict[str, Any], said: str
) -> None:
    """Before anything is uploaded; the line names the key."""
    with pytest.raises(UserError, match=said) as refused:
        for_cluster(_recipe(cluster, **resources | {"accelerator": resources.get("accelerator", "cpu")}), "gpu-pool")
    assert "\n" not in str(refused.value)


def test_what_a_clusters_replicas_cannot_do_is_refused(tmp_path: Path) -> None:
    """Adapters on a shared base, the reference engine, and a home that pods do not mount."""
    adapters = tiny_recipe(serving={"backend": "kubernetes", "adapter_base": "base"})
    with pytest.raises(UserError, match="serve whole models"):
        placement_of(adapters)
    step: Any = SimpleNamespace(recipe=_recipe(), home=Home.at(tmp_path), run_id="run-1")
    with pytest.raises(UserError, match="engine reference"), open_stack(step, "reference", tmp_path):
        pass
    with pytest.raises(UserError, match=r"mounted at /pilotline; run with --home /pilotline"):
        cluster_of(_recipe(), Home.at(tmp_path))


def test_the_longest_request_is_a_live_stream() -> None:
    """What the route allows and a pod's grace period waits for."""
    recipe = tiny_recipe(
        serving={"backend": "kubernetes", "request_timeout_seconds": 7.0, "stream_seconds": 50.0},
        resources={"pool": {"volume": {"claim": "c", "mount": "/srv"}}},
    )
    assert cluster_of(recipe, Home(Path("/srv/home"))).longest_request_seconds == 57.0
