"""A checkpoint whose digests match and whose pickle would run code: never built, and told as damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from components.core.digest import file_digest
from components.core.errors import IntegrityError
from components.core.publish import read_manifest
from components.core.records import CheckpointRef, ModelRef
from components.training.checkpoints import checkpoint_folder, publish_checkpoint, saved_steps
from components.training.failpoints import VARIABLE
from components.training.job import Job
from components.training.universal import convert_if_needed
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set, tiny_recipe
from tests.fakes.training_runs import job_folder, recipe, same_as_undisturbed

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
    _publish(staging, checkpoint_folder(job.folder, 5), {"key": KEY, "step": 5})
    with pytest.raises(IntegrityError, match=r"mp_rank_00_model_states\.pt: holds more than tensors") as refused:
        convert_if_needed(job, tmp_path / "log", 120, print)
    assert "\n" not in str(refused.value)
    assert not mark.exists()
    assert not list(job.folder.glob("universal-*"))
    torch.load(checkpoint_folder(job.folder, 5) / "engine" / "mp_rank_00_model_states.pt", weights_only=False)
    assert mark.exists()  # the file does what the test says that it does


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 1])
def test_with_a_resealed_pickle_in_the_newest_the_checkpoint_before_is_used_loudly(tmp_path: Path, ranks: int) -> None:
    """As other damage: in the same shape the ranks pass it over, in another the conversion does; it never runs."""
    mark = tmp_path / "ran"
    publish_training_set(tmp_path / "set")
    forked_ranks.run(tmp_path, recipe().to_json(), {VARIABLE: "rank.step@0#12=term"})
    older, newest = saved_steps(job_folder(tmp_path))[-2:]
    folder = checkpoint_folder(job_folder(tmp_path), newest)
    about = read_manifest(folder)["about"]
    (folder / "manifest.json").unlink()
    path = next(folder.glob("engine/*rank_1*optim_states.pt"))
    torch.save(torch.load(path, weights_only=False) | {"evil": Evil(mark)}, path)
    staging = folder.rename(folder.with_name(".step-evil.1.staging"))
    _publish(staging, folder, {name: value for name, value in about.items() if name != "digest"})
    model = forked_ranks.run(tmp_path, recipe(ranks=ranks).to_json())
    assert isinstance(model, ModelRef), model
    assert model.resumed_from_step == older
    log = (tmp_path / "log").read_text()
    assert f"WARNING: checkpoint of step {newest} is damaged and not used" in log
    assert "holds more than tensors" in log
    assert not mark.exists()
    if ranks == 2:
        same_as_undisturbed(model)


def _publish(staging: Path, target: Path, about: dict[str, Any]) -> None:
    """Seal it as a checkpoint whose digests all match."""
    files = {
        path.relative_to(staging).as_posix(): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in staging.rglob("*")
        if path.is_file()
    }
    publish_checkpoint(staging, target, files, about)
