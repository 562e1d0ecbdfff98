"""A model's answers to inputs that nobody vouches for: a probability and a label of the closed set, else invalid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd

from components.core.engine_time import engine_time
from components.core.errors import PolicyRefusal
from components.evaluation.metrics import Floats


class Scorer(Protocol):
    """A loaded model."""

    def score(self, frame: pd.DataFrame) -> Floats:
        """Probability of the positive label, shape (rows,)."""
        ...


def answers(scorer: Scorer, frame: pd.DataFrame) -> Floats:
    """The scores of rows, NaN for each that the model gives no probability; never raises for what is in a row.

    One row that breaks the model must not hide behind the others: after an exception each row is asked alone.
    """
    try:
        return probabilities(scorer, frame)
    except Exception:  # whatever a hostile row brings about is an invalid answer, and is counted
        return np.concatenate([_alone(scorer, frame.iloc[[at]]) for at in range(len(frame))])


def probabilities(scorer: Scorer, frame: pd.DataFrame) -> Floats:
    """The scores of rows, NaN for each that is no probability.

    Raises:
        PolicyRefusal: the model gives another number of scores; besides, whatever the model raises.
    """
    with engine_time("transformers"):
        scores = np.asarray(scorer.score(frame), dtype=np.float64)
    if scores.shape != (len(frame),):
        raise PolicyRefusal(f"the model gave {scores.size} scores for {len(frame)} rows; nothing can be said of it")
    return np.where(np.isfinite(scores) & (scores >= 0) & (scores <= 1), scores, np.nan)


def label_of(score: float, labels: Sequence[str], threshold: float) -> str | None:
    """The label of a score: one of the two, None where the score is no probability."""
    if not (np.isfinite(score) and 0 <= score <= 1):
        return None
    return labels[1] if score >= threshold else labels[0]


def _alone(scorer: Scorer, row: pd.DataFrame) -> Floats:
    try:
        return probabilities(scorer, row)
    except Exception:  # as above
        return np.array([np.nan])
