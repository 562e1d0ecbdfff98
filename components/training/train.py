"""Train a model on a published training set: from its newest good checkpoint, to a published export."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.publish import is_whole, publishing, verify
from components.core.recipe import Recipe
from components.core.records import CheckpointRef, ModelRef, TrainingSetRef
from components.models.files import files_digest, model_digest
from components.models.signing import SIGNATURE_FILE
from components.models.spec import spec_for
from components.training.backends.launch import Backend, Ended, Launch, Watch, attempt, backend_for
from components.training.checkpoints import checkpoint_folder, saved_steps
from components.training.disk import in_words
from components.training.failpoints import reached
from components.training.job import Job, training_key
from components.training.progress import Forwarder
from components.training.restart import ToldToEndError, train_to_the_end

if TYPE_CHECKING:
    import pandas as pd

    from components.tracking.mlflow_tracking import Tracking


def train(
    recipe: Recipe,
    training_set: Path,
    out: Path,
    checkpoints: Path,
    tracking: Tracking | None,
    run_id: str,
    log: Path,
    code_version: str = "",
    sign: Callable[[Path, Path], None] | None = None,
) -> ModelRef:
    """Train the recipe's model and publish it at `out` (`model/`, `record.json`).

    The job is named by what determines its weights. Killed anywhere and called again it continues from its newest
    checkpoint that verifies; finished, it is not run again.

    Args:
        recipe: sections model, training and features are read.
        training_set: a published folder with `train.parquet` and `validation.parquet`, see TrainingSetRef.
        out: folder to publish.
        checkpoints: root under which the job keeps its folder.
        tracking: where parameters and curves go, or None.
        run_id: pipeline run, for the tracking run's name.
        log: output of the ranks.
        code_version: other code is another job: its checkpoints are not continued.
        sign: writes the signature of a model directory to a file, see models/signing.py; None leaves it unsigned,
            which the gate does not let pass.

    Raises:
        UserError: recipe and data do not fit, training diverged, or the disk is full.
        IntegrityError: the training set is not what its manifest says.
        TransientError: ranks died or stalled more often than is worth trying again.
    """
    ref = _verified(training_set)
    _check(recipe, ref)
    key = training_key(recipe, ref, code_version)
    job = Job(checkpoints / key[:32], key, recipe)
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        with _alone(job.folder):
            job.write()
            _prepare(job, ref, training_set)
            mlflow_run = _start_tracking(tracking, job, ref, run_id)
            forwarder = Forwarder(job.progress, tracking, mlflow_run)
            try:
                ranks = _Ranks(backend_for(recipe), Launch(key, job.file, recipe, log))
                train_to_the_end(job, ranks, log, forwarder)
                model = _publish(job, ref, out, mlflow_run, sign)
            except BaseException as error:
                _end_tracking(forwarder, error)
                raise
            forwarder.finish(model, out)
            return model
    except Exception as error:
        raise in_words(error, job.folder) from error


def _verified(training_set: Path) -> TrainingSetRef:
    manifest = verify(training_set)
    ref = TrainingSetRef.read(training_set)
    for name in ("train", "validation"):
        if f"{name}.parquet" not in manifest["files"] or name not in {split.name for split in ref.splits}:
            raise IntegrityError(f"{training_set}: no {name} split; featurise again")
        if manifest["files"][f"{name}.parquet"]["sha256"] != ref.split(name).digest:
            raise IntegrityError(
                f"{training_set}: {name}.parquet is not the split that the record names; featurise again"
            )
    return ref


def _check(recipe: Recipe, ref: TrainingSetRef) -> None:
    """Refuse what could only fail, or learn nothing, hours later."""
    backend_for(recipe)  # refuses what it cannot honour
    if missing := [name for name in recipe.features.model_inputs if name not in ref.features]:
        raise UserError(
            f"recipe: features.model_inputs names {missing[0]!r}, which the training set does not hold"
            f" (it has {', '.join(ref.features)})"
        )
    if not recipe.features.model_inputs and not recipe.model.text_tokens:
        raise UserError("recipe: no features.model_inputs and model.text_tokens is 0; give the model something to read")
    for name in ("train", "validation"):
        split = ref.split(name)
        if not split.rows:
            raise UserError(f"training set: the {name} split has no rows; widen source.since/until or the split shares")
        if split.positives in (0, split.rows):
            label = recipe.model.labels[1 if split.positives else 0]
            raise UserError(
                f"training set: all {split.rows} rows of the {name} split are {label!r}; both labels are needed:"
                " widen the interval or check model.positive_values"
            )


def _prepare(job: Job, ref: TrainingSetRef, training_set: Path) -> None:
    if is_whole(job.prepared, key=job.key):
        return
    preparation = spec_for(job.recipe.model.family).preparation
    columns = ["label", "text", *job.recipe.features.model_inputs]
    train_rows, validation = (_read(training_set / f"{name}.parquet", columns) for name in ("train", "validation"))
    with publishing(job.prepared, key=job.key) as staging:
        preparation.prepare(job.recipe, ref, train_rows, validation, staging)
    reached("launch.prepared")


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path, columns=columns)
    except (ValueError, KeyError, OSError) as error:
        raise IntegrityError(
            f"{path}: columns {', '.join(columns)} cannot be read ({error}); featurise again"
        ) from error


@dataclass(frozen=True)
class _Ranks:
    """The job's ranks on the recipe's back-end."""

    backend: Backend
    launch: Launch

    def run(self, seconds: float, watch: Watch) -> Ended:
        return attempt(self.backend, self.launch, seconds, watch)

    def cancel(self) -> None:
        self.backend.cancel(self.launch)


def _publish(
    job: Job, ref: TrainingSetRef, out: Path, mlflow_run: str, sign: Callable[[Path, Path], None] | None
) -> ModelRef:
    verify(job.final, key=job.key)
    result: dict[str, Any] = json.loads((job.final / "result.json").read_text())
    steps = saved_steps(job.folder)
    with publishing(out) as staging:
        adapter = job.final / "adapter"
        for folder in (job.final / "model", adapter):
            if folder.is_dir():
                shutil.copytree(folder, staging / folder.name)
        model = ModelRef(
            digest=model_digest(staging / "model"),
            family=job.recipe.model.family,
            parameters=result["parameters"],
            training_set_digest=ref.digest,
            recipe_digest=job.recipe.digest,
            steps=result["steps"],
            world_size=result["world_size"],
            zero_stage=result["zero_stage"],
            checkpoint=CheckpointRef.read(checkpoint_folder(job.folder, steps[-1])) if steps else None,
            mlflow_run_id=mlflow_run,
            labels=tuple(job.recipe.model.labels),
            metrics=result["metrics"],
            curve=tuple(result["curve"]),
            resumed_from_step=result["resumed_from_step"],
            adapter_digest=files_digest(adapter) if adapter.is_dir() else "",
        )
        model.write(staging)
        if sign is not None:
            sign(staging / "model", staging / SIGNATURE_FILE)
    reached("launch.published")
    return model


def _start_tracking(tracking: Tracking | None, job: Job, ref: TrainingSetRef, run_id: str) -> str:
    if tracking is None:
        return ""
    recipe = job.recipe
    sections = {"model": recipe.model, "training": recipe.training, "features": recipe.features}
    params = {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in values.model_dump(mode="json").items()
    }
    tags = {
        "pilotline.run_id": run_id,
        "pilotline.recipe": recipe.name,
        "pilotline.recipe_digest": recipe.digest,
        "pilotline.training_set_digest": ref.digest,
        "pilotline.snapshot_digest": ref.snapshot_digest,
    }
    return tracking.start(recipe.model.name, f"{recipe.name} {run_id}", job.key, params, tags)


def _end_tracking(forwarder: Forwarder, error: BaseException) -> None:
    """What was told to end is killed and did not fail; what goes on elsewhere has not ended."""
    if isinstance(error, ToldToEndError) and error.goes_on:
        return
    ended = isinstance(error, ToldToEndError) or not isinstance(error, Exception)
    forwarder.close("KILLED" if ended else "FAILED")


@contextmanager
def _alone(folder: Path, seconds: float = 20.0) -> Iterator[None]:
    """Only one launcher trains a job at a time; the kernel frees the lock of a killed one."""
    with (folder / ".lock").open("w") as stream:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TransientError(
                        f"{folder}: another run trains this very job; run again when it is done"
                    ) from error
                time.sleep(0.2)
        reached("launch.lock")
        yield
