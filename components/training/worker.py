"""One rank: the training loop, its checks, its checkpoints and, at the end, the export.

Run by a launcher as `python -m torch.distributed.run ... -m components.training.worker JOB.json`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from components.core.errors import TransientError, UserError
from components.core.processes import die_with_parent
from components.core.publish import MANIFEST, publishing, write_atomic
from components.models.calibration import Calibration, fit_platt, log_loss, prior_shift, rank_auc
from components.models.spec import spec_for
from components.training.averages import Average
from components.training.beats import shown_by
from components.training.disk import DISK_FULL, in_words, is_full
from components.training.engine import Engine, check_device, precision_of
from components.training.failpoints import reached
from components.training.job import Job
from components.training.saving import Saver
from components.training.schedule import (
    average_weight,
    held_out_rows,
    is_check,
    is_logged,
    learning_rate,
    parts_of_rank,
    rows_of_step,
)
from components.training.speed import MEASURED, Meter, memory_gib, peak_flops


@dataclass
class State:
    """What a checkpoint holds beside weights and optimizer: how far the job is, and its curve."""

    step: int = 0
    best_loss: float = math.inf
    best_step: int = 0
    checks_since_best: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)  # losses behind the running median, see guard.py
    skipped: list[int] = field(default_factory=list)  # steps that were left out

    def to_json(self) -> str:
        """JSON text; the best loss is null before the first check."""
        values = dict(self.__dict__)
        values["best_loss"] = None if math.isinf(self.best_loss) else self.best_loss
        return json.dumps(values, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> State:
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(**(values | {"best_loss": math.inf if values["best_loss"] is None else values["best_loss"]}))


class Rank:
    """One rank's view of the job."""

    def __init__(self, job: Job) -> None:
        self.job, self.training = job, job.recipe.training
        check_device(self.training)  # before anything takes memory
        self.task = spec_for(job.recipe.model.family).task(job.recipe, job.prepared)
        network = self.task.network()
        shared = self.training.zero_stage < 3 and precision_of(self.training) == "fp32"
        self.average = Average(network, shared=shared)
        self.objective = self.task.objective(network)
        self.engine = Engine(self.objective, self.training)
        self.average.to(self.engine.device)
        peak = peak_flops(self.training.peak_tflops, self.engine.device, self.engine.precision)
        self.meter = Meter(self.engine.communication, peak)
        self.state = State()
        self.resumed_from = 0
        self.chief = self.engine.rank == 0
        self.held_out = held_out_rows(self.task.validation_labels, self.training)
        self.held_out_labels = self.task.validation_labels[self.held_out]
        self.parts = parts_of_rank(self.training, self.engine.rank, self.engine.ranks)
        self.saver = Saver(self, say)

    def run(self) -> None:
        """Train from the newest whole checkpoint to the end, and publish the export."""
        self.resume()
        self.meter.start()
        while not self.is_finished():
            self.one_step()
            self.saver.after_step()
        self.finish()
        self.engine.close()

    def is_finished(self) -> bool:
        """All steps are done, or the validation loss has not fallen for `patience` checks."""
        return self.state.step >= self.training.steps or self.state.checks_since_best >= self.training.patience

    def one_step(self) -> None:
        """One step of the optimizer, and what is due after it."""
        step = self.state.step
        rows = rows_of_step(self.task.train_labels, self.training, step)
        batches = self.task.batches(rows, step, self.parts)
        rate = learning_rate(self.training, step)
        loss = self.engine.forward_backward(batches)
        if self.saver.is_usable(loss):
            self.engine.apply(rate)
        else:
            self.engine.drop()
        self.follow(step)
        self.state.step = done = step + 1
        self.meter.tokens += batches[0].step_tokens
        self.meter.flops += batches[0].step_flops
        if is_logged(self.training, done):
            self.log_step(loss, rate)
        if is_check(self.training, done):
            self.check()

    def follow(self, step: int) -> None:
        """Let the new weights enter the average; without averaging they are taken when they are looked at."""
        if self.training.average_decay or is_check(self.training, step + 1):
            with self.engine.weights() as current:
                self.average.follow(current, average_weight(self.training, step))

    def log_step(self, loss: float, rate: float) -> None:
        """Write a point of the learning curve: the mean loss of all ranks, and how fast they are."""
        mine = np.concatenate([[loss], self.meter.read()])
        ranks = self.engine.ranks
        found = self.engine.gather(mine, len(mine) * ranks).reshape(len(mine), ranks)
        mean = float(found[0].sum()) / ranks
        if not math.isfinite(mean):
            if self.training.on_nan != "stop":
                return  # the step was left out, or is about to be
            raise UserError(
                f"training diverged at step {self.state.step}: loss is {mean}; lower training.learning_rate"
            )
        values = {"loss": mean, "lr": rate, "grad_norm": self.engine.gradient_norm()}
        self.point(values | self.meter.values(found[1:]))
        self.meter.start()

    def check(self) -> None:
        """Score the validation rows with the averaged weights and remember the best."""
        odds = self.validation_odds()
        labels = self.held_out_labels
        shift = (
            prior_shift(float(self.task.train_labels.mean()), self.training.positive_share)
            if self.training.positive_share
            else 0.0
        )
        loss = log_loss(odds + shift, labels)
        if not math.isfinite(loss):
            raise UserError(
                f"training diverged at step {self.state.step}: validation loss is {loss}; lower training.learning_rate"
            )
        self.state.checks_since_best += 1
        if loss < self.state.best_loss:
            self.state.best_loss, self.state.best_step, self.state.checks_since_best = loss, self.state.step, 0
            self.average.keep_as_best()
        self.point({"validation_loss": loss, "validation_auc": rank_auc(odds, labels)})

    def validation_odds(self) -> NDArray[np.float64]:
        """Uncalibrated log odds of all validation rows; each rank scores its share."""
        total = len(self.held_out)
        rows = self.held_out[self.engine.rank :: self.engine.ranks]
        with shown_by(self.average.network, self.saver.beat):
            mine = self.task.validation_log_odds(self.average.network, rows)
        return self.engine.gather(mine, total)

    def point(self, values: dict[str, float]) -> None:
        """Add a point to the curve; rank 0 also writes it for the launcher."""
        point = {"step": float(self.state.step), **values}
        self.state.curve.append(point)
        if self.chief:
            with self.job.progress.open("a") as stream:
                stream.write(json.dumps(point) + "\n")
            reached("rank.progress")

    def resume(self) -> None:
        """Continue from the newest checkpoint that all ranks find whole, if there is one."""
        found = self.saver.resume()
        self.resumed_from = 0 if found is None else found.ref.step
        if self.chief:
            if self.meter.peak_flops is None:
                say("model FLOP utilisation is unknown: no peak of this device is known; name training.peak_tflops")
            say(f"starting at step {self.state.step} of {self.training.steps} with {self.engine.ranks} ranks")
            write_atomic(self.job.progress, "".join(json.dumps(point) + "\n" for point in self.state.curve))
            reached("rank.progress")

    def finish(self) -> None:
        """Calibrate the best weights on the validation rows and publish the export."""
        self.saver.join()
        if set(range(self.state.step)) <= set(self.state.skipped):
            raise UserError(
                f"training diverged: all {self.state.step} steps were left out, as their loss was no number; lower"
                " training.learning_rate"
            )
        self.average.restore_best()
        odds, labels = self.validation_odds(), self.held_out_labels
        peak = float(self.engine.gather(np.array([memory_gib()]), self.engine.ranks).max())
        if not self.chief:
            self._await_export()
            return
        calibration = fit_platt(odds, labels)
        with publishing(self.job.final, key=self.job.key) as staging:
            reached("export.begin")
            self.task.export_adapter(self.average.network, staging / "adapter")
            self.task.export(self.average.network, calibration, staging / "model")
            (staging / "result.json").write_text(json.dumps(self.result(odds, labels, calibration, peak)))
        reached("export.published")
        say(f"model of step {self.state.best_step} is exported")
        self.engine.wait()

    def _await_export(self) -> None:
        """Look for the export, without a sign of one's own; the launcher's bound is on what rank 0 shows.

        No collective: its bound would end the export of a large model.
        """
        deadline = time.monotonic() + self.training.timeout_minutes * 60
        while not (self.job.final / MANIFEST).is_file():
            if time.monotonic() > deadline:
                raise TransientError(f"{self.job.final}: not exported within training.timeout_minutes")
            time.sleep(0.05)
        self.engine.wait()

    def result(
        self, odds: NDArray[np.float64], labels: NDArray[np.int64], calibration: Calibration, peak: float
    ) -> dict[str, Any]:
        """What the launcher puts into the record."""
        calibrated = calibration.slope * odds + calibration.intercept
        logged = [point["loss"] for point in self.state.curve if "loss" in point]
        losses = logged or self.state.recent  # all that would have been logged may have been left out
        return {
            "steps": self.state.step,
            "world_size": self.engine.ranks,
            "zero_stage": self.training.zero_stage,
            "parameters": sum(p.numel() for p in self.average.network.parameters()),
            "resumed_from_step": self.resumed_from,
            "curve": self.state.curve,
            "metrics": {
                "train_loss": losses[-1],
                "validation_loss": log_loss(calibrated, labels),
                "validation_auc": rank_auc(odds, labels),
                "best_step": float(self.state.best_step),
                "trained_parameters": float(sum(weight.numel() for weight in self.average.weights)),
                "peak_rank_gib": round(peak, 4),
            }
            | medians(self.state.curve),
        }


def medians(curve: list[dict[str, float]]) -> dict[str, float]:
    """The median over the curve of what was measured while training; memory, a peak, is told on its own."""
    names = sorted(MEASURED - {"memory_gib"})
    found = {name: [point[name] for point in curve if name in point] for name in names}
    return {name: float(np.median(values)) for name, values in found.items() if values}


def say(text: str) -> None:
    """A plain line in the job's log."""
    print(f"[training] {text}", flush=True)


def main(argv: list[str]) -> int:
    """Run this rank; an error is left in words for the launcher."""
    die_with_parent()
    torch.set_num_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what makes cuBLAS repeat itself
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    job = Job.read(Path(argv[0]))
    try:
        Rank(job).run()
    except Exception as error:
        job.note_error(int(os.environ.get("RANK", "0")), in_words(error, job.folder))
        if is_full(error):
            traceback.print_exc()
            return DISK_FULL
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
