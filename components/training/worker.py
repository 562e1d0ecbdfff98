"""One rank: the training loop, its checks, its checkpoints and, at the end, the export.

Run by a launcher as `python -m torch.distributed.run ... -m components.training.worker JOB.json`.
"""

from __future__ import annotations

import copy
import json
import math
import os
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from components.core.errors import UserError
from components.core.processes import die_with_parent
from components.core.publish import publishing
from components.core.records import CheckpointRef
from components.models.calibration import fit_platt, log_loss, prior_shift, rank_auc
from components.models.spec import spec_for
from components.training.checkpoints import AVERAGES, STATE, checkpoint_folder, newest_whole, prune
from components.training.disk import in_words
from components.training.engine import Engine, engine_files
from components.training.job import Job
from components.training.schedule import average_weight, is_check, is_logged, learning_rate, rows_of_step


@dataclass
class State:
    """What a checkpoint holds beside weights and optimizer: how far the job is, and its curve."""

    step: int = 0
    best_loss: float = math.inf
    best_step: int = 0
    checks_since_best: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)

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
        self.task = spec_for(job.recipe.model.family).task.Task(job.recipe, job.prepared)
        network = self.task.network()
        self.average = copy.deepcopy(network).requires_grad_(False)  # running average of the weights
        self.best: list[torch.Tensor] = [p.clone() for p in self.average.parameters()]
        self.objective = self.task.objective(network)
        self.engine = Engine(self.objective, self.training)
        self.state = State()
        self.resumed_from = 0
        self.chief = self.engine.rank == 0
        share = self.training.batch_size // self.engine.ranks
        self.part = slice(self.engine.rank * share, (self.engine.rank + 1) * share)

    def run(self) -> None:
        """Train from the newest whole checkpoint to the end, and publish the export."""
        self.resume()
        self.begin_clock()
        while self.state.step < self.training.steps and self.state.checks_since_best < self.training.patience:
            self.one_step()
            done = self.state.step
            if done % self.training.checkpoint_every_steps == 0 and done < self.training.steps:
                self.save()
        self.finish()
        self.engine.close()

    def begin_clock(self) -> None:
        """Tokens a second are counted from here."""
        self.clock, self.tokens = time.perf_counter(), 0

    def one_step(self) -> None:
        """One step of the optimizer, and what is due after it."""
        step = self.state.step
        rows = rows_of_step(self.task.train_labels, self.training, step)
        batch = self.task.batch(rows, step, self.part, self.engine.ranks)
        rate = learning_rate(self.training, step)
        loss = self.engine.step(batch, rate)
        weight = average_weight(self.training, step)
        with torch.no_grad(), self.engine.weights(self.objective) as current:
            torch._foreach_lerp_(list(self.average.parameters()), current, weight)
        self.state.step = done = step + 1
        self.tokens += batch.tokens
        if is_logged(self.training, done):
            self.log_step(loss, rate)
        if is_check(self.training, done):
            self.check()

    def log_step(self, loss: float, rate: float) -> None:
        """Write a point of the learning curve."""
        mean = self.engine.mean(loss)
        if not math.isfinite(mean):
            raise UserError(
                f"training diverged at step {self.state.step}: loss is {mean}; lower training.learning_rate"
            )
        speed = self.tokens / max(time.perf_counter() - self.clock, 1e-9)
        self.begin_clock()
        norm = self.engine.gradient_norm()
        self.point({"loss": mean, "lr": rate, "grad_norm": norm, "tokens_per_second": round(speed, 1)})

    def check(self) -> None:
        """Score the validation rows with the averaged weights and remember the best."""
        odds = self.validation_odds()
        labels = self.task.validation_labels
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
            self.best = [p.clone() for p in self.average.parameters()]
        self.point({"validation_loss": loss, "validation_auc": rank_auc(odds, labels)})

    def validation_odds(self) -> NDArray[np.float64]:
        """Uncalibrated log odds of all validation rows; each rank scores its share."""
        total = len(self.task.validation_labels)
        mine = self.task.validation_log_odds(self.average, np.arange(total)[self.engine.rank :: self.engine.ranks])
        return self.engine.gather(mine, total)

    def point(self, values: dict[str, float]) -> None:
        """Add a point to the curve; rank 0 also writes it for the launcher."""
        point = {"step": float(self.state.step), **values}
        self.state.curve.append(point)
        if self.chief:
            with self.job.progress.open("a") as stream:
                stream.write(json.dumps(point) + "\n")

    def save(self) -> None:
        """Publish a checkpoint: every rank writes its share, rank 0 seals it when all have."""
        target = checkpoint_folder(self.job.folder, self.state.step)
        staging = target.with_name(f".{target.name}.staging")  # as `publishing` names it
        if not self.chief:
            self.engine.wait()
            self.engine.save(staging)
            self.engine.wait()
            self.engine.wait()
            return
        with publishing(target, key=self.job.key) as staging:
            self.engine.wait()
            self.engine.save(staging)
            self.engine.wait()
            for extra in engine_files(staging):
                extra.unlink()
            self.write_averages(staging)
            (staging / STATE).write_text(self.state.to_json())
            CheckpointRef(
                digest=self.job.key,
                step=self.state.step,
                world_size=self.engine.ranks,
                zero_stage=self.training.zero_stage,
                recipe_digest=self.job.recipe.digest,
            ).write(staging)
        prune(self.job.folder, self.training.keep_checkpoints)
        say(f"checkpoint of step {self.state.step} is published")
        self.engine.wait()

    def write_averages(self, staging: Path) -> None:
        """The averaged and the best weights, which the engine knows nothing of."""
        tensors = {f"average.{i}": p.detach().contiguous() for i, p in enumerate(self.average.parameters())}
        tensors |= {f"best.{i}": p.contiguous() for i, p in enumerate(self.best)}
        save_file(tensors, staging / AVERAGES)

    def resume(self) -> None:
        """Continue from the newest whole checkpoint, if there is one."""
        found = newest_whole(
            self.job.folder, self.engine.ranks, self.training.zero_stage, say if self.chief else silent
        )
        self.engine.wait()
        if found is not None:
            folder, ref = found
            self.engine.load(folder)
            tensors = load_file(folder / AVERAGES)
            with torch.no_grad():
                for i, parameter in enumerate(self.average.parameters()):
                    parameter.copy_(tensors[f"average.{i}"])
            self.best = [tensors[f"best.{i}"] for i in range(len(self.best))]
            self.state = State.from_json((folder / STATE).read_text())
            self.resumed_from = ref.step
        if self.chief:
            say(f"starting at step {self.state.step} of {self.training.steps} with {self.engine.ranks} ranks")
            self.job.progress.write_text("".join(json.dumps(point) + "\n" for point in self.state.curve))

    def finish(self) -> None:
        """Calibrate the best weights on the validation rows and publish the export."""
        with torch.no_grad():
            for parameter, best in zip(self.average.parameters(), self.best, strict=True):
                parameter.copy_(best)
        odds, labels = self.validation_odds(), self.task.validation_labels
        peak = float(self.engine.gather(np.array([peak_gib()]), self.engine.ranks).max())
        if not self.chief:
            self.engine.wait()
            return
        calibration = fit_platt(odds, labels)
        with publishing(self.job.final, key=self.job.key) as staging:
            self.task.export(self.average, calibration, staging / "model")
            (staging / "result.json").write_text(json.dumps(self.result(odds, labels, calibration, peak)))
        say(f"model of step {self.state.best_step} is exported")
        self.engine.wait()

    def result(
        self, odds: NDArray[np.float64], labels: NDArray[np.int64], calibration: Any, peak: float
    ) -> dict[str, Any]:
        """What the launcher puts into the record."""
        calibrated = calibration.slope * odds + calibration.intercept
        speeds = [point["tokens_per_second"] for point in self.state.curve if "tokens_per_second" in point]
        losses = [point["loss"] for point in self.state.curve if "loss" in point]
        return {
            "steps": self.state.step,
            "parameters": sum(p.numel() for p in self.average.parameters()),
            "resumed_from_step": self.resumed_from,
            "curve": self.state.curve,
            "metrics": {
                "train_loss": losses[-1],
                "validation_loss": log_loss(calibrated, labels),
                "validation_auc": rank_auc(odds, labels),
                "best_step": float(self.state.best_step),
                "tokens_per_second": float(np.median(speeds)),
                "peak_rank_gib": round(peak, 4),
            },
        }


def peak_gib() -> float:
    """The largest resident memory that this process had so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 2**30


def say(text: str) -> None:
    """A plain line in the job's log."""
    print(f"[training] {text}", flush=True)


def silent(text: str) -> None:
    """The other ranks say nothing."""


def main(argv: list[str]) -> int:
    """Run this rank; an error is left in words for the launcher."""
    die_with_parent()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    job = Job.read(Path(argv[0]))
    try:
        Rank(job).run()
    except Exception as error:
        job.note_error(int(os.environ.get("RANK", "0")), in_words(error, job.folder))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
