"""Failure 13: one pod fails and the gang cannot rejoin (kubeflow/trainer#2000).

The whole gang restarts from the last checkpoint, whichever rank died; a finished job stays finished.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from components.core.records import ModelRef
from tests.fakes import forked_ranks
from tests.fakes.training_runs import disturbed, recipe, same_as_undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_dead_rank_restarts_the_gang_and_a_finished_job_stays_finished(tmp_path: Path, rank: int) -> None:
    """Killed between two checkpoints: the same weights in the end, and running again starts no rank."""
    model = disturbed(tmp_path, f"rank.step@{rank}#8=kill")
    same_as_undisturbed(model)
    assert isinstance(model, ModelRef)
    assert model.resumed_from_step == 5
    log = (tmp_path / "log").read_text()
    assert log.count("the whole gang starts again") == 1
    assert log.count("starting at step") == 2
    again = forked_ranks.run(tmp_path, recipe(ranks=1).to_json())  # also when asked for in another shape
    assert isinstance(again, ModelRef), again
    assert (again.digest, again.world_size) == (model.digest, 2)
    assert (tmp_path / "log").read_text() == log
