"""A checkpoint whose digests match and whose pickle would run code: never built, and told as damage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from components.core.digest import file_digest
from components.core.errors import IntegrityError
from components.core.records import CheckpointRef
from components.training.checkpoints import checkpoint_folder, publish_checkpoint
from components.training.job import Job
from components.training.universal import convert_if_needed
from tests.fakes.training_case import tiny_recipe

KEY = "k" * 64


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.slow
def test_a_resealed_pickle_is_refused_before_the_conversion(tmp_path: Path) -> None:
    """Saved by two ranks, asked for by one: the converter's process builds nothing but state, and says which file."""
    mark = tmp_path / "ran"
    job = Job(tmp_path / "job", KEY, tiny_recipe(training={"ranks": 1}))
    staging = job.folder / ".step-000005.1.staging"
    (staging / "engine").mkdir(parents=True)
    torch.save({"x": torch.ones(2), "evil": Evil(mark)}, staging / "engine" / "mp_rank_00_model_states.pt")
    CheckpointRef(digest=KEY, step=5, world_size=2, zero_stage=1, recipe_digest="r").write(staging)
    files = {
        path.relative_to(staging).as_posix(): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in staging.rglob("*")
        if path.is_file()
    }
    publish_checkpoint(staging, checkpoint_folder(job.folder, 5), files, {"key": KEY, "step": 5})
    with pytest.raises(IntegrityError, match=r"mp_rank_00_model_states\.pt: holds more than tensors") as refused:
        convert_if_needed(job, tmp_path / "log", 120, print)
    assert "\n" not in str(refused.value)
    assert not mark.exists()
    assert not list(job.folder.glob("universal-*"))
    torch.load(checkpoint_folder(job.folder, 5) / "engine" / "mp_rank_00_model_states.pt", weights_only=False)
    assert mark.exists()  # the file does what the test says that it does
