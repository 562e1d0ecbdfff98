"""Ranks as a Slurm job: submitted once, found again by name, followed through squeue and the status it leaves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from components.core.errors import TransientError, UserError
from components.core.processes import tail
from components.core.publish import write_atomic
from components.training.backends.launch import QUEUED, Ended, Launch, Watch
from components.training.backends.slurm_script import STATUS_FILE, batch_script

POLL_SECONDS = 2.0
WATCH_SECONDS = 0.25
COMMAND_SECONDS = 30.0
TRIES, FIRST_WAIT_SECONDS = 5, 0.5
SETTLE_SECONDS = 20.0  # a job that is gone may leave its status on a shared file system a little later
GONE_SECONDS = 300.0
LOG_LINES = 40
JOB_FILE = "slurm-job"
SCRIPT_FILE = "slurm.sbatch"
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "srun")
OVER = {"", "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
# "PREEMPTED" is not over: the job is in the queue again, or becomes CANCELLED where requeueing is off.


class SlurmBackend:
    """Speaks to the cluster whose commands are on the PATH."""

    name = "slurm"

    def __init__(self) -> None:
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise UserError(
                f"training.backend slurm: no {missing[0]} here; run on a login node of the cluster, or set "
                "training.backend to local or trainjob"
            )

    def place(self) -> str:
        """The cluster in words; TransientError where its controller does not answer."""
        done = _call("sinfo", "--noheader", "--format=%P %D %T")
        if done.returncode:
            raise TransientError(f"sinfo: {_said(done)}; see that slurmctld runs and SLURM_CONF names it")
        return ", ".join(" ".join(line.split()) for line in done.stdout.splitlines()) or "no partition"

    def submit(self, launch: Launch) -> str:
        """Submit the script, or find the job by its name; the id of the job."""
        script = batch_script(launch)
        if job := self._alive(launch) or self._finished(launch):
            _remember(launch, job)
            return job
        for old in launch.folder.glob(STATUS_FILE.format(job="*")):
            old.unlink(missing_ok=True)
        write_atomic(launch.folder / SCRIPT_FILE, script)
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        done = _call("sbatch", "--parsable", str(launch.folder / SCRIPT_FILE))
        if done.returncode:
            # The answer may be lost though the job was taken: it is read back before anybody submits again.
            if job := self._queued(launch):
                _remember(launch, job)
                return job
            raise _refusal(done)
        job = done.stdout.strip().partition(";")[0]
        _remember(launch, job)
        return job

    def wait(self, launch: Launch, seconds: float, watch: Watch) -> Ended:
        """Follow the job through requeues until it leaves the queue."""
        job, deadline, said = _remembered(launch), time.monotonic() + seconds, ""
        while True:
            if ended := self._ended(launch, job):
                return ended
            if (state := self._state(job)) != said:
                said = state
                _note(launch.log, f"[slurm] job {job}: {state.lower() or 'is gone'}\n")
            _pause(deadline, watch, launch, job, said)

    def logs(self, launch: Launch) -> str:
        """The end of the job's log, which its nodes write."""
        return tail(launch.log, LOG_LINES) if launch.log.exists() else ""

    def cancel(self, launch: Launch) -> None:
        """Cancel all jobs of this name, and wait until none is left in the queue (bounded)."""
        deadline = time.monotonic() + GONE_SECONDS
        while job := self._queued(launch):
            _ask("scancel", job)
            if time.monotonic() > deadline:
                raise TransientError(f"Slurm job {job}: cancelled, but still there after {GONE_SECONDS:g} s; run again")
            time.sleep(WATCH_SECONDS)

    def result(self, launch: Launch) -> Ended | None:
        """The status the job left, or that the queue lost it."""
        return self._ended(launch, _remembered(launch)) if (launch.folder / JOB_FILE).exists() else None

    def _queued(self, launch: Launch) -> str:
        """The id of this training's job if it waits, runs or completes."""
        mine = _ask("squeue", "--noheader", "--me", f"--name={launch.name}", "--format=%i")
        return mine.split()[0] if mine.split() else ""

    def _alive(self, launch: Launch) -> str:
        """The job to go on waiting for; one that has ended and is still being cleared away is waited out (bounded)."""
        deadline = time.monotonic() + GONE_SECONDS
        while (job := self._queued(launch)) and _status(launch, job) is not None and not launch.is_exported:
            if time.monotonic() > deadline:
                raise TransientError(f"Slurm job {job}: has ended, but is still in the queue; run again")
            time.sleep(WATCH_SECONDS)
        return job

    def _finished(self, launch: Launch) -> str:
        """The id of the job that finished the training, if its export is still there."""
        if not launch.is_exported or not (launch.folder / JOB_FILE).exists():
            return ""
        job = _remembered(launch)
        return job if _status(launch, job) == 0 else ""

    def _ended(self, launch: Launch, job: str) -> Ended | None:
        state = self._state(job)
        if state not in OVER:
            return None
        deadline = time.monotonic() + SETTLE_SECONDS
        while (status := _status(launch, job)) is None and state in ("", "COMPLETED") and time.monotonic() < deadline:
            if self._state(job) not in OVER:  # between two starts
                return None
            time.sleep(WATCH_SECONDS)
        if status == 0:
            return Ended(0)
        return Ended(status or 1, f"Slurm job {job}: {state.lower() or 'gone without a status'}")

    def _state(self, job: str) -> str:
        """Of the job as slurmctld knows it, else as accounting does; empty where both have forgotten it."""
        done = _call("scontrol", "show", "job", "--oneliner", job)
        if done.returncode and "invalid job id" not in done.stderr.lower():
            _ask("scontrol", "show", "job", "--oneliner", job)  # raises where the controller stays away
        if found := re.search(r"\bJobState=(\S+)", done.stdout):
            return found.group(1)
        if shutil.which("sacct"):
            told = _call("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State")
            if told.returncode == 0 and told.stdout.split():
                return told.stdout.split()[0]
        return ""


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, env=_environment()
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {COMMAND_SECONDS:g} s")
    except OSError as error:
        raise UserError(
            f"{command[0]}: cannot be run ({error.strerror}); run on a login node of the cluster"
        ) from error


def _environment() -> dict[str, str]:
    """Without what would change the commands' output or the job: SLURM_TIME_FORMAT, SBATCH_PARTITION and the like."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBATCH_", "SQUEUE_", "SLURM_"))}
    return kept | {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}


def _ask(*command: str) -> str:
    """Output of a command that only reads or may be repeated; a controller that is away is asked again, bounded."""
    wait = FIRST_WAIT_SECONDS
    for left in reversed(range(TRIES)):
        done = _call(*command)
        if done.returncode == 0:
            return done.stdout
        if left:
            time.sleep(wait)
            wait *= 2
    raise TransientError(f"{command[0]}: failed {TRIES} times ({_said(done)}); run again when Slurm answers")


def _refusal(done: subprocess.CompletedProcess[str]) -> Exception:
    said = _said(done)
    if any(sign in said.lower() for sign in ("unable to contact", "no answer", "timed out", "connection refused")):
        return TransientError(f"sbatch: {said}; run again when Slurm answers")
    return UserError(f"sbatch refused the job: {said}; mend [resources] (queue is Slurm's partition, priority its QOS)")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split())[:300] or f"status {done.returncode}"


def _remember(launch: Launch, job: str) -> None:
    write_atomic(launch.folder / JOB_FILE, job + "\n")


def _remembered(launch: Launch) -> str:
    try:
        return (launch.folder / JOB_FILE).read_text().strip()
    except OSError as error:
        raise UserError(f"{launch.folder}: no Slurm job was submitted for this training; run it first") from error


def _status(launch: Launch, job: str) -> int | None:
    """The exit status that the job's script left."""
    try:
        return int((launch.folder / STATUS_FILE.format(job=job)).read_text())
    except (OSError, ValueError):
        return None


def _pause(deadline: float, watch: Watch, launch: Launch, job: str, state: str) -> None:
    until = time.monotonic() + POLL_SECONDS
    while time.monotonic() < until:
        watch(0 if state == "RUNNING" else QUEUED)
        if time.monotonic() > deadline:
            raise TransientError(
                f"Slurm job {job} ({launch.name}, {state.lower()}) did not end in time; it goes on, and the same "
                "command finds it again; or raise training.timeout_minutes"
            )
        time.sleep(min(WATCH_SECONDS, POLL_SECONDS))


def _note(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as stream:
        stream.write(text)
