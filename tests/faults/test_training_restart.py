"""Gangs that die, hang, diverge or are told to end: bounded tries, one rule for a bad loss, a plain word at the end."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.errors import TransientError, UserError
from components.core.publish import publishing, verify
from components.core.recipe import parse_recipe
from components.core.records import ModelRef, TrainingSetRef
from components.training import guard, restart
from components.training.backends.launch import QUEUED, Ended, Watch
from components.training.beats import Silence
from components.training.checkpoints import checkpoint_folder, saved_steps
from components.training.disk import DISK_FULL, in_words
from components.training.failpoints import VARIABLE
from components.training.job import Job
from components.training.restart import Tries, train_to_the_end
from components.training.train import _prepare
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set, tiny_recipe
from tests.fakes.training_runs import disturbed, job_folder, recipe, same_as_undisturbed
from tests.unit.test_training_checkpoint import KEY, checkpoint


class Gang:
    """Ranks that end as a list says; an entry may publish a checkpoint first."""

    def __init__(self, job: Job, ends: list[Any]) -> None:
        self.job, self.ends, self.runs, self.cancelled = job, ends, 0, 0

    def run(self, seconds: float, watch: Watch) -> Ended:
        """One attempt."""
        self.runs += 1
        end = self.ends.pop(0)
        assert seconds > 0
        return Ended(int(end(self, watch) or 1)) if callable(end) else Ended(end)

    def cancel(self) -> None:
        """Count it."""
        self.cancelled += 1


class Quiet:
    """Nobody follows."""

    def tick(self, pid: int) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""


def _job(folder: Path, **training: Any) -> Job:
    job = Job(folder / "job", "k" * 64, tiny_recipe(training={"restart_wait_seconds": 0.0} | training))
    job.folder.mkdir()
    job.write()
    return job


def _export(job: Job, key: str) -> None:
    with publishing(job.final, key=key) as staging:
        (staging / "result.json").write_text(key)


def test_an_export_of_another_job_is_set_aside_and_this_one_trained(tmp_path: Path) -> None:
    """A whole `final/` copied from another job is never taken for this job's; its own is."""
    job = _job(tmp_path)
    _export(job, "o" * 64)

    def exports(gang: Gang, watch: Watch) -> int:
        _export(job, job.key)
        return 0

    gang = Gang(job, [exports])
    for _ in range(2):
        train_to_the_end(job, gang, tmp_path / "log", Quiet())
    assert gang.runs == 1
    assert (job.final / "result.json").read_text() == job.key
    assert (tmp_path / "log").read_text().count("the export of another job") == 1


def test_rows_prepared_for_another_job_are_prepared_again(tmp_path: Path) -> None:
    """A whole `prepared/` copied from another training set is replaced before ranks read it."""
    publish_training_set(tmp_path / "set")
    ref = TrainingSetRef.read(tmp_path / "set")
    digests = []
    for other in (False, True):
        job = Job(tmp_path / f"job-{other}", KEY, tiny_recipe())
        if other:
            with publishing(job.prepared, key="o" * 64) as staging:
                (staging / "rows").write_text("of another")
        _prepare(job, ref, tmp_path / "set")
        digests.append(verify(job.prepared, key=KEY)["digest"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("restarts", [0, 2])
def test_ranks_that_keep_dying_are_a_transient_error_with_the_reason(tmp_path: Path, restarts: int) -> None:
    """The first try and the restarts that the recipe allows, then one line that says why and from where to go on."""
    job = _job(tmp_path, restarts=restarts)
    gang = Gang(job, [1] * 9)
    (tmp_path / "log").write_text("Traceback\nRuntimeError: gloo lost a peer\n")
    with pytest.raises(TransientError, match=rf"failed {restarts + 1} times .*the first step") as failed:
        train_to_the_end(job, gang, tmp_path / "log", Quiet())
    assert gang.runs == restarts + 1
    assert "\n" not in str(failed.value)
    assert "gloo lost a peer" in (tmp_path / "log").read_text()


def test_tries_count_only_without_progress_between(tmp_path: Path) -> None:
    """A gang that dies every hour and gets on between is restarted for days."""
    job = _job(tmp_path, restarts=1)

    def goes_on(gang: Gang, watch: Watch) -> int:
        checkpoint(gang.job.folder, 5 * gang.runs)
        return 1

    gang = Gang(job, [goes_on] * 6 + [1] * 9)
    with pytest.raises(TransientError, match=r"failed 2 times .*checkpoint of step 30"):
        train_to_the_end(job, gang, tmp_path / "log", Quiet())
    assert gang.runs == 6 + 1


@settings(deadline=None)
@given(st.lists(st.integers(-1, 50), min_size=1, max_size=60), st.integers(0, 5), st.floats(0, 600))
def test_waits_double_and_never_pass_their_bound(newest: list[int], allowed: int, first: float) -> None:
    """Against a second telling of the rule: tries since the last rise of the newest checkpoint."""
    tries, high, since = Tries(allowed, first), -1, 0
    for step in newest:
        wait = tries.next_wait(step)
        since = 1 if step > high else since + 1
        high = max(high, step)
        if since > allowed:
            assert wait is None
        else:
            assert wait == pytest.approx(min(300.0, first * 2 ** (since - 1)))


def test_an_error_that_trying_again_cannot_mend_is_not_tried_again(tmp_path: Path) -> None:
    """A diverged training is the recipe's fault: its line reaches the caller after one attempt."""
    job = _job(tmp_path)

    def diverges(gang: Gang, watch: Watch) -> int:
        gang.job.note_error(0, UserError("training diverged at step 3: loss is nan; lower the rate"))
        return 1

    gang = Gang(job, [diverges])
    with pytest.raises(UserError, match="diverged at step 3"):
        train_to_the_end(job, gang, tmp_path / "log", Quiet())


def test_a_disk_too_full_for_the_error_itself_is_still_that_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No block is left for a rank's words: an empty file says it; nothing is tried again, nothing half is left."""
    job = _job(tmp_path)

    def no_room(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fills(gang: Gang, watch: Watch) -> int:
        with monkeypatch.context() as full_disk:
            full_disk.setattr(os, "fsync", no_room)
            job.note_error(1, UserError("no space left"))
        (job.folder / ".state.json.77.tmp").touch()
        return 1

    gang = Gang(job, [fills])
    with pytest.raises(UserError, match="no space left on the disk; free some"):
        train_to_the_end(job, gang, tmp_path / "log", Quiet())
    assert [path.name for path in job.folder.glob(".*.tmp")] == [".state.json.77.tmp"]  # of a killed rank
    assert (job.folder / "error-1.json").read_bytes() == b""
    with pytest.raises(UserError, match="no space left on the disk"):
        train_to_the_end(job, Gang(job, [DISK_FULL]), tmp_path / "log", Quiet())
    assert not list(job.folder.glob(".*.tmp"))


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A read-only volume is the user's to change; an error of elsewhere stays what it is."""
    lock = tmp_path / "job" / ".lock"
    for code in (errno.EROFS, errno.EACCES):
        told = in_words(OSError(code, os.strerror(code), str(lock)), tmp_path / "job")
        assert isinstance(told, UserError)
        assert "cannot be written" in str(told)
        assert "--home" in str(told)
    elsewhere = PermissionError(errno.EACCES, "Permission denied", "/proc/1/mem")
    assert in_words(elsewhere, tmp_path / "job") is elsewhere


def test_a_gang_without_progress_is_ended_and_started_again(tmp_path: Path) -> None:
    """The launcher looks at the ranks' signs, not at whether their processes live; who fell silent first is named."""
    job = _job(tmp_path, stall_minutes=0.005, restarts=0)

    def hangs(gang: Gang, watch: Watch) -> int:
        gang.job.beats.mkdir(exist_ok=True)
        (gang.job.beats / "rank-1").touch()
        time.sleep(0.05)
        (gang.job.beats / "rank-0").touch()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            watch(1)
            time.sleep(0.01)
        return 1

    gang = Gang(job, [hangs])
    with pytest.raises(TransientError, match=r"no rank made progress for .* \(rank-1 fell silent first"):
        train_to_the_end(job, gang, tmp_path / "log", Quiet())
    assert gang.cancelled == 1


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_makes_no_gang_look_hung_nor_hides_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """Signs an hour off either way still change while ranks go on, and still do not where they hang."""
    beats = tmp_path / "beats"
    beats.mkdir()
    usual = time.time
    monkeypatch.setattr(time, "time", lambda: usual() + jump)
    silence = Silence(beats)
    for tick in range(3):
        (beats / "rank-0").touch()
        os.utime(beats / "rank-0", (usual() - jump + tick,) * 2)
        assert silence.look()[0] < 1
    time.sleep(0.05)
    quiet, slowest = silence.look()
    assert 0.05 <= quiet < 60
    assert slowest == "rank-0"


def test_a_job_queued_elsewhere_is_not_taken_for_hung(tmp_path: Path) -> None:
    """Before any rank has shown itself on a cluster, silence says nothing."""
    job = _job(tmp_path, stall_minutes=0.001, restarts=0)

    def queues(gang: Gang, watch: Watch) -> int:
        for _ in range(20):
            watch(QUEUED)
            time.sleep(0.01)
        return 1

    with pytest.raises(TransientError, match="ended with status 1"):
        train_to_the_end(job, Gang(job, [queues]), tmp_path / "log", Quiet())


def test_told_to_end_while_the_ranks_are_elsewhere_leaves_them_running(tmp_path: Path) -> None:
    """The next call finds the job again."""
    import signal

    job = _job(tmp_path)

    def is_told(gang: Gang, watch: Watch) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        watch(0)
        return 1

    gang = Gang(job, [is_told])
    with pytest.raises(TransientError, match="it goes on; run again to follow it"):
        train_to_the_end(job, gang, tmp_path / "log", Quiet())
    assert gang.cancelled == 0
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@settings(deadline=None)
@given(
    st.one_of(st.floats(), st.sampled_from([float("nan"), float("inf"), -float("inf")])),
    st.lists(st.floats(0.1, 10.0), max_size=80),
    st.sampled_from([0.0, 1.5, 10.0]),
)
def test_a_loss_is_trouble_where_it_is_no_number_or_above_the_factor(
    loss: float, recent: list[float], factor: float
) -> None:
    """Against numpy's median; with fewer than sixteen losses behind it nothing is called a spike."""
    import numpy as np

    found = guard.trouble(loss, recent, factor)
    if not np.isfinite(loss):
        assert "loss is" in found
    else:
        is_spike = factor > 0 and len(recent) >= 16 and loss > factor * float(np.median(recent))
        assert bool(found) == is_spike
    assert len(guard.remembered(1.0, recent)) <= guard.WINDOW


@pytest.mark.slow
def test_on_nan_skip_leaves_one_step_out_and_goes_on(tmp_path: Path) -> None:
    """The step's gradient is dropped and the run ends; killed and resumed, it is the same run."""
    models = []
    for name, failpoint in (("plain", ""), ("killed", "save.published@1#9=kill")):
        root = tmp_path / name
        publish_training_set(root / "set")
        models.append(
            forked_ranks.run(root, recipe(on_nan="skip").to_json(), {VARIABLE: failpoint}, before="nan_at_step_7")
        )
        assert isinstance(models[-1], ModelRef), models[-1]
        assert "step 7 is left out: the loss is nan" in (root / "log").read_text()
        state = json.loads((checkpoint_folder(job_folder(root), 15) / "state.json").read_text())
        assert state["skipped"] == [7]
    assert models[0].digest == models[1].digest


@pytest.mark.slow
def test_where_every_loss_is_no_number_nothing_is_exported(tmp_path: Path) -> None:
    """Leaving out all steps trains nothing: one line, not an untouched model and not a crash."""
    publish_training_set(tmp_path / "set")
    text = recipe(on_nan="skip", max_skips=1000, steps=4).to_json()
    ended = forked_ranks.run(tmp_path, text, before="nan_at_every_step")
    assert isinstance(ended, UserError), ended
    assert "all 4 steps were left out" in str(ended)
    assert not job_folder(tmp_path).joinpath("final").exists()


@pytest.mark.slow
def test_told_to_end_at_the_last_step_the_export_is_finished(tmp_path: Path) -> None:
    """No step is left to save: the model is published, and no checkpoint is claimed that is not there."""
    publish_training_set(tmp_path / "set")
    same_as_undisturbed(forked_ranks.run(tmp_path, recipe().to_json(), {VARIABLE: "rank.step@0#20=term"}))
    assert "told to end" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_on_a_spike_rollback_goes_back_and_leaves_the_step_out(tmp_path: Path) -> None:
    """Back to the checkpoint before, past the batch that did it, without counting as a failure."""
    publish_training_set(tmp_path / "set")
    rule = recipe(on_nan="rollback", spike_factor=5.0, restarts=0)
    model = forked_ranks.run(tmp_path, rule.to_json(), before="leap_at_step_17")
    assert isinstance(model, ModelRef), model
    assert model.resumed_from_step == 15
    log = (tmp_path / "log").read_text()
    assert "the loss leapt to" in log
    assert "back to its checkpoint of step 15; steps [17] are left out from there" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "says"),
    [("stop", "step 7: the loss is"), pytest.param("rollback", "training.max_skips", marks=pytest.mark.full)],
)
def test_on_nan_stop_and_a_used_up_allowance_end_the_run(tmp_path: Path, rule: str, says: str) -> None:
    """One line with the step and what to change; no checkpoint holds the bad weights."""
    publish_training_set(tmp_path / "set")
    text = recipe(on_nan=rule, max_skips=0, spike_factor=100.0).to_json()
    ended = forked_ranks.run(tmp_path, text, before="nan_at_step_7")
    assert isinstance(ended, UserError), ended
    assert says in str(ended)
    assert saved_steps(job_folder(tmp_path)) == [5]


@pytest.mark.slow
def test_a_hung_rank_ends_in_a_restart_of_the_gang(tmp_path: Path) -> None:
    """A stopped process is alive and does nothing: the bound is the recipe's, and the end the undisturbed one."""
    model = disturbed(tmp_path, "rank.step@1#8=stop", stall_minutes=0.3)  # more than a busy machine needs for a step
    assert isinstance(model, ModelRef), model
    assert model.resumed_from_step == 5
    log = (tmp_path / "log").read_text()
    assert "no rank made progress" in log
    assert "the whole gang starts again" in log


@pytest.mark.slow
def test_a_disk_that_fills_while_saving_is_said_in_words_and_loses_nothing(tmp_path: Path) -> None:
    """The background write's error surfaces; the checkpoint before stays, and with room the run ends as ever."""
    publish_training_set(tmp_path / "set")
    ended = forked_ranks.run(tmp_path, recipe().to_json(), before="disk_fills_at_step_10")
    assert isinstance(ended, UserError), ended
    assert "no space left" in str(ended)
    assert saved_steps(job_folder(tmp_path)) == [5]
    same_as_undisturbed(forked_ranks.run(tmp_path, recipe().to_json()))


@pytest.mark.slow
def test_the_launcher_told_to_end_saves_and_the_next_call_continues(tmp_path: Path) -> None:
    """SIGTERM to the launcher: every rank saves at the same step within the grace period."""
    publish_training_set(tmp_path / "set")
    process = forked_ranks.start(tmp_path, recipe(steps=2000, checks=1, checkpoint_every_steps=2000).to_json())
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not _is_training(tmp_path):
        time.sleep(0.05)
    process.terminate()
    began = time.monotonic()
    process.join(60)
    assert time.monotonic() - began < 25
    ended = forked_ranks.outcome(tmp_path)
    assert isinstance(ended, TransientError), ended
    (step,) = saved_steps(job_folder(tmp_path))
    assert f"saved step {step}; run again to continue" in str(ended)


def _is_training(root: Path) -> bool:
    return any('"loss"' in path.read_text() for path in (root / "ck").glob("*/progress.jsonl"))


@pytest.mark.full
@pytest.mark.slow
def test_a_checkpoint_by_minutes_is_agreed_by_all_ranks(tmp_path: Path) -> None:
    """With steps far apart the clock alone makes checkpoints, at steps that all ranks share."""
    publish_training_set(tmp_path / "set")
    text = recipe(steps=300, checks=1, checkpoint_every_steps=10_000, checkpoint_every_minutes=0.005).to_json()
    assert isinstance(forked_ranks.run(tmp_path, text), ModelRef)
    assert len(saved_steps(job_folder(tmp_path))) == 2  # the last two are kept
    assert (tmp_path / "log").read_text().count("is published") >= 2


def test_recipes_from_before_these_keys_go_on_working() -> None:
    """Defaults are what was done before: stop on NaN, two restarts, by steps alone."""
    values = json.loads(tiny_recipe().to_json())
    new = ("on_nan", "spike_factor", "max_skips", "restarts", "restart_wait_seconds", "stall_minutes", "grace_seconds")
    for name in (*new, "checkpoint_every_minutes", "checkpoint_in_background"):
        values["training"].pop(name)
    assert parse_recipe(values) == tiny_recipe()
    assert restart.LONGEST_WAIT_SECONDS == 300
