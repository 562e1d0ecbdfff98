"""A rank's checkpoints: when one is due, how it is written while training goes on, and which one is resumed.

A save has a short part that stops training, in which every rank copies its share to memory, and a long part in a
thread: each rank writes, syncs and digests its files and leaves a list of them; rank 0 waits for all lists, seals the
folder and renames it. At most one save is under way; its errors surface at the next step.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from components.core.digest import file_digest
from components.core.errors import IntegrityError, TransientError, one_line
from components.core.publish import write_atomic
from components.core.records import CheckpointRef
from components.training import guard
from components.training.beats import Beat
from components.training.checkpoints import (
    AVERAGES,
    STATE,
    Found,
    check,
    checkpoint_folder,
    clear_leftovers,
    point_to,
    prune,
    publish_checkpoint,
    refuse_if_lost,
    saved_steps,
    set_aside,
    sync,
    tell_if_older,
)
from components.training.failpoints import reached
from components.training.job import PREEMPTED, ROLLED_BACK
from components.training.staging import Copier, Files, write
from components.training.universal import check_universal, is_other_shape, universal_folder

if TYPE_CHECKING:
    import torch

    from components.training.worker import Rank

AGREE_SECONDS = 1.0  # about how often ranks ask each other whether to save or to stop
LOOK_SECONDS = 0.02
NEVER = 1e15


class Saver:
    """Checkpoints of one rank; every public method is called by all ranks together."""

    def __init__(self, rank: Rank, say: Callable[[str], None]) -> None:
        """`say` prints a line of this rank; what all ranks know only rank 0 says."""
        self._rank, self._any_says = rank, say
        self._say = say if rank.chief else _nothing
        self._job, self._training, self._engine = rank.job, rank.training, rank.engine
        self.beat = Beat(rank.job.beats, rank.engine.rank)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}
        self._attempt = 0
        self._saved_at, self._next_talk, self._talked_at = time.monotonic(), 0, (0, time.monotonic())
        self._first_bad = math.inf  # step of the first loss of this rank that was no number
        self._terminated = False
        self.stalls: list[float] = []  # seconds that each save kept training waiting
        signal.signal(signal.SIGTERM, self._on_sigterm)
        reached("rank.init")

    def resume(self) -> Found | None:
        """Load the newest checkpoint that all ranks find whole, and return it; None where the job had none.

        Raises:
            IntegrityError: some exist and none can be used, or the ranks see different folders.
        """
        rank, folder = self._rank, self._job.folder
        self.beat.show()
        if rank.chief:
            clear_leftovers(folder)
            self._job.preempted_file.unlink(missing_ok=True)
        self._attempt = int(self._everyone(float(time.time_ns() // 1_000_000 % 2**40))[0])
        found, skipped = self._agree_on_newest()
        if found is None:
            refuse_if_lost(folder, skipped)
        else:
            self._load(found)
            if rank.chief:
                tell_if_older(folder, found.ref.step, skipped, self._say)
                set_aside(folder, [step for step in saved_steps(folder) if step > found.ref.step])
                point_to(folder, found.ref.step)
        rank.state.skipped = sorted({*rank.state.skipped, *self._job.skipped()})
        self._engine.wait()
        reached("resume.loaded")
        self._saved_at, self._next_talk = time.monotonic(), rank.state.step
        return found

    def is_usable(self, loss: float) -> bool:
        """Whether this step's gradient is applied; all ranks answer alike. `loss` is this rank's."""
        rank, training = self._rank, self._training
        step = rank.state.step
        if step in rank.state.skipped:
            return False
        if not guard.watches_every_step(training):
            if not math.isfinite(loss):
                self._first_bad = min(self._first_bad, step)
            return True
        mean = float(self._everyone(loss).mean())
        if why := guard.trouble(mean, rank.state.recent, training.spike_factor):
            self._handle(step, why)
            return False
        rank.state.recent = guard.remembered(mean, rank.state.recent)
        return True

    def after_step(self) -> None:
        """Show progress, publish a checkpoint where one is due, and stop where the machine is taken away.

        Raises:
            SystemExit: with PREEMPTED, after a checkpoint; with ROLLED_BACK, for a start from the one before.
        """
        reached("rank.step")
        self.beat.show()
        self._surface()
        done, training = self._rank.state.step, self._training
        is_due = done % training.checkpoint_every_steps == 0
        if done < self._next_talk and not is_due:
            return
        terminated, is_late = self._talk(done)
        if done < training.steps and (terminated or is_due or is_late):
            self.save()
        if terminated and not self._rank.is_finished():  # else the export alone is left, and is worth the grace
            self._leave(done)

    def save(self) -> None:
        """Begin a checkpoint of this step; it is published when the thread that writes it is done."""
        self.join()
        began = time.perf_counter()
        rank, step = self._rank, self._rank.state.step
        staging = self._job.folder / f".step-{step:06d}.{self._attempt}.staging"
        states = self._engine.save(staging)
        reached("save.begin")
        extras = Copier(self._buffers, AVERAGES).copied(rank.average.tensors()) if rank.chief else {}
        work = (staging, step, states, extras, rank.state.to_json())
        if self._training.checkpoint_in_background:
            self._thread = threading.Thread(target=self._guarded, args=work, daemon=True, name="checkpoint")
            self._thread.start()
        else:
            self._write(*work)
            self._engine.wait()
        self._saved_at = time.monotonic()
        self.stalls.append(time.perf_counter() - began)

    def join(self) -> None:
        """Wait until this rank's part of the save under way is done (rank 0: until it is published)."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._surface()

    def _guarded(self, *work: Any) -> None:
        try:
            self._write(*work)
        except BaseException as error:  # raised by the main thread at its next step
            self._error = error

    def _surface(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self, staging: Path, step: int, states: list[Any], extras: dict[str, Any], state: str) -> None:
        files: Files = {}
        for path, content in states:
            files[path.relative_to(staging).as_posix()] = write(path, content)
            reached("save.shard")
        if self._rank.chief:
            files |= self._write_extras(staging, step, extras, state)
        sync(staging)
        write_atomic(staging / f".part-{self._engine.rank}.json", json.dumps(files))
        reached("save.part")
        if self._rank.chief:
            self._publish(staging, step)

    def _write_extras(self, staging: Path, step: int, extras: dict[str, Any], state: str) -> Files:
        """What the engine knows nothing of: averaged and best weights, the loop's state, the record."""
        save_file(extras, staging / AVERAGES)
        (staging / STATE).write_text(state)
        CheckpointRef(
            digest=self._job.key,
            step=step,
            world_size=self._engine.ranks,
            zero_stage=self._training.zero_stage,
            recipe_digest=self._job.recipe.digest,
        ).write(staging)
        found: Files = {}
        for path in sorted(path for path in staging.iterdir() if path.is_file() and not path.name.startswith(".")):
            sync(path)
            found[path.name] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        reached("save.extras")
        return found

    def _publish(self, staging: Path, step: int) -> None:
        files = self._collected(staging)
        about = {
            "key": self._job.key,
            "step": step,
            "data_position": step * self._training.batch_size,
            "world_size": self._engine.ranks,
            "zero_stage": self._training.zero_stage,
            "recipe_digest": self._job.recipe.digest,
        }
        publish_checkpoint(staging, checkpoint_folder(self._job.folder, step), files, about)
        point_to(self._job.folder, step)
        prune(self._job.folder, self._training.keep_checkpoints)
        self._say(f"checkpoint of step {step} is published")

    def _collected(self, staging: Path) -> Files:
        """The lists that all ranks left, taken out of the folder; TransientError where one does not come."""
        deadline = time.monotonic() + self._training.stall_minutes * 60
        parts = [staging / f".part-{rank}.json" for rank in range(self._engine.ranks)]
        while missing := [path for path in parts if not path.exists()]:
            if time.monotonic() > deadline:
                raise TransientError(f"{staging}: {missing[0].name} was not written in time; a rank hangs")
            time.sleep(LOOK_SECONDS)
        files: Files = {}
        for path in parts:
            files |= json.loads(path.read_text())
            path.unlink()
        reached("save.collected")
        return files

    def _agree_on_newest(self) -> tuple[Found | None, list[int]]:
        """The newest checkpoint that every rank verified, and the steps that were passed over."""
        steps = self._seen_steps()
        skipped: list[int] = []
        for step in reversed(steps):
            found, why = self._verified(step)
            whole = self._everyone(float(found is not None))
            if whole.min() > 0:
                return found, skipped
            if self._engine.rank == int(whole.argmin()):  # each rank reads other files: the first that saw damage
                self._any_says(f"WARNING: checkpoint of step {step} is damaged and not used: {why}")
            skipped.append(step)
        return None, skipped

    def _seen_steps(self) -> list[int]:
        """Steps that have a folder; IntegrityError where ranks see different ones."""
        steps = saved_steps(self._job.folder)
        for mine in (len(steps), steps[-1] if steps else -1, sum(steps)):
            seen = self._everyone(float(mine))
            if seen.min() != seen.max():
                raise IntegrityError(
                    f"{self._job.folder}: ranks see different checkpoints; put the home on a volume that all nodes"
                    " share"
                )
        return steps

    def _verified(self, step: int) -> tuple[Found | None, str]:
        """The checkpoint, as far as this rank has read it: the ranks of a node share the reading."""
        here = int(os.environ.get("LOCAL_RANK", self._engine.rank))
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", self._engine.ranks))
        try:
            found = check(checkpoint_folder(self._job.folder, step), step, self._job.key, here, ranks_here)
            read = found.folder
            if is_other_shape(found.ref, self._engine.ranks, self._training.zero_stage):
                check_universal(self._job.folder, found, here, ranks_here)
                read = universal_folder(self._job.folder, step)
            self._engine.refuse_foreign(sorted(read.rglob("*.pt"))[here::ranks_here])
        except IntegrityError as error:
            return None, one_line(error)
        finally:
            self.beat.show()
        return found, ""

    def _load(self, found: Found) -> None:
        """Read what was verified; the shape of the job decides which of the two forms."""
        rank = self._rank
        if is_other_shape(found.ref, self._engine.ranks, self._training.zero_stage):
            self._engine.load(universal_folder(self._job.folder, found.ref.step), universal=True)
            self._say(
                f"checkpoint of step {found.ref.step} was written by {found.ref.world_size} ranks at ZeRO stage"
                f" {found.ref.zero_stage}; it is read by {self._engine.ranks} at stage {self._training.zero_stage}"
            )
        else:
            self._engine.load(found.folder)
        rank.average.load(load_file(found.folder / AVERAGES))
        rank.state = type(rank.state).from_json((found.folder / STATE).read_text())
        self.beat.show()

    def _talk(self, done: int) -> tuple[bool, bool]:
        """Ask all ranks: is one told to end, are the minutes over, was a loss no number; and when to ask again."""
        at, clock = self._talked_at
        now = time.monotonic()
        pace = (now - clock) / max(1, done - at)
        minutes = self._training.checkpoint_every_minutes
        is_late = bool(minutes) and now - self._saved_at >= minutes * 60
        wait = 1.0 if done == at else min(1000.0, max(1.0, AGREE_SECONDS / max(pace, 1e-6)))
        mine = np.array([float(self._terminated), float(is_late), min(self._first_bad, NEVER), wait])
        said = self._engine.gather(mine, 4 * self._engine.ranks).reshape(4, self._engine.ranks)
        self._next_talk, self._talked_at = done + int(said[3][0]), (done, now)
        if (bad := said[2].min()) < NEVER:
            self._handle(int(bad), "the loss is not a number")
        return bool(said[0].max()), bool(said[1].max())

    def _handle(self, step: int, why: str) -> None:
        """Apply the recipe's rule to a step whose loss is bad; returns where the step is just left out."""
        rank, training = self._rank, self._training
        self.join()  # a run that ends here keeps the save under way
        self._engine.wait()
        guard.refuse_more(training, step, why, rank.state.skipped)
        rank.state.skipped = sorted({*rank.state.skipped, step})
        if rank.chief:
            self._say(f"WARNING: step {step} is left out: {why} (training.on_nan = {training.on_nan})")
        if training.on_nan == "skip":
            return
        self.join()
        if rank.chief:
            self._job.note_skipped(rank.state.skipped)
        self._engine.wait()
        raise SystemExit(ROLLED_BACK)

    def _leave(self, done: int) -> None:
        self.join()
        self._engine.wait()
        if self._rank.chief:
            self._job.note_preempted(done)
            self._say(f"told to end: the checkpoint of step {done} is published; run again to continue")
        self._engine.wait()
        raise SystemExit(PREEMPTED)

    def _everyone(self, value: float) -> NDArray[np.float64]:
        """What each rank says, in the order of ranks."""
        return self._engine.gather(np.array([value]), self._engine.ranks)

    def _on_sigterm(self, number: int, frame: object) -> None:  # noqa: ARG002 - a signal handler's signature
        self._terminated = True


def _nothing(text: str) -> None:
    """The other ranks do not repeat what rank 0 says."""
