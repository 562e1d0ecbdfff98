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
    from components.serving.stack import LocalStack

    return LocalStack(
        recipe=step.recipe,
        home=step.home,
        run_id=step.run_id,
        training_set=training_set,
        engine=engine,
        port=step.recipe.serving.port or None,
    )
