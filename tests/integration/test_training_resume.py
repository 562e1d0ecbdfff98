"""A resumed run ends as an undisturbed one: to the byte in its own shape, within a tolerance in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.core.errors import TransientError, UserError
from components.core.records import ModelRef
from components.training.checkpoints import saved_steps
from components.training.failpoints import VARIABLE
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set
from tests.fakes.training_runs import curve, recipe, same_as_undisturbed, undisturbed

pytestmark = pytest.mark.slow
TOLERANCE = 1e-5  # of a loss near 1, after ten more steps in another shape


def interrupted(root: Path, **training: Any) -> Path:
    """A job in `root` that was told to end after its seventh step; returns its folder."""
    publish_training_set(root / "set")
    ended = forked_ranks.run(root, recipe(**training).to_json(), {VARIABLE: "rank.step@0#7=term"})
    assert isinstance(ended, TransientError), ended
    folder = next((root / "ck").glob("*/job.json")).parent
    assert f"saved step {saved_steps(folder)[-1]}" in str(ended)
    assert 7 <= saved_steps(folder)[-1] < 20
    return folder


def test_in_the_same_shape_the_resumed_run_is_the_undisturbed_one_to_the_byte(tmp_path: Path) -> None:
    """Weights by digest, the whole curve, learning rate and averages: preempted and continued changes nothing."""
    folder = interrupted(tmp_path)
    step = saved_steps(folder)[-1]
    model = forked_ranks.run(tmp_path, recipe().to_json())
    assert isinstance(model, ModelRef), model
    assert model.resumed_from_step == step
    same_as_undisturbed(model)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 1), (1, 2)),
        pytest.param((2, 2), (2, 1), marks=pytest.mark.full),
        pytest.param((1, 1), (2, 2), marks=pytest.mark.full),
        pytest.param((2, 3), (1, 3), marks=pytest.mark.full),
        pytest.param((2, 0), (1, 0), marks=pytest.mark.full),
    ],
    ids=lambda shape: f"{shape[0]} ranks stage {shape[1]}",
)
def test_in_another_shape_the_curve_agrees_and_rate_and_order_are_exact(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Failure 10's good half: other ranks and stages go on with the same batches, rates and, nearly, losses."""
    folder = interrupted(tmp_path, ranks=before[0], zero_stage=before[1])
    step = saved_steps(folder)[-1]
    model = forked_ranks.run(tmp_path, recipe(ranks=after[0], zero_stage=after[1]).to_json())
    assert isinstance(model, ModelRef), model
    assert model.resumed_from_step == step
    assert (model.world_size, model.zero_stage) == after
    expected = curve(undisturbed(*before))
    assert [point.get("lr") for point in curve(model)] == [point.get("lr") for point in expected]
    for got, wanted in zip(curve(model), expected, strict=True):
        for name in ("loss", "validation_loss"):
            if name in wanted:
                assert got[name] == pytest.approx(wanted[name], abs=TOLERANCE)
        if got["step"] <= step:
            assert got == wanted


@pytest.mark.parametrize(
    ("before", "after"), [(1, 3), *(pytest.param(*pair, marks=pytest.mark.full) for pair in ((1, 0), (0, 1), (3, 2)))]
)
def test_what_the_engine_cannot_convert_is_refused_before_a_rank_starts(
    tmp_path: Path, before: int, after: int
) -> None:
    """Stages 0, 1 and 2, and 3 keep their state in three forms: one line, nothing lost, and going back works."""
    interrupted(tmp_path, zero_stage=before)
    log = (tmp_path / "log").read_text()
    refused = forked_ranks.run(tmp_path, recipe(zero_stage=after).to_json())
    assert isinstance(refused, UserError), refused
    assert f"ZeRO stage {before}" in str(refused)
    assert "set training.zero_stage" in str(refused)
    assert (tmp_path / "log").read_text() == log
    assert isinstance(forked_ranks.run(tmp_path, recipe(zero_stage=before).to_json()), ModelRef)
