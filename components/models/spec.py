"""The registry of model families: a second family is one package, and one entry here or an entry point of its own.

A family's package has modules `prepare` (see Preparation), `task` (Task), `score` (Scorer), `prompt` where it is served
through a language-model server (Renderer), and `exposure` where it can say what it memorised.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from components.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from components.core.recipe import Recipe
    from components.core.records import TrainingSetRef


class Renderer(Protocol):
    """From inputs to token ids and from label log probabilities to a decision."""

    signature: dict[str, Any]
    features: tuple[str, ...]
    labels: tuple[str, ...]
    label_token_ids: list[int]
    max_tokens: int

    def token_ids(self, features: Mapping[str, float | None], text: str) -> list[int]:
        """The prompt of one row."""
        ...

    def score(self, logprob_negative: float, logprob_positive: float) -> float:
        """The calibrated probability of the positive label."""
        ...

    def label(self, score: float, threshold: float) -> str:
        """The label of a score."""
        ...


class Scorer(Protocol):
    """A loaded model that scores frames."""

    def score(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Calibrated probability of the positive label, shape (rows,)."""
        ...


class Batch(Protocol):
    """One micro-batch; `step_tokens` and `step_flops` are of the whole step's batch, of which it is a slice."""

    step_tokens: int
    step_flops: float

    def to(self, device: Any) -> Batch:
        """The same batch in a device's memory."""
        ...


class Task(Protocol):
    """What a family's training consists of; `task.Task(recipe, prepared)` of its package makes one.

    Everything random in `batches` is a function of the seed and the step for the whole batch, so that neither ranks nor
    accumulation nor a restart change it.
    """

    train_labels: NDArray[np.int64]
    validation_labels: NDArray[np.int64]

    def network(self) -> Any:
        """The torch module to train, the same in every process; parameters without gradient stay as they are."""
        ...

    def objective(self, network: Any) -> Any:
        """A torch module: micro-batch to loss, whose mean over micro-batches is the whole batch's loss."""
        ...

    def batches(self, rows: NDArray[np.int64], step: int, parts: Sequence[slice]) -> Sequence[Batch]:
        """The slices of a step's batch, whose training rows these are."""
        ...

    def validation_log_odds(self, network: Any, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Uncalibrated log odds of these validation rows, shape (rows,)."""
        ...

    def export_adapter(self, network: Any, folder: Path) -> None:
        """Write what was trained beside frozen weights, if any; called before `export`."""
        ...

    def export(self, network: Any, calibration: Any, folder: Path) -> None:
        """Write the model directory: safetensors, plain files, `pilotline.json`; the network is done with training."""
        ...


class Preparation(Protocol):
    """A family's module `prepare`."""

    def prepare(
        self, recipe: Recipe, ref: TrainingSetRef, train: pd.DataFrame, validation: pd.DataFrame, folder: Path
    ) -> None:
        """Write what the ranks need into a staging folder; a pure function of its inputs."""
        ...

    def initial_digest(self, recipe: Recipe) -> str:
        """What names the weights that training starts from, "" where they come from the seed."""
        ...

    def sized(self, recipe: Recipe) -> Recipe:
        """The recipe with the sizes of the model that will be trained; UserError where that cannot be read."""
        ...


@dataclass(frozen=True)
class ModelSpec:
    """One model family; each method imports its engine when it is called."""

    family: str
    package: str

    def renderer(self, model_dir: Path) -> Renderer:
        """The renderer of an exported model; needs no torch."""
        found: Renderer = self._module("prompt").Renderer.load(model_dir)
        return found

    def scorer(self, model_dir: Path) -> Scorer:
        """The exported model loaded on the CPU in fp32."""
        found: Scorer = self._module("score").Scorer(model_dir)
        return found

    def text_traces(self, scorer: Scorer, frame: pd.DataFrame) -> Sequence[tuple[float, NDArray[np.bool_]]] | None:
        """What the model's language-model head says of each row's text, see causal_lm/exposure.py.

        None where the family has no such head, that is no module `exposure`.
        """
        if importlib.util.find_spec(f"{self.package}.exposure") is None:
            return None
        if importlib.util.find_spec(f"{self.package}.exposure") is None:
            return None
        found: Sequence[tuple[float, NDArray[np.bool_]]] = self._module("exposure").text_traces(scorer, frame)
        return found

    @property
    def preparation(self) -> Preparation:
        """What makes of a training set what the ranks read."""
        found: Preparation = self._module("prepare")
        return found

    def task(self, recipe: Recipe, prepared: Path) -> Task:
        """The training task of a prepared folder."""
        found: Task = self._module("task").Task(recipe, prepared)
        return found

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")


SPECS = {"causal_lm": ModelSpec("causal_lm", "components.models.causal_lm")}
ENTRY_POINTS = "pilotline.model_families"


def spec_for(family: str) -> ModelSpec:
    """The spec of a model family: one of ours, or of an installed package that announces it as an entry point.

    Raises:
        UserError: there is none of that name.
    """
    if family in SPECS:
        return SPECS[family]
    found = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if family not in found:
        raise UserError(f"model family {family!r}: unknown; known are {', '.join(sorted({*SPECS, *found}))}")
    return ModelSpec(family, found[family])
