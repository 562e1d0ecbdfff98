"""How far a model's answers move when the input changes, and whether every answer stays in the closed set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from components.core.records import Interval
from components.evaluation.answers import Scorer, answers
from components.evaluation.attacks import changed, injected
from components.evaluation.metrics import Floats, exact_rate, interval

INJECTION = "injection"
TAIL = 95  # percentile of the shift that is told beside its mean


@dataclass(frozen=True)
class Robustness:
    """Shifts by kind of change, and the share of invalid answers among all of them (None where nothing was asked)."""

    shifts: dict[str, dict[str, Interval]] = field(default_factory=dict)
    invalid_rate: Interval | None = None


def measure_robustness(
    scorer: Scorer,
    frame: pd.DataFrame,
    scores: Floats,
    *,
    features: Sequence[str],
    reads_text: bool,
    labels: Sequence[str],
    threshold: float,
    rows: int,
    resamples: int,
    seed: int,
) -> Robustness:
    """Change a seeded sample of the rows in every way that the model could notice, and score it again.

    Args:
        scorer: the model.
        frame: test rows; features of the request keep their value when the text changes.
        scores: the model's own of the unchanged rows, all valid.
        features: those that the model reads.
        reads_text: whether it reads `text`.
        labels: (negative, positive).
        threshold: a score from here on is positive; a change of side is a flip.
        rows: size of the sample; 0 asks nothing.
        resamples: of the sample's rows, for the intervals of the shifts.
        seed: of the sample and the changes.
    """
    size = min(rows, len(frame))
    if not size:
        return Robustness()
    chosen = np.sort(np.random.default_rng([seed, 1]).choice(len(frame), size, replace=False))
    sample, before = frame.iloc[chosen].reset_index(drop=True), scores[chosen]
    cases = {name: (made, before) for name, made in changed(sample, features, reads_text, seed).items()}
    if reads_text:
        attempts = injected(sample, labels, features)
        cases[INJECTION] = (attempts, before[attempts.index.to_numpy()])
    if not cases:
        return Robustness()
    shifts, invalid, asked = {}, 0, 0
    for name, (made, was) in cases.items():
        after = answers(scorer, made)
        shifts[name] = _shift(was, after, threshold, resamples, seed)
        invalid, asked = invalid + int(np.isnan(after).sum()), asked + len(after)
    return Robustness(shifts, exact_rate(invalid, asked))


def _shift(before: Floats, after: Floats, threshold: float, resamples: int, seed: int) -> dict[str, Interval]:
    """Mean and 95th percentile of |change| and the share of flips, over valid answers; the share of invalid ones."""
    valid = np.isfinite(after)
    moved = np.abs(after - before)[valid]
    flips = int(((after >= threshold) != (before >= threshold))[valid].sum())
    nothing = Interval(value=None, low=None, high=None, n=0)
    found = {"mean_shift": nothing, "p95_shift": nothing}
    if moved.size:
        drawn = moved[np.random.default_rng(seed).integers(0, moved.size, size=(resamples, moved.size))]
        found["mean_shift"] = interval(float(moved.mean()), drawn.mean(axis=1), moved.size, 0)
        tails = np.percentile(drawn, TAIL, axis=1) if resamples else np.zeros(0)
        found["p95_shift"] = interval(float(np.percentile(moved, TAIL)), tails, moved.size, 0)
    invalid = exact_rate(int((~valid).sum()), len(after))
    return found | {"flip_rate": exact_rate(flips, moved.size), "invalid_rate": invalid}
