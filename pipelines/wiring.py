"""What a step gets from another room: looked up by name through `components.core.wiring`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.generators import GENERATORS

if TYPE_CHECKING:
    from components.core.protocols import ServingStack
    from components.core.steps import StepRun

__all__ = ["GENERATORS", "open_stack"]


def open_stack(step: StepRun, engine: str, training_set: Path) -> AbstractContextManager[ServingStack]:
    """The local serving stack for a rollout, with the online features of the run's training set."""
    from components.serving.engines import choose
    from components.serving.stack import LocalStack
    from pipelines.preflight import check_rollout

    choice = choose(engine)
    check_rollout(step.recipe, choice.engine.name, getattr(choice.engine, "gpus", 0))
    return LocalStack(
        recipe=step.recipe,
        home=step.home,
        run_id=step.run_id,
        training_set=training_set,
        choice=choice,
        port=step.recipe.serving.port or None,
    )
