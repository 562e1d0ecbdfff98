"""Training on a real Slurm of one node: found again, the same bytes as local ranks, requeued, cancelled."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import TransientError, UserError
from components.core.recipe import Recipe, parse_recipe
from components.core.records import ModelRef
from components.training.backends import slurm as module
from components.training.backends.launch import QUEUED, Launch
from components.training.backends.slurm import SlurmBackend
from components.training.checkpoints import saved_steps
from components.training.train import train
from tests.fakes import forked_ranks
from tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster
from tests.fakes.training_case import publish_training_set, tiny_recipe

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as root only"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """One cluster for all tests here; each leaves its queue empty."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


@pytest.fixture(autouse=True)
def _at(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setattr(module, "POLL_SECONDS", 0.25)
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.1)
    yield
    for job in cluster.jobs():
        subprocess.run(["scancel", job], check=False, timeout=30)


def _recipe(backend: str = "slurm", training: dict[str, Any] | None = None, **pool: Any) -> Recipe:
    values = json.loads(tiny_recipe(training=(training or {}) | {"backend": backend}).to_json())
    values["resources"]["pool"] = {"host_memory_gib_per_gpu": 1} | pool
    return parse_recipe(values)


def _train(recipe: Recipe, folder: Path) -> ModelRef:
    if not (folder / "set").exists():
        publish_training_set(folder / "set")
    return train(recipe, folder / "set", folder / "out", folder / "ck", None, "run", folder / "log")


def _files(folder: Path) -> dict[str, bytes]:
    """Every file of the export but the one that names the recipe, whose back-end differs."""
    found = {path.name: path.read_bytes() for path in (folder / "out" / "model").iterdir()}
    found.pop("pilotline.json")
    assert "model.safetensors" in found
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What two ranks of this machine export from the longer recipe, undisturbed."""
    folder = tmp_path_factory.mktemp("here")
    publish_training_set(folder / "set")
    assert isinstance(forked_ranks.run(folder, _recipe("local", LONG).to_json()), ModelRef)
    return _files(folder)


LONG = {"steps": 200, "checkpoint_every_steps": 20, "checks": 5, "patience": 5}


def _until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)


def _launch(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch, **pool: Any) -> Launch:
    """A launch whose job runs these lines of shell instead of ranks."""
    (folder / "job").mkdir()
    launch = Launch("cd34" * 16, folder / "job" / "job.json", _recipe(**pool), folder / "log")
    real = module.batch_script

    def replaced(asked: Launch) -> str:
        text = real(asked)
        start = text.index("  srun --kill")
        end = text.index('  echo "$?" >')
        return text[:start] + f"  srun --ntasks=1 bash -c '{script}'\n" + text[end:]

    monkeypatch.setattr(module, "batch_script", replaced)
    return launch


def _silent(pid: int) -> None:
    """Watch nothing."""


def test_a_preempted_job_saves_is_queued_again_and_ends_with_the_bytes_of_local_ranks(
    cluster: SlurmCluster, here: dict[str, bytes], tmp_path: Path
) -> None:
    """SIGTERM to the ranks once they have a checkpoint: same job id, second start, nothing trained twice or lost."""
    told = []

    def preempt(pid: int) -> None:
        folders = list((tmp_path / "ck").glob("*"))
        if not told and pid != QUEUED and folders and saved_steps(folders[0]):
            (job,) = cluster.jobs()
            told.append(job)
            cluster.call("scancel", "--signal=TERM", f"{job}.0")

    monkey = pytest.MonkeyPatch()
    real = SlurmBackend.wait
    monkey.setattr(
        SlurmBackend, "wait", lambda self, launch, seconds, watch: real(
            self, launch, seconds, lambda pid: (watch(pid), preempt(pid))[0])
    )  # fmt: skip
    try:
        model = _train(_recipe(training=LONG, grace_seconds=60), tmp_path)
    finally:
        monkey.undo()
    log = (tmp_path / "log").read_text()
    assert len(told) == 1
    assert f"[slurm] job {told[0]}, start 2" in log
    assert "stopped before the end: queued again" in log
    assert model.resumed_from_step > 0
    assert _files(tmp_path) == here


def test_a_killed_launcher_finds_its_job_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The waiting ends, the job goes on; the next call waits for the same one and nothing is trained twice."""
    recipe = _recipe()
    short = recipe.model_copy(update={"training": recipe.training.model_copy(update={"timeout_minutes": 0.05})})
    with pytest.raises(TransientError, match="finds it again"):
        _train(short, tmp_path)
    (job,) = cluster.jobs()
    model = _train(recipe, tmp_path)
    assert model.steps == recipe.training.steps
    log = (tmp_path / "log").read_text()
    assert f"[slurm] job {job}, start 1" in log
    assert log.count("[slurm] job") == log.count(f"[slurm] job {job}")
    assert _train(recipe, tmp_path) == model
    assert (tmp_path / "log").read_text() == log


def test_submitting_again_finds_the_job_and_cancelling_leaves_none(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second launcher has only the name; cancelled, the job is not queued again, and waiting ends."""
    launch = _launch(tmp_path, "sleep 300", monkeypatch)
    job = SlurmBackend().submit(launch)
    assert SlurmBackend().submit(launch) == job
    assert cluster.jobs() == [job]
    (launch.folder / module.JOB_FILE).unlink()  # killed between sbatch and the note of its answer
    assert SlurmBackend().submit(launch) == job
    _until(lambda: "start 1" in launch.log.read_text() if launch.log.exists() else False)
    backend = SlurmBackend()
    backend.cancel(launch)
    assert cluster.jobs() == []
    ended = backend.wait(launch, 30, _silent)
    assert ended.status != 0
    assert "cancelled" in ended.reason
    backend.cancel(launch)


SAVES = (  # ranks that save when they are told to stop, and find what they saved
    "[ -e half ] && { mkdir final; exit 0; }; "
    'trap "touch half preempted.json; exit 75" TERM; '
    "for i in $(seq 600); do sleep 0.2; done"
)


def test_a_signal_to_the_batch_shell_reaches_the_ranks_which_save_and_are_queued_again(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Slurm sends it before the time is over: the shell passes it on, and a second start goes on."""
    launch = _launch(tmp_path, SAVES, monkeypatch)
    backend = SlurmBackend()
    job = backend.submit(launch)
    told, seen = [], []

    def tell(pid: int) -> None:
        seen.append(pid)
        if pid == 0 and not told and f"{job}.0" in cluster.call("squeue", "--steps", "--noheader", "--format=%i"):
            time.sleep(0.5)  # the step's shell sets its trap
            told.append(cluster.call("scancel", "--batch", "--signal=TERM", job))

    ended = backend.wait(launch, 100, tell)
    log = launch.log.read_text()
    assert ended.status == 0, log
    assert "told to stop: the ranks save" in log
    assert "start 2" in log
    assert {QUEUED, 0} <= set(seen)


@pytest.mark.full
def test_a_job_near_the_end_of_its_time_is_told_saves_and_is_queued_again(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--signal comes by itself, the pool's grace before the pool's time is over."""
    launch = _launch(tmp_path, SAVES, monkeypatch, timeout_minutes=1, grace_seconds=50)
    backend = SlurmBackend()
    backend.submit(launch)
    ended = backend.wait(launch, 150, _silent)
    log = launch.log.read_text()
    assert ended.status == 0, log
    assert "told to stop: the ranks save" in log
    assert "start 2" in log


def test_ranks_that_fail_end_the_job_with_their_status_and_asking_again_is_a_new_attempt(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is not queued again by itself: the launcher counts attempts."""
    launch = _launch(tmp_path, "exit 9", monkeypatch)
    backend = SlurmBackend()
    first = backend.submit(launch)
    assert backend.wait(launch, 60, _silent).status == 9
    assert backend.result(launch) is not None
    second = backend.submit(launch)
    assert second != first
    assert backend.wait(launch, 60, _silent).status == 9


def test_what_slurm_does_not_take_is_one_line(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is none is the recipe's fault; a controller that is away is not."""
    launch = _launch(tmp_path, "true", monkeypatch, partition="nowhere")
    with pytest.raises(UserError, match=r"sbatch refused the job: .*partition") as refused:
        SlurmBackend().submit(launch)
    assert "\n" not in str(refused.value)
    assert "main" in SlurmBackend().place()
    away = tmp_path / "away.conf"
    conf = Path(cluster.environment["SLURM_CONF"]).read_text()
    away.write_text(
        conf.replace("SlurmctldHost=", "MessageTimeout=2\nSlurmctldHost=").replace("SlurmctldPort=", "SlurmctldPort=1#")
    )
    monkeypatch.setenv("SLURM_CONF", str(away))
    monkeypatch.setattr(module, "TRIES", 1)
    with pytest.raises(TransientError, match="run again when Slurm answers"):
        SlurmBackend().submit(launch)
