"""Training killed anywhere ends in the very weights of an undisturbed run."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from components.core.errors import TransientError, UserError
from components.core.processes import OWNER
from components.core.records import ModelRef
from components.training import train as launcher
from components.training.checkpoints import checkpoint_folder, saved_steps
from components.training.progress import Forwarder
from components.training.speed import MEASURED
from components.training.train import train
from tests.fakes.training_case import publish_training_set, tiny_recipe

RECIPE = tiny_recipe(training={"steps": 60, "checkpoint_every_steps": 5, "keep_checkpoints": 3, "patience": 50})


@functools.cache
def undisturbed() -> ModelRef:
    """The model that nobody disturbed (trained once a process)."""
    with tempfile.TemporaryDirectory() as folder:
        return _train(Path(folder))


def _train(root: Path) -> ModelRef:
    source = root / "set"
    if not source.exists():
        publish_training_set(source)
    return train(RECIPE, source, root / "out", root / "ck", None, "run", root / "log")


def _job_folder(root: Path) -> Path | None:
    found = list((root / "ck").glob("*/job.json"))
    return found[0].parent if found else None


def _ranks(root: Path) -> list[psutil.Process]:
    """Live processes of this test's job."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]


@pytest.mark.slow
def test_killed_launcher_takes_its_ranks_along_and_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """SIGKILL to the launcher, a flipped byte in the newest checkpoint: the same digest as undisturbed, said loudly."""
    expected = undisturbed()
    publish_training_set(tmp_path / "set")
    code = "from pathlib import Path; from tests.faults.test_training_kills import _train;"
    code += f"_train(Path({str(tmp_path)!r}))"
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, OWNER: ""}
    process = subprocess.Popen([sys.executable, "-c", code], env=env)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        folder = _job_folder(tmp_path)
        saved = len(saved_steps(folder)) if folder is not None else 0
        if folder is not None and ((saved >= 2 and list(folder.glob(".step-*.staging"))) or saved >= 3):
            break  # best while a checkpoint is being written
        assert process.poll() is None, "training ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert folder is not None
    while time.monotonic() < deadline and _ranks(tmp_path):
        time.sleep(0.1)
    assert not _ranks(tmp_path)
    assert not (tmp_path / "out").exists()
    assert not (folder / "final").exists()

    steps = saved_steps(folder)
    weights = next(checkpoint_folder(folder, steps[-1]).glob("engine/*model_states.pt"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(bytes(data))
    model = _train(tmp_path)
    log = (tmp_path / "log").read_text()
    assert f"checkpoint of step {steps[-1]} is damaged" in log
    assert f"resuming from the older checkpoint of step {model.resumed_from_step}" in log
    assert 0 < model.resumed_from_step < steps[-1]
    assert model.digest == expected.digest
    assert _without_speed(model) == _without_speed(expected)
    assert model.checkpoint is not None
    assert model.checkpoint.step == 55


def _without_speed(model: ModelRef) -> list[dict[str, float]]:
    return [{name: value for name, value in point.items() if name not in MEASURED} for point in model.curve]


class Killer(Forwarder):
    """Kills one rank once, when the job has a checkpoint."""

    kills = 1
    folder: Path

    def tick(self, pid: int) -> None:
        """Called by the launcher while ranks run."""
        if Killer.kills and saved_steps(self._progress.parent):
            children = psutil.Process(pid).children(recursive=True)
            if ranks := [child for child in children if "components.training.worker" in " ".join(child.cmdline())]:
                random.choice(ranks).kill()
                Killer.kills -= 1


@pytest.mark.slow
def test_a_killed_rank_restarts_the_whole_gang_and_a_finished_job_stays_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank dies: the job goes on by itself from a checkpoint to the same weights, and is not trained again."""
    monkeypatch.setattr(launcher, "Forwarder", Killer)
    monkeypatch.setattr("components.training.backends.local.POLL_SECONDS", 0.01)
    Killer.kills = 1
    model = _train(tmp_path)
    assert Killer.kills == 0
    assert model.digest == undisturbed().digest
    assert model.resumed_from_step > 0
    assert "attempt 1 of 3 ended" in (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    monkeypatch.setattr(launcher, "run_ranks", None)  # a finished job needs no ranks
    assert _train(tmp_path) == model
    assert (tmp_path / "log").read_text() == log


def test_ranks_that_keep_dying_are_a_transient_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three attempts, then one line that says why and from where another call goes on."""
    attempts = []

    def dies(job_file: Path, ranks: int, log: Path, seconds: float, watch: object) -> int:
        attempts.append(seconds)
        log.write_text("Traceback\nRuntimeError: gloo lost a peer\n")
        return 1

    monkeypatch.setattr(launcher, "run_ranks", dies)
    with pytest.raises(TransientError, match=r"failed 3 times \(.*gloo lost a peer.*the first step") as failed:
        _train(tmp_path)
    assert len(attempts) == 3
    assert "\n" not in str(failed.value)
    assert not (tmp_path / "out").exists()


def test_an_error_that_trying_again_cannot_mend_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diverged training is the recipe's fault: its line reaches the caller after one attempt."""
    attempts = []

    def diverges(job_file: Path, ranks: int, log: Path, seconds: float, watch: object) -> int:
        from components.training.job import Job

        attempts.append(seconds)
        Job.read(job_file).note_error(0, UserError("training diverged at step 3: loss is nan; lower the rate"))
        return 1

    monkeypatch.setattr(launcher, "run_ranks", diverges)
    with pytest.raises(UserError, match="diverged at step 3"):
        _train(tmp_path)
    assert len(attempts) == 1


@pytest.mark.slow
def test_a_stalled_job_ends_in_time_and_leaves_no_process(tmp_path: Path) -> None:
    """The limit holds whatever the ranks do; what it has is kept for the next call."""
    publish_training_set(tmp_path / "set")
    recipe = tiny_recipe(training={"timeout_minutes": 0.03})
    began = time.monotonic()
    with pytest.raises(TransientError, match=r"training\.timeout_minutes"):
        train(recipe, tmp_path / "set", tmp_path / "out", tmp_path / "ck", None, "run", tmp_path / "log")
    assert time.monotonic() - began < 60
    assert not _ranks(tmp_path)
