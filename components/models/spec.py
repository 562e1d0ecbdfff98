"""The registry of model families: a second family is one folder and one entry here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from components.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


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

        None where the family has no such head.
        """
        found: Sequence[tuple[float, NDArray[np.bool_]]] = self._module("exposure").text_traces(scorer, frame)
        return found

    @property
    def preparation(self) -> Any:
        """The family's module that makes vocabulary, signature and encoded rows (`prepare(...)`)."""
        return self._module("prepare")

    @property
    def task(self) -> Any:
        """The family's training task (`Task(...)`): network, batches, loss, validation scores, export."""
        return self._module("task")

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")


SPECS = {"causal_lm": ModelSpec("causal_lm", "components.models.causal_lm")}


def spec_for(family: str) -> ModelSpec:
    """The spec of a model family; UserError where there is none of that name."""
    if family not in SPECS:
        raise UserError(f"model family {family!r}: unknown; known are {', '.join(sorted(SPECS))}")
    return SPECS[family]
