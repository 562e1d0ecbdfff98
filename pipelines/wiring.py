"""What a step gets from another room: looked up by name through `components.core.wiring`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from components.core.errors import UserError
from pipelines.generators import GENERATORS

if TYPE_CHECKING:
    from components.core.contracts import ContractRef
    from components.core.home import Home
    from components.core.protocols import ServingStack
    from components.core.recipe import Recipe
    from components.core.steps import StepRun

__all__ = ["GENERATORS", "name_contract", "open_stack"]


def name_contract(recipe: Recipe, home: Home, expected_digest: str = "") -> ContractRef:
    """The contract that ingestion's snapshot names: loaded before the source is read."""
    from components.contract.evolution.accepted import name_contract as load_and_keep

    return load_and_keep(recipe, home, expected_digest)


@contextmanager
def open_stack(step: StepRun, engine: str, training_set: Path) -> Iterator[ServingStack]:
    """The serving stack for a rollout, here or in a cluster, with the online features of the run's training set.

    A model is served only with a signature by a key that the ledger trusts. Here the servers' largest memory is kept
    with the run, and PolicyRefusal raised where they cannot fit this machine, or what is free of it now.
    """
    if step.recipe.serving.backend == "kubernetes":
        from pipelines.cluster_serving import open_cluster

        if engine == "reference":
            raise UserError(
                'engine reference: a cluster serves by vLLM; use --engine vllm, or serving.backend = "local"'
            )
        with open_cluster(step.recipe, step.home, step.run_id, training_set) as cluster:
            step.say([f"serving in the cluster, namespace {step.recipe.serving.cluster.namespace}"])
            yield cluster
        return
    from components.registry.trust import check_before_serving
    from components.serving.engines import choose
    from components.serving.stack import LocalStack
    from pipelines.canary_room import check_room
    from pipelines.plan_record import SERVER_MEMORY
    from pipelines.preflight import check_rollout
    from pipelines.server_memory import ServerMemory

    choice = choose(engine)
    gpus = getattr(choice.engine, "gpus", 0)
    check_rollout(step.recipe, choice.engine.name, gpus)
    step.say([check_room(step.recipe, choice.engine.name, gpus)])
    memory = ServerMemory()
    stack = LocalStack(
        recipe=step.recipe,
        home=step.home,
        run_id=step.run_id,
        training_set=training_set,
        choice=choice,
        port=step.recipe.serving.port or None,
        check=check_before_serving(step.home.ledger_url),
    )
    try:
        with stack as opened, memory:
            yield opened
    finally:
        step.keep_beside(SERVER_MEMORY, {"engine": choice.engine.name, "peak_gib": memory.peak_gib})
