"""Memory of one GPU of a vLLM replica, part by part, and the KV-cache tokens that it leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from components.core.records import Record
from components.planner.architecture import Architecture
from components.planner.gpus import Gpu
from components.planner.kv_cache import kv_bytes_per_token, kv_tokens
from components.planner.quantisation import WeightFormat, weight_gib
from components.planner.serving_runtime import (
    CONSTANTS,
    UTILISATION,
    Limits,
    RuntimeConstants,
    activation_gib,
    graph_gib,
    outside_torch_gib,
    scheduler_limits,
    uncertainty_gib,
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is served on how much memory; `max_num_seqs` and `max_num_batched_tokens` None: vLLM's defaults."""

    model: Architecture
    gpu: Gpu
    weights: WeightFormat
    memory_gib: float
    tp: int = 1
    pp: int = 1
    kv_dtype: str = "auto"
    utilisation: float = UTILISATION
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    eager: bool = False

    @property
    def limits(self) -> Limits:
        """The scheduler's limits as they will be."""
        return scheduler_limits(self.gpu, self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, kw_only=True)
class GpuMemory(Record):
    """GiB on the fullest GPU; the KV cache takes what the others leave of `budget_gib` (negative: does not fit).

    `kv_cache_low_gib` and `kv_cache_high_gib` are the ends of the 80 % band.
    """

    total_gib: float
    budget_gib: float
    weights_gib: float
    activations_gib: float
    outside_torch_gib: float
    cuda_graphs_gib: float
    kv_cache_gib: float
    kv_cache_low_gib: float
    kv_cache_high_gib: float
    kv_bytes_per_token: float

    @property
    def kv_tokens(self) -> int:
        """Tokens of cache that fit."""
        return kv_tokens(self.kv_cache_gib, self.kv_bytes_per_token)

    @property
    def kv_tokens_band(self) -> tuple[int, int]:
        """The 80 % band of the tokens."""
        low, high = self.kv_cache_low_gib, self.kv_cache_high_gib
        return kv_tokens(low, self.kv_bytes_per_token), kv_tokens(high, self.kv_bytes_per_token)


def gpu_memory(setup: Setup, constants: RuntimeConstants = CONSTANTS) -> GpuMemory:
    """Predict the memory of a setup.

    CUDA graphs lie outside the share that vLLM takes, as before version 0.21; where the rest of the memory cannot hold
    them, they are taken from the KV cache.
    """
    gpus = setup.tp * setup.pp
    weights = weight_gib(setup.model, setup.weights, setup.tp, setup.pp)
    activations = activation_gib(setup.model, setup.limits, setup.tp, constants)
    outside = outside_torch_gib(gpus, constants)
    graphs = graph_gib(setup.model, setup.pp, setup.eager, constants)
    budget = setup.utilisation * setup.memory_gib
    kv = budget - weights - activations - outside - max(graphs - (setup.memory_gib - budget), 0.0)
    wide = constants.band * uncertainty_gib(weights, setup.weights.is_quantised, activations, outside)
    return GpuMemory(
        total_gib=setup.memory_gib,
        budget_gib=budget,
        weights_gib=weights,
        activations_gib=activations,
        outside_torch_gib=outside,
        cuda_graphs_gib=graphs,
        kv_cache_gib=kv,
        kv_cache_low_gib=kv - wide,
        kv_cache_high_gib=kv + wide,
        kv_bytes_per_token=kv_bytes_per_token(setup.model, setup.tp, setup.pp, setup.kv_dtype),
    )


def with_shape(setup: Setup, tp: int, pp: int) -> Setup:
    """The same setup split otherwise."""
    return replace(setup, tp=tp, pp=pp)


def usable_gib(gpu: Gpu, stated_gib: float | None) -> float:
    """Memory that a process sees: a stated number with a fraction is a device's own report, a whole one nominal."""
    if stated_gib is not None and stated_gib != round(stated_gib):
        return stated_gib
    return gpu.usable_gib
