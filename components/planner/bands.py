"""Error bands: which class a run belongs to, and what 80 % of published runs of that class lie within."""

from __future__ import annotations

import math
from dataclasses import dataclass

from components.planner.throughput import flops_per_token
from components.planner.training_constants import Bands
from components.planner.training_run import TrainingRun

COVERAGE = 0.8
CLASSES = ("common", "rare")
LONG = 0.25  # share of attention in the work of a token


@dataclass(frozen=True)
class Band:
    """A prediction with its 80 % band."""

    value: float
    low: float
    high: float

    def to_dict(self, digits: int = 3) -> dict[str, float]:
        """JSON value, rounded to significant digits."""
        return {name: _significant(value, digits) for name, value in self.__dict__.items()}


def around(value: float, half_width: float) -> Band:
    """A band as wide in ratio below as above."""
    return Band(value, value * math.exp(-half_width), value * math.exp(half_width))


def memory_class(run: TrainingRun) -> str:
    """`rare`: mixtures of experts, offload, fp4, and adapters on sharded or quantised weights."""
    odd = run.architecture.is_moe or run.offload != "none" or run.precision == "fp4"
    return "rare" if odd or run.method == "qlora" or (run.method == "lora" and run.zero_stage == 3) else "common"


def speed_class(run: TrainingRun) -> str:
    """`common`: full training with fused kernels at usual lengths. `rare`: what depends most on whose kernels run.

    That is eager software, adapters, and sequences so long that attention is a quarter of the work.
    """
    a = run.architecture
    attention = 12.0 * a.layers * a.q_width * run.seq / flops_per_token(run)
    return "rare" if run.method != "full" or run.eager or attention > LONG else "common"


def memory_band(run: TrainingRun, gib: float, bands: Bands) -> Band:
    """The band of a predicted peak in GiB."""
    return around(gib, bands.memory[memory_class(run)])


def speed_band(run: TrainingRun, tokens_per_second: float, bands: Bands) -> Band:
    """The band of predicted tokens/s."""
    return around(tokens_per_second, bands.speed[speed_class(run)])


def _significant(value: float, digits: int) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))
