"""Failure 10: a ZeRO checkpoint refuses another number of GPUs (deepspeedai/DeepSpeed#2898, #5405).

Save at 2 ranks, resume at 1, and at 2 with another stage: the same job goes on with the global batch as it was, or it
is refused before a rank starts. The curve's tolerance and the other shapes: tests/integration/test_training_resume.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from components.core.errors import UserError
from components.core.records import ModelRef
from components.training import universal
from components.training.failpoints import VARIABLE
from components.training.job import Job
from components.training.restart import train_to_the_end
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set
from tests.fakes.training_runs import curve, recipe, undisturbed

TOLERANCE = 1e-5


@pytest.mark.slow
def test_saved_at_two_ranks_it_goes_on_at_one_and_at_two_with_another_stage(tmp_path: Path) -> None:
    """Three shapes in one run: rates and batches exact, the loss within the tolerance."""
    publish_training_set(tmp_path / "set")
    for shape, nth in (({}, 7), ({"ranks": 1}, 3)):
        env = {VARIABLE: f"rank.step@0#{nth}=term"}
        assert "saved step" in str(forked_ranks.run(tmp_path, recipe(**shape).to_json(), env))
    model = forked_ranks.run(tmp_path, recipe(ranks=2, zero_stage=2).to_json())
    assert isinstance(model, ModelRef), model
    assert (model.world_size, model.zero_stage) == (2, 2)
    for got, wanted in zip(curve(model), curve(undisturbed()), strict=True):
        assert got["step"] == wanted["step"]
        assert got.get("lr") == wanted.get("lr")
        for name in {"loss", "validation_loss"} & set(wanted):
            assert got[name] == pytest.approx(wanted[name], abs=TOLERANCE)


def test_a_shape_that_cannot_be_had_is_refused_with_no_rank_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before memory is taken: the line names the stages that can go on."""
    from tests.unit.test_training_checkpoint import KEY, checkpoint

    job = Job(tmp_path, KEY, recipe(zero_stage=3))
    job.write()
    checkpoint(tmp_path, 5)
    monkeypatch.setattr(universal, "spawn", None)
    with pytest.raises(UserError, match=r"set training\.zero_stage to 1 or 2"):
        train_to_the_end(job, None, tmp_path / "log", None)  # type: ignore[arg-type]
    assert not (tmp_path / "log").exists()


def test_a_batch_that_does_not_divide_is_refused_in_the_recipe() -> None:
    """The global batch is never changed to fit."""
    with pytest.raises(UserError, match="multiple"):
        recipe(ranks=3)
    with pytest.raises(UserError, match="multiple"):
        recipe(ranks=4, accumulation=4)


def test_the_folder_is_the_same_whatever_the_shape(tmp_path: Path) -> None:
    """One job, one folder: its checkpoints are found from every shape."""
    publish_training_set(tmp_path / "set")
    from components.core.records import TrainingSetRef
    from components.training.job import training_key

    ref = TrainingSetRef.read(tmp_path / "set")
    keys = {training_key(recipe(ranks=ranks, zero_stage=stage), ref) for ranks in (1, 2) for stage in range(4)}
    assert len(keys) == 1
