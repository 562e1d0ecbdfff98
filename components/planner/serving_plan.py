"""A serving plan as a record: what was chosen, what it rests on, and what it was chosen over."""

from __future__ import annotations

from dataclasses import dataclass, field

from components.core.records import Record
from components.planner.autoscale import Scaling
from components.planner.fleet import Placement
from components.planner.serving_memory import GpuMemory
from components.planner.serving_speed import SpeedEstimate


@dataclass(frozen=True, kw_only=True)
class Alternative(Record):
    """A split that was considered, and why it was not taken ("" for the one that was)."""

    tp: int
    pp: int
    replicas: int
    kv_cache_tokens: int
    why_not: str


@dataclass(frozen=True, kw_only=True)
class FormatOption(Record):
    """What another weight format would change; replicas 0: it would not fit either."""

    weights: str
    weights_total_gib: float
    tp: int
    pp: int
    replicas: int
    kv_cache_tokens: int
    note: str


@dataclass(frozen=True, kw_only=True)
class ServingPlan(Record):
    """A serving plan. Memory in GiB of the fullest GPU, tokens of one replica; `*_total_gib` is the whole model."""

    feasible: bool
    tp: int
    pp: int
    replicas: int
    gpus_per_replica: int
    gpus_used: int
    gpus: int
    nodes: int
    gpus_per_node: int
    weights: str
    weights_gib: float
    weights_total_gib: float
    kv_cache_gib: float
    kv_cache_tokens: int
    kv_cache_tokens_low: int
    kv_cache_tokens_high: int
    max_model_len: int
    max_concurrency: float
    memory: GpuMemory
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    speed: tuple[SpeedEstimate, ...]
    scaling: Scaling | None
    placement: tuple[Placement, ...]
    launcher: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    assumed: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = field(default=())
    formats: tuple[FormatOption, ...] = field(default=())
    would_fit: str = ""
