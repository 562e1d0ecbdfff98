"""Failure 11: killed while saving, the next start hangs or starts from nothing (deepspeedai/DeepSpeed#7741).

The checkpoint before is verified and loads, loudly; where none is good it stops. Waits are bounded.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from components.core.errors import IntegrityError
from components.core.records import ModelRef
from components.training.checkpoints import checkpoint_folder, saved_steps
from components.training.failpoints import VARIABLE
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set
from tests.fakes.training_runs import disturbed, job_folder, recipe, same_as_undisturbed


@pytest.mark.slow
def test_killed_while_saving_the_checkpoint_before_loads_and_a_damaged_newest_is_named(tmp_path: Path) -> None:
    """Rank 0 dies with the manifest written and the folder not renamed: half a save counts for nothing."""
    began = time.monotonic()
    model = disturbed(tmp_path, "save.sealed@0#2=kill")
    same_as_undisturbed(model)
    assert isinstance(model, ModelRef)
    assert model.resumed_from_step == 5
    assert "WARNING" not in (tmp_path / "log").read_text()  # the half was never published, so nothing is damaged
    assert time.monotonic() - began < 400


@pytest.mark.slow
def test_with_no_good_checkpoint_the_launcher_stops_and_says_what_to_do(tmp_path: Path) -> None:
    """All damaged, then all gone: an IntegrityError each time; the folder removed, it trains from the first step."""
    publish_training_set(tmp_path / "set")
    forked_ranks.run(tmp_path, recipe().to_json(), {VARIABLE: "rank.step@0#7=term"})
    folder = job_folder(tmp_path)
    for step in saved_steps(folder):
        next(checkpoint_folder(folder, step).glob("engine/*optim_states.pt")).write_bytes(b"")
    stopped = forked_ranks.run(tmp_path, recipe().to_json())
    assert isinstance(stopped, IntegrityError), stopped
    assert "remove the folder to train from the first step" in str(stopped)
    assert "\n" not in str(stopped)
    for step in saved_steps(folder):
        shutil.rmtree(checkpoint_folder(folder, step))
    stopped = forked_ranks.run(tmp_path, recipe().to_json())
    assert isinstance(stopped, IntegrityError), stopped
    assert "was published here and is gone" in str(stopped)
    shutil.rmtree(folder)
    same_as_undisturbed(forked_ranks.run(tmp_path, recipe().to_json()))
