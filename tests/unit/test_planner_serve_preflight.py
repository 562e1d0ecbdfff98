"""Preflight: what cannot fit is refused in one line, what can is never refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.core.errors import PolicyRefusal
from components.core.recipe import Recipe, load_recipe
from components.planner.preflight import architecture_of, judge_memory, local_needs
from pipelines.compile import compile_retrain
from pipelines.preflight import check_pool, check_rollout, check_run, machine_memory_gib
from pipelines.recipes import locate

LARGE = ["model.hidden_size=4096", "model.heads=32", "model.layers=32", "model.intermediate_size=14336"]


def _recipe(*overrides: str, name: str = "laptop") -> Recipe:
    return load_recipe(locate(name), overrides)


@pytest.mark.parametrize("name", ["laptop", "complaints-real"])
@pytest.mark.parametrize("engine", ["vllm", "reference"])
def test_shipped_recipes_fit_eight_gib(name: str, engine: str) -> None:
    """Also with three fifths of it taken by others."""
    check_run(_recipe(name=name), engine, memory_gib=8.0)
    check_rollout(_recipe(name=name), engine, memory_gib=8.0)
    assert all(need.gib < 0.45 * 8.0 for need in local_needs(_recipe(name=name), engine))


def test_the_recipes_model_is_counted_as_it_is_built() -> None:
    """Untied embeddings, four square attention matrices and a gated block a layer; norms left out."""
    model = _recipe().model
    layer = 4 * model.hidden_size**2 + 3 * model.hidden_size * model.intermediate_size
    counted = 2 * model.vocabulary * model.hidden_size + model.layers * layer
    assert architecture_of(_recipe()).params == pytest.approx(counted, rel=0.01)


def test_a_model_too_large_is_refused_in_one_line_that_names_a_way_out() -> None:
    """Exit 3, with what is needed, what there is, and what would fit."""
    with pytest.raises(PolicyRefusal, match=r"needs at least \d+\.\d GiB .* this machine has 16.0 .*take a") as caught:
        check_run(_recipe(*LARGE), "vllm", memory_gib=16.0)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_cache_too_large_is_refused_before_servers_start() -> None:
    """The mend names the key that asks for it."""
    with pytest.raises(PolicyRefusal, match=r"lower serving\.kv_cache_gib"):
        check_rollout(_recipe("serving.kv_cache_gib=40"), "vllm", memory_gib=64.0)
    check_rollout(_recipe("serving.kv_cache_gib=40"), "reference", memory_gib=8.0)


def test_a_machine_with_gpus_is_not_judged_by_its_own_memory() -> None:
    """Models lie on the GPUs there."""
    check_run(_recipe(*LARGE), "vllm", gpus=1, memory_gib=16.0)


def test_needs_grow_with_what_they_are_made_of() -> None:
    """More batch, more ranks, more model: never less memory; and just enough passes."""
    plain = local_needs(_recipe(), "vllm")[0]
    for more in ("training.batch_size=3200", "training.ranks=4", "model.layers=12"):
        assert local_needs(_recipe(more), "vllm")[0].gib > plain.gib
    assert judge_memory([plain], plain.gib)[0].outcome == "pass"
    assert judge_memory([plain], plain.gib * 0.999)[0].outcome == "fail"


def test_this_machines_memory_is_seen() -> None:
    """Some of it, and not more than there could be."""
    assert 0.5 < machine_memory_gib() < 100_000


def test_a_pool_whose_gpus_are_too_small_is_refused_when_compiling(tmp_path: Path) -> None:
    """Nothing is written; with larger or more GPUs the same recipe compiles."""
    out = tmp_path / "retrain.yaml"
    with pytest.raises(PolicyRefusal, match="pool l4 has 22"):
        compile_retrain(_recipe(*LARGE, "resources.accelerator=l4"), out, "gpu-pool")
    assert not out.exists()
    check_pool(_recipe(*LARGE, "training.zero_stage=3", "resources.accelerator=h200", "resources.gpus=8"))
    check_pool(_recipe("resources.accelerator=l4"))
