"""Adapters are resumed as whole models are: to the byte in their own shape, within the tolerance in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.core.recipe import Recipe
from components.core.records import ModelRef
from components.training.failpoints import VARIABLE
from tests.fakes import forked_ranks
from tests.fakes.tiny_initial import tiny_initial
from tests.fakes.training_case import publish_training_set, tiny_recipe
from tests.fakes.training_runs import curve

TOLERANCE = 1e-5  # of a loss near 1, after ten more steps in another shape


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [{}, pytest.param({"ranks": 1, "zero_stage": 2}, marks=pytest.mark.full)], ids=["same", "other"]
)
def test_adapters_resume_to_the_byte_and_in_another_shape_within_the_tolerance(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    """Interrupted, two ranks go on as if undisturbed, and one rank at another stage nearly so."""
    tiny_initial(tmp_path / "initial")
    publish_training_set(tmp_path / "set")
    text = _recipe(tmp_path).to_json()
    undisturbed = _run(tmp_path / "undisturbed", tmp_path / "set", text)
    assert isinstance(undisturbed, ModelRef), undisturbed
    assert "saved step" in str(_run(tmp_path / "resumed", tmp_path / "set", text, "rank.step@0#7=term"))
    model = _run(tmp_path / "resumed", tmp_path / "set", _recipe(tmp_path, **shape).to_json())
    assert isinstance(model, ModelRef), model
    assert 7 <= model.resumed_from_step < 20
    if not shape:
        assert (model.digest, model.adapter_digest) == (undisturbed.digest, undisturbed.adapter_digest)
        assert curve(model) == curve(undisturbed)
        return
    assert model.world_size == 1
    for got, wanted in zip(curve(model), curve(undisturbed), strict=True):
        assert got.get("lr") == wanted.get("lr")
        for loss in {"loss", "validation_loss"} & wanted.keys():
            assert got[loss] == pytest.approx(wanted[loss], abs=TOLERANCE)


def _recipe(root: Path, **training: object) -> Recipe:
    about = {"initial": str(root / "initial"), "text_form": "plain"}
    lora = {"tuning": "lora", "steps": 20, "checkpoint_every_steps": 5, "patience": 50, "learning_rate": 1e-2}
    return tiny_recipe(model=about, training=lora | training)


def _run(root: Path, source: Path, text: str, failpoint: str = "") -> object:
    root.mkdir(exist_ok=True)
    if not (root / "set").exists():
        (root / "set").symlink_to(source)
    return forked_ranks.run(root, text, {VARIABLE: failpoint} if failpoint else {})
