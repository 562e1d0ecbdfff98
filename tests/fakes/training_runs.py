"""One small job, trained undisturbed and disturbed, on forked ranks."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from components.core.recipe import Recipe
from components.core.records import ModelRef
from components.training.failpoints import ONCE, VARIABLE
from components.training.speed import MEASURED
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set, tiny_recipe


def recipe(**training: Any) -> Recipe:
    """Twenty steps, a checkpoint every five, no waiting before a restart."""
    short = {"steps": 20, "checkpoint_every_steps": 5, "patience": 50, "restart_wait_seconds": 0.1}
    return tiny_recipe(training=short | training)


@functools.cache
def undisturbed(ranks: int = 2, zero_stage: int = 1) -> ModelRef:
    """The model of this shape that nobody disturbed, trained once a test process."""
    with tempfile.TemporaryDirectory() as folder:
        publish_training_set(Path(folder) / "set")
        model = forked_ranks.run(Path(folder), recipe(ranks=ranks, zero_stage=zero_stage).to_json())
        assert isinstance(model, ModelRef), model
        return model


def curve(model: ModelRef) -> list[dict[str, float]]:
    """The learning curve without what is measured by the clock."""
    return [{name: value for name, value in point.items() if name not in MEASURED} for point in model.curve]


def same_as_undisturbed(model: object) -> None:
    """Assert that losses and final weights are those of the undisturbed run, to the byte."""
    assert isinstance(model, ModelRef), model
    assert curve(model) == curve(undisturbed())
    assert model.digest == undisturbed().digest


def job_folder(root: Path) -> Path:
    """The one job's folder."""
    (found,) = (root / "ck").glob("*/job.json")
    return found.parent


def disturbed(root: Path, failpoint: str, before: str = "", seconds: float = 600, **training: Any) -> Any:
    """Train in `root` with a failpoint that acts once, and again where that ended the launcher; what came out.

    Asserts that the failpoint was reached.
    """
    if not (root / "set").exists():
        publish_training_set(root / "set")
    text = recipe(**training).to_json()
    env = {VARIABLE: failpoint, ONCE: str(root / "once")}
    (root / "once").unlink(missing_ok=True)
    found = forked_ranks.run(root, text, env, seconds, before)
    assert (root / "once").exists(), f"{failpoint} was not reached"
    if found is None:  # the launcher was killed
        assert not (root / "out").exists() or failpoint.startswith("launch.published")
        found = forked_ranks.run(root, text, {}, seconds, before)
    return found
