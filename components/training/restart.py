"""The gang of ranks from its start to the published export: restarts, hangs, rollbacks and preemption.

A dead or hung rank ends the gang, which starts again from the newest checkpoint. Tries are counted while there is no
new checkpoint between them; a rollback counts by its own limit; being told to end is no failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from components.core.engine_time import engine_time
from components.core.errors import KINDS, IntegrityError, PilotlineError, TransientError, UserError
from components.core.processes import tail
from components.core.publish import is_whole
from components.training.backends.launch import QUEUED, Ended, Watch
from components.training.beats import Silence, clear_beats
from components.training.checkpoints import SET_ASIDE, saved_steps
from components.training.disk import DISK_FULL, full
from components.training.failpoints import reached
from components.training.job import Job
from components.training.universal import convert_if_needed

LONGEST_WAIT_SECONDS = 300.0


class Gang(Protocol):
    """The ranks of one job, wherever they run."""

    def run(self, seconds: float, watch: Watch) -> Ended:
        """One attempt; `watch` gets the process id of the ranks' launcher, 0 where it is elsewhere."""

    def cancel(self) -> None:
        """End what runs."""


class Follower(Protocol):
    """Forwards the ranks' progress."""

    def tick(self, pid: int) -> None:
        """Called several times a second."""

    def flush(self) -> None:
        """Called after every attempt."""


class ToldToEndError(TransientError):
    """The machine is taken away, or a person ends the run; `goes_on`: the ranks run elsewhere and are not ended."""

    def __init__(self, text: str, *, goes_on: bool = False) -> None:
        super().__init__(text)
        self.goes_on = goes_on


class StalledError(TransientError):
    """No rank made progress for the time that the recipe allows."""


@dataclass
class Tries:
    """How often the gang may start again.

    Args:
        allowed: restarts without a new checkpoint between them.
        first_wait: seconds before the first restart, doubled for each further one.
    """

    allowed: int
    first_wait: float
    used: int = 0
    reached: int = -1

    def next_wait(self, newest: int) -> float | None:
        """After a failure with `newest` as the last checkpoint's step: seconds to wait, None where it is enough."""
        if newest > self.reached:
            self.used, self.reached = 0, newest
        self.used += 1
        if self.used > self.allowed:
            return None
        return float(min(LONGEST_WAIT_SECONDS, self.first_wait * 2.0 ** min(self.used - 1, 30)))


@dataclass
class Notice:
    """Whether this process was told to end, and when."""

    given_at: float | None = None
    passed_on: bool = field(default=False)


def train_to_the_end(job: Job, gang: Gang, log: Path, follower: Follower) -> None:
    """Run ranks until the export is published.

    Raises:
        UserError, IntegrityError: what trying again cannot mend.
        TransientError: ranks died or hung more often than the recipe allows, or the time is over, or the machine is
            taken away; run again to continue.
    """
    if is_whole(job.final, key=job.key):
        return
    _set_aside_final(job, _note(log))
    training = job.recipe.training
    deadline = time.monotonic() + training.timeout_minutes * 60
    tries = Tries(training.restarts, training.restart_wait_seconds, reached=_newest(job))
    convert_if_needed(job, log, training.timeout_minutes * 60, _note(log))
    with _noticing() as notice:
        while (reason := _attempt(job, gang, log, follower, deadline, notice)) is not None:
            wait = tries.next_wait(_newest(job))
            _note(log)(
                f"attempt {tries.used} of {training.restarts + 1} since the last checkpoint ended: {reason};"
                + (" enough" if wait is None else f" the whole gang starts again in {wait:g} s")
            )
            if wait is None:
                raise TransientError(
                    f"training failed {tries.used} times ({reason}); run again to continue from {_place(job)};"
                    f" log: {log}"
                )
            _sleep(wait, notice)


def _attempt(job: Job, gang: Gang, log: Path, follower: Follower, deadline: float, notice: Notice) -> str | None:
    """One attempt, or several where rollbacks lie between; None when the export is published, else why it is not."""
    while True:
        _clear(job)
        before, watch = job.skipped(), _Watcher(job, follower, notice)
        try:
            with engine_time("torchrun"):
                ended = gang.run(max(1.0, deadline - time.monotonic()), watch)
        except StalledError as error:
            gang.cancel()
            ended = Ended(1, str(error))
        follower.flush()
        if is_whole(job.final, key=job.key):
            return None
        if (step := job.preempted()) is not None:
            raise ToldToEndError(f"training was told to end and saved step {step}; run again to continue from there")
        if notice.given_at is not None:
            raise ToldToEndError(f"training was told to end; run again to continue from {_place(job)}")
        reason = _reason(job, ended, log)
        if job.skipped() == before:
            return reason
        _note(log)(f"back to {_place(job)}; steps {job.skipped()} are left out from there")


@dataclass
class _Watcher:
    """Called while ranks run: forwards progress, ends a gang that hangs, and passes on that the machine goes."""

    job: Job
    follower: Follower
    notice: Notice
    silence: Silence = field(init=False)

    def __post_init__(self) -> None:
        self.silence = Silence(self.job.beats, self.job.exporting)

    def __call__(self, pid: int) -> None:
        self.follower.tick(max(pid, 0))
        training = self.job.recipe.training
        if self.notice.given_at is not None:
            self._pass_on(max(pid, 0), training.grace_seconds)
            return
        if pid == QUEUED:  # no rank runs, and the beats are those of an earlier start
            self.silence.restart()
            return
        quiet, slowest = self.silence.look()
        if quiet > training.stall_minutes * 60:
            raise StalledError(
                f"no rank made progress for {quiet:.0f} s ({slowest} fell silent first; training.stall_minutes)"
            )

    def _pass_on(self, pid: int, grace: float) -> None:
        if not pid:
            raise ToldToEndError(
                "told to end while the job runs elsewhere: it goes on; run again to follow it", goes_on=True
            )
        if not self.notice.passed_on:
            self.notice.passed_on = True
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if time.monotonic() - (self.notice.given_at or 0.0) > grace:
            raise ToldToEndError(
                f"training was told to end and did not save within {grace:g} s (training.grace_seconds); run again"
                f" to continue from {_place(self.job)}"
            )


@contextmanager
def _noticing() -> Iterator[Notice]:
    """Hear SIGTERM while ranks run; only a process's main thread can."""
    notice = Notice()
    if threading.current_thread() is not threading.main_thread():
        yield notice
        return

    def hear(number: int, frame: object) -> None:  # noqa: ARG001 - a signal handler's signature
        notice.given_at = notice.given_at or time.monotonic()

    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield notice
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(job: Job, ended: Ended, log: Path) -> str:
    """Why the ranks ended; errors that trying again cannot mend are raised."""
    errors = job.errors()
    for error in errors:
        kind = KINDS.get(error["kind"], PilotlineError)
        if kind in (UserError, IntegrityError):
            raise kind(error["error"])
    if ended.status == DISK_FULL:
        raise full(job.folder)
    if len(errors) == job.recipe.training.ranks:
        return errors[0]["error"]
    if ended.reason:
        return ended.reason
    return "a rank died" if errors else f"the ranks ended with status {ended.status}: {tail(log, 2)[-200:]}"


def _set_aside_final(job: Job, say: Callable[[str], None]) -> None:
    """An export that is damaged, or of another job, is never taken for this job's; it stays for a look."""
    if not job.final.is_dir():
        return
    aside = job.folder / f"{SET_ASIDE}{job.final.name}"
    shutil.rmtree(aside, ignore_errors=True)
    job.final.rename(aside)
    say(f"WARNING: {job.final} is damaged or the export of another job; moved to {aside.name}")
    reached("launch.log")


def _clear(job: Job) -> None:
    job.clear_errors()
    clear_beats(job.beats)
    job.preempted_file.unlink(missing_ok=True)
    reached("launch.errors")


def _newest(job: Job) -> int:
    return max(saved_steps(job.folder), default=-1)


def _place(job: Job) -> str:
    return f"its checkpoint of step {_newest(job)}" if _newest(job) >= 0 else "the first step"


def _sleep(seconds: float, notice: Notice) -> None:
    until = time.monotonic() + seconds
    while notice.given_at is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(0.2, left))


def _note(log: Path) -> Callable[[str], None]:
    def say(text: str) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as stream:
            stream.write(f"[training] {text}\n")
        reached("launch.log")

    return say
