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

FORMAT = 1  # raised when the meaning of a checkpoint folder changes
NOT_IN_KEY = {"backend", "checkpoint_every_steps", "keep_checkpoints", "timeout_minutes"}  # change no weight


def training_key(recipe: Recipe, ref: TrainingSetRef, code_version: str = "") -> str:
    """sha256 of all that determines the weights: training set, inputs, model and training sections, and the code."""
    training = recipe.training.model_dump(mode="json", exclude=NOT_IN_KEY)
    return value_digest(
        {
            "format": FORMAT,
            "code": code_version,
            "training_set": ref.digest,
            "features": list(recipe.features.model_inputs),
            "model": recipe.model.model_dump(mode="json"),
            "training": training,
        }
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
    def progress(self) -> Path:
        """JSON lines that rank 0 writes and the launcher forwards."""
        return self.folder / "progress.jsonl"

    @property
    def file(self) -> Path:
        """Where the job is written for the ranks."""
        return self.folder / "job.json"

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

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read `job.json`."""
        try:
            values = json.loads(path.read_text())
            return cls(path.parent, str(values["key"]), parse_recipe(values["recipe"]))
        except (OSError, ValueError, KeyError, TypeError, UserError) as error:
            raise IntegrityError(f"{path}: not a training job ({one_line(error)}); remove the folder") from error

    def note_error(self, rank: int, error: BaseException) -> None:
        """Leave a rank's error for the launcher."""
        kind = error.kind if isinstance(error, PilotlineError) else "failed"
        text = one_line(error) if isinstance(error, PilotlineError) else f"{type(error).__name__}: {one_line(error)}"
        write_atomic(self.error_file(rank), json.dumps({"kind": kind, "error": text[:600]}))

    def errors(self) -> list[dict[str, str]]:
        """Errors that ranks left."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("error-*.json"))]

    def clear_errors(self) -> None:
        """Forget errors of an earlier attempt."""
        for path in self.folder.glob("error-*.json"):
            path.unlink()
