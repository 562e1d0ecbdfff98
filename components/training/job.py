"""What the launcher tells the ranks, and the key that names a training job."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from components.core.digest import value_digest
from components.core.errors import IntegrityError, PilotlineError, UserError, one_line
from components.core.publish import write_atomic
from components.core.recipe import Recipe, parse_recipe
from components.core.records import TrainingSetRef
from components.models.spec import spec_for
from components.training.disk import full, is_full
from components.training.failpoints import reached

FORMAT = 2  # raised when the meaning of a checkpoint folder changes
PREEMPTED, ROLLED_BACK = 75, 76  # exit status of ranks: told to end and saved; a bad step is to be left out
NOT_IN_KEY = {  # where and how, but not what is computed: a job goes on with other values of these
    "accumulation",
    "activation_checkpointing",
    "backend",
    "checkpoint_every_minutes",
    "checkpoint_every_steps",
    "checkpoint_in_background",
    "grace_seconds",
    "keep_checkpoints",
    "max_skips",
    "offload_optimizer",
    "offload_parameters",
    "on_nan",
    "peak_tflops",
    "ranks",
    "restart_wait_seconds",
    "restarts",
    "spike_factor",
    "stall_minutes",
    "timeout_minutes",
    "zero_stage",
}


def training_key(recipe: Recipe, ref: TrainingSetRef, code_version: str = "") -> str:
    """sha256 of all that determines the weights: training set, inputs, model and training sections, and the code.

    The number of ranks, the ZeRO stage and the accumulation are not part of it: with the global batch the same they
    change weights by rounding alone, and a job may go on in another shape.
    """
    training = recipe.training.model_dump(mode="json", exclude=NOT_IN_KEY)
    initial = spec_for(recipe.model.family).preparation.initial_digest(recipe)
    return value_digest(
        {
            "format": FORMAT,
            "code": code_version,
            "training_set": ref.digest,
            "features": list(recipe.features.model_inputs),
            "model": recipe.model.model_dump(mode="json"),
            "training": training,
        }
        | ({"initial": initial} if initial else {})
    )


@dataclass(frozen=True)
class Job:
    """One training job's folder: `prepared/`, `step-NNNNNN/` checkpoints, `final/`, `progress.jsonl`, `job.json`."""

    folder: Path
    key: str
    recipe: Recipe

    @property
    def prepared(self) -> Path:
        """Vocabulary, signature and encoded rows."""
        return self.folder / "prepared"

    @property
    def final(self) -> Path:
        """The finished export: `model/` and `result.json`."""
        return self.folder / "final"

    @property
    def exporting(self) -> Path:
        """Where the export is written before it is published, see core/publish.py."""
        return self.folder / ".final.staging"

    @property
    def progress(self) -> Path:
        """JSON lines that rank 0 writes and the launcher forwards."""
        return self.folder / "progress.jsonl"

    @property
    def file(self) -> Path:
        """Where the job is written for the ranks."""
        return self.folder / "job.json"

    @property
    def beats(self) -> Path:
        """Signs of progress, a file a rank."""
        return self.folder / "beats"

    @property
    def preempted_file(self) -> Path:
        """There when ranks were told to end and have published a checkpoint."""
        return self.folder / "preempted.json"

    @property
    def skipped_file(self) -> Path:
        """Steps that are left out after a rollback."""
        return self.folder / "skipped.json"

    def error_file(self, rank: int) -> Path:
        """Where a rank leaves its error."""
        return self.folder / f"error-{rank}.json"

    def write(self) -> None:
        """Write `job.json`; UserError where the folder belongs to another job."""
        if self.file.exists() and (found := Job.read(self.file).key) != self.key:
            raise UserError(
                f"{self.folder}: holds checkpoints of another recipe or training set ({found[:12]}); remove it"
            )
        write_atomic(self.file, json.dumps({"key": self.key, "recipe": json.loads(self.recipe.to_json())}))
        reached("launch.job")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read `job.json`."""
        try:
            values = json.loads(path.read_text())
            return cls(path.parent, str(values["key"]), parse_recipe(values["recipe"]))
        except (OSError, ValueError, KeyError, TypeError, UserError) as error:
            raise IntegrityError(f"{path}: not a training job ({one_line(error)}); remove the folder") from error

    def note_error(self, rank: int, error: BaseException) -> None:
        """Leave a rank's error for the launcher; where the disk is full an empty file says that."""
        kind = error.kind if isinstance(error, PilotlineError) else "failed"
        text = one_line(error) if isinstance(error, PilotlineError) else f"{type(error).__name__}: {one_line(error)}"
        try:
            write_atomic(self.error_file(rank), json.dumps({"kind": kind, "error": text[:600]}))
        except OSError as unwritten:
            if not is_full(unwritten):
                raise
            self.error_file(rank).touch()  # needs no block of the disk
        reached("launch.error")

    def note_preempted(self, step: int) -> None:
        """Say for the launcher that the ranks ended in good order after the checkpoint of `step`."""
        write_atomic(self.preempted_file, json.dumps({"step": step}))
        reached("preempt.noted")

    def preempted(self) -> int | None:
        """The step after which the ranks were told to end; None where they were not."""
        values = _read(self.preempted_file)
        return int(values["step"]) if isinstance(values, dict) and "step" in values else None

    def note_skipped(self, steps: list[int]) -> None:
        """Remember the steps to leave out; part of every later checkpoint's state as well."""
        write_atomic(self.skipped_file, json.dumps(steps))
        reached("rollback.noted")

    def skipped(self) -> list[int]:
        """Steps to leave out, noted by a rollback."""
        values = _read(self.skipped_file)
        return [int(step) for step in values] if isinstance(values, list) else []

    def errors(self) -> list[dict[str, str]]:
        """Errors that ranks left; an empty file is one that found no room, see `note_error`."""
        no_room = {"kind": UserError.kind, "error": str(full(self.folder))}
        texts = [path.read_text() for path in sorted(self.folder.glob("error-*.json"))]
        return [json.loads(text) if text else no_room for text in texts]

    def clear_errors(self) -> None:
        """Forget errors of an earlier attempt, and files that killed ranks did not finish."""
        for path in (*self.folder.glob("error-*.json"), *self.folder.glob(".*.tmp")):
            path.unlink(missing_ok=True)
        reached("launch.errors")


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: cannot be read ({one_line(error)}); remove the folder {path.parent}") from error
