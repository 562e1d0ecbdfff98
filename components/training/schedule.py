"""Pure functions of the step: which rows, which learning rate, which averaging, when to look."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.core.recipe import Training


def rows_of_step(labels: NDArray[Any], training: Training, step: int) -> NDArray[np.int64]:
    """Indices of the whole batch's training rows, shape (batch_size,); the ranks take slices of it.

    With `positive_share` > 0 that share of a batch is drawn from the positive rows and the rest from the others.
    The order is mixed, so that every rank's slice holds both classes.
    """
    rng = np.random.default_rng([training.seed, step, 0])
    if not training.positive_share:
        return rng.integers(0, len(labels), training.batch_size)
    positives = round(training.batch_size * training.positive_share)
    drawn = [
        rng.choice(np.flatnonzero(labels == 1), positives),
        rng.choice(np.flatnonzero(labels == 0), training.batch_size - positives),
    ]
    return rng.permutation(np.concatenate(drawn)).astype(np.int64)


def learning_rate(training: Training, step: int) -> float:
    """Linear warm-up, then the schedule from `learning_rate` down to its final share (`constant` stays where it is)."""
    done = step / training.steps
    warm = min(1.0, (step + 1) / max(1.0, training.warmup_share * training.steps))
    low = training.final_learning_rate_share
    if training.schedule == "constant":
        return training.learning_rate * warm
    left = 0.5 * (1.0 + math.cos(math.pi * done)) if training.schedule == "cosine" else 1.0 - done
    return training.learning_rate * warm * (low + (1.0 - low) * left)


def parts_of_rank(training: Training, rank: int, ranks: int) -> list[slice]:
    """The slices of a step's batch that are a rank's micro-batches, in order.

    Micro-batch by micro-batch the ranks stand side by side, so that all of them together have read the batch's rows
    in the same order whatever their number and the accumulation.
    """
    micro = training.batch_size // (ranks * training.accumulation)
    firsts = [(turn * ranks + rank) * micro for turn in range(training.accumulation)]
    return [slice(first, first + micro) for first in firsts]


def held_out_rows(labels: NDArray[Any], training: Training) -> NDArray[np.int64]:
    """Indices of the validation rows that are scored, ascending: all, or `validation_rows` with both classes kept."""
    wanted = training.validation_rows
    if not wanted or wanted >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    rng = np.random.default_rng([training.seed, 0, 3])
    drawn = []
    for label in (0, 1):
        rows = np.flatnonzero(labels == label)
        count = min(len(rows), max(1, round(wanted * len(rows) / len(labels))))
        drawn.append(rng.choice(rows, count, replace=False))
    return np.sort(np.concatenate(drawn)).astype(np.int64)


def average_weight(training: Training, step: int) -> float:
    """How much of the new weights enters the running average after this step; 1 = no averaging."""
    return 1.0 - min(training.average_decay, step / (step + 10.0))


def is_check(training: Training, done: int) -> bool:
    """Whether validation rows are scored after `done` steps: `checks` times, evenly, and at the end."""
    checks = min(training.checks, training.steps)
    return done == training.steps or done * checks // training.steps > (done - 1) * checks // training.steps


def is_logged(training: Training, done: int) -> bool:
    """Whether the loss is written after `done` steps: about a hundred times a run."""
    return done == training.steps or done % max(1, training.steps // 100) == 0
