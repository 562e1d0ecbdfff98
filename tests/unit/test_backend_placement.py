"""What a recipe asks of a cluster is placed as a whole, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from components.core.errors import UserError
from components.training.backends.launch import Launch, backend_for, job_name, placement, rank_environment
from components.training.backends.local import LocalBackend
from tests.fakes.training_launch import KEY, launch_for, recipe_for


@pytest.mark.parametrize(
    ("backend", "resources", "said"),
    [
        ("local", {"nodes": 2}, r"resources\.nodes 2: the back-end local runs on one machine.*trainjob or slurm"),
        ("local", {"topology": "rack"}, r"resources\.topology 'rack': the back-end local cannot.*trainjob can"),
        ("slurm", {"topology": "rack"}, r"resources\.topology 'rack': the back-end slurm cannot.*trainjob can"),
        ("slurm", {"image": "x:1"}, r"resources\.image 'x:1': the back-end slurm cannot.*trainjob can"),
        ("slurm", {"namespace": "ml"}, r"resources\.namespace 'ml': the back-end slurm cannot.*trainjob can"),
    ],
)
def test_an_option_that_a_backend_cannot_honour_names_the_one_that_can(
    backend: str, resources: dict[str, Any], said: str
) -> None:
    """Ignored it would be worse than refused; the line is one line."""
    with pytest.raises(UserError, match=said) as refused:
        placement(recipe_for(backend, **resources))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("ranks", "resources", "said"),
    [
        (3, {"nodes": 2}, "ranks 3 cannot be spread evenly over resources.nodes 2"),
        (16, {"accelerator": "h100"}, "16 GPUs on a node: those of pool h100 have 8"),
        (4, {"accelerator": "h100", "gpus": 2}, "4 ranks share 2 GPUs"),
        (2, {"accelerator": "cpu", "gpus": 2}, "pool cpu has none"),
    ],
)
def test_ranks_nodes_and_gpus_that_do_not_fit_together_are_refused(
    ranks: int, resources: dict[str, Any], said: str
) -> None:
    """Before anything is submitted, with the number that is in the way."""
    with pytest.raises(UserError, match=said):
        placement(recipe_for("trainjob", ranks, **resources))


@pytest.mark.parametrize(
    ("resources", "pool", "gpus"),
    [
        ({}, "cpu", 0),
        ({"gpus": 2}, "a100", 2),
        ({"accelerator": "l4"}, "l4", 2),
        ({"profile": "gpu-pool"}, "a100", 2),
        ({"accelerator": "l4", "gpus": 4}, "l4", 4),
    ],
)
def test_gpus_are_asked_for_where_the_recipe_speaks_of_them(resources: dict[str, Any], pool: str, gpus: int) -> None:
    """No word of GPUs: ranks on CPUs, as on a laptop; else one a rank unless a number is named."""
    found = placement(recipe_for("trainjob", 2, **resources))
    assert (found.pool.name, found.gpus_per_node) == (pool, gpus)
    environment = rank_environment(found)
    assert environment["DS_ACCELERATOR"] == ("cuda" if gpus else "cpu")
    assert ("CUDA_VISIBLE_DEVICES" in environment) == (not gpus)


def test_topology_is_asked_for_only_where_ranks_are_on_several_nodes() -> None:
    """The pool's level is a wish among nodes; the recipe's own is taken as it is."""
    assert placement(recipe_for("trainjob", 4, accelerator="h100")).topology == ""
    assert placement(recipe_for("trainjob", 4, accelerator="h100", nodes=2)).topology == "topology.kubernetes.io/zone"
    assert placement(recipe_for("trainjob", 4, accelerator="h100", topology="rack")).topology == "rack"


def test_a_job_is_named_by_its_training_key() -> None:
    """Another key, another name; the name is a DNS label with room for the names of its pods."""
    assert launch_for("trainjob").name == job_name(KEY) == f"pilotline-{KEY[:20]}"
    assert job_name(KEY) != job_name("cd34" * 16)
    assert len(job_name(KEY)) <= 40


def test_the_backend_is_the_one_that_the_recipe_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """local needs nothing; the others say in one line what this machine lacks, and what would do instead."""
    assert isinstance(backend_for(recipe_for("local")), LocalBackend)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    with pytest.raises(UserError, match=r"no sbatch here.*local or trainjob"):
        backend_for(recipe_for("slurm"))
    with pytest.raises(UserError, match=r"no cluster is configured here.*local or slurm"):
        backend_for(recipe_for("trainjob"))


def test_a_machine_without_gpus_is_not_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """local refuses before it starts a process."""
    monkeypatch.setattr("pathlib.Path.exists", lambda _: False)
    launch: Launch = launch_for("local", accelerator="h100")
    with pytest.raises(UserError, match="asks for 2 GPUs of pool h100, and this machine has none"):
        LocalBackend().submit(launch)
