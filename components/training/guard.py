"""A loss that is no number, or leaps: what the recipe's rule says about it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from components.core.errors import UserError
from components.core.recipe import Training

WINDOW = 64  # losses behind the running median
LEAST = 16  # fewer say nothing about what is usual


def trouble(loss: float, recent: Sequence[float], factor: float) -> str:
    """Why a loss is not usable, in words; empty where it is.

    Args:
        loss: the step's mean loss over all ranks.
        recent: the usable losses before, oldest first.
        factor: a loss above so many times their median is a spike; 0 = spikes are not looked for.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if factor and len(recent) >= LEAST and loss > factor * median(recent):
        return f"the loss leapt to {loss:.4g}, over {factor:g} times its median {median(recent):.4g}"
    return ""


def remembered(loss: float, recent: Sequence[float]) -> list[float]:
    """The losses behind the next median."""
    return [*recent[-(WINDOW - 1) :], loss]


def watches_every_step(training: Training) -> bool:
    """Whether the rule needs every step's mean over ranks before the step is taken."""
    return training.on_nan != "stop" or training.spike_factor > 0


def refuse_more(training: Training, step: int, why: str, skipped: Sequence[int]) -> None:
    """UserError where the recipe says stop, or where it has left out as many steps as it may."""
    advice = "lower training.learning_rate, or set training.on_nan to skip or rollback"
    if training.on_nan == "stop":
        raise UserError(f"training diverged at step {step}: {why}; {advice}")
    if len(skipped) >= training.max_skips:
        raise UserError(
            f"training diverged at step {step}: {why}, after {len(skipped)} steps were left out already"
            " (training.max_skips); lower training.learning_rate"
        )
