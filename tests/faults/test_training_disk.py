"""A file system of the test's own that is really full, or really read-only, under a job's checkpoints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.core.errors import UserError
from components.training.checkpoints import saved_steps
from components.training.failpoints import VARIABLE
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set
from tests.fakes.training_runs import job_folder, recipe, same_as_undisturbed

pytestmark = pytest.mark.slow


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of eight megabytes where the job's checkpoints go."""
    folder = tmp_path / "ck"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True, timeout=30).returncode:
        pytest.skip("a file system may not be mounted here")
    publish_training_set(tmp_path / "set")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


def test_a_file_system_without_a_free_block_is_said_in_words_and_loses_nothing(
    checkpoints: Path, tmp_path: Path
) -> None:
    """Full while a checkpoint is written: the one before stays, and with room the run ends as ever."""
    ended = forked_ranks.run(tmp_path, recipe().to_json(), before="disk_is_filled_at_step_10")
    assert isinstance(ended, UserError), ended
    assert "no space left on the disk" in str(ended)
    assert "\n" not in str(ended)
    assert saved_steps(job_folder(tmp_path)) == [5]
    assert os.statvfs(checkpoints).f_bavail == 0
    (checkpoints / "ballast").unlink()
    same_as_undisturbed(forked_ranks.run(tmp_path, recipe().to_json()))


def test_a_file_system_that_became_read_only_is_said_in_words_and_loses_nothing(
    checkpoints: Path, tmp_path: Path
) -> None:
    """As a kernel leaves a broken disk: one line before a rank starts; writable again, the job goes on."""
    forked_ranks.run(tmp_path, recipe().to_json(), {VARIABLE: "rank.step@0#7=term"})
    before = saved_steps(job_folder(tmp_path))
    log = (tmp_path / "log").read_text()
    _remount(checkpoints, "ro")
    ended = forked_ranks.run(tmp_path, recipe().to_json())
    assert isinstance(ended, UserError), ended
    assert "cannot be written" in str(ended)
    assert (tmp_path / "log").read_text() == log
    _remount(checkpoints, "rw")
    assert saved_steps(job_folder(tmp_path)) == before
    same_as_undisturbed(forked_ranks.run(tmp_path, recipe().to_json()))


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True, timeout=30)
