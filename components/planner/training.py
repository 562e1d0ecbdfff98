"""A training plan: the first layout in the field's order that fits, and why the others were not taken."""

from __future__ import annotations

from dataclasses import dataclass, replace

from components.core.errors import UserError
from components.planner.bands import memory_band
from components.planner.memory import MemoryPrediction, predict_memory
from components.planner.strategy import Layout, layouts
from components.planner.throughput import Speed, estimated_speed
from components.planner.training_constants import TrainingConstants, training_constants
from components.planner.training_plan import Alternative, TrainingPlan, assemble
from components.planner.training_request import STRATEGIES, TrainingRequest, request_from
from components.planner.training_run import TrainingRun

__all__ = ["TrainingPlan", "TrainingRequest", "plan_training", "request_from"]

LARGEST_MICRO_BATCH = 64


@dataclass(frozen=True)
class Candidate:
    """A layout with its batch and checkpointing, and what is predicted for it."""

    layout: Layout
    run: TrainingRun
    memory: MemoryPrediction
    speed: Speed | None
    fits: bool
    roomy: bool  # the upper end of the memory's band fits too
    shortfall: float  # how many times as much memory is needed as there is, on the GPU or its host

    @property
    def pace(self) -> float:
        """What to compare batches by: tokens/s, or where unknown little recomputation and a large batch."""
        if self.speed is not None:
            return self.speed.tokens_per_second
        again = {"none": 1.0, "selective": 0.97, "full": 0.75}[self.run.checkpointing]
        return again * self.run.micro_batch / (self.run.micro_batch + 1.0)


def plan_training(request: TrainingRequest, constants: TrainingConstants | None = None) -> TrainingPlan:
    """Plan a training run.

    The first layout in the field's order for which the upper end of the memory's band fits is taken; where there is
    none, the first whose prediction fits; where there is none either, the plan is infeasible and shows the layout that
    comes nearest.

    Raises:
        UserError: the request leaves no layout at all.
    """
    c = constants or training_constants()
    tried = [best for layout in layouts(request) if (best := _best(request, layout, c)) is not None]
    if not tried:
        fixed = ("strategy", "tp", "pp", "dp", "offload", "global_batch", "micro_batch", "accumulation")
        words = ", ".join(f"{name} {getattr(request, name)}" for name in fixed if getattr(request, name) is not None)
        raise UserError(
            f"plan train: no layout of {request.gpus} GPUs is left by {words or 'the model'}; free one of them"
        )
    chosen = _chosen(tried)
    others = [Alternative(*_summary(x), reason=_lost(x, chosen)) for x in _ranked(tried, chosen)]
    return assemble(
        request, chosen.layout, chosen.run, chosen.memory, chosen.speed, chosen.fits, chosen.roomy, others, c
    )


def _best(request: TrainingRequest, layout: Layout, c: TrainingConstants) -> Candidate | None:
    """The fastest roomy choice of batch and checkpointing in a layout, else the one that needs least memory."""
    found = []
    for sizes in _runs(request, layout):  # from the smallest micro-batch on
        of_size = [_candidate(request, layout, run, c) for run in sizes]
        found += of_size
        if not any(x.fits for x in of_size):
            break
    if not found:
        return None
    for kind in ("roomy", "fits"):
        if good := [x for x in found if getattr(x, kind)]:
            return max(good, key=lambda x: (x.pace, -x.run.micro_batch))
    return min(found, key=lambda x: (x.shortfall, x.memory.needed))


def _runs(r: TrainingRequest, layout: Layout) -> list[list[TrainingRun]]:
    """Every checkpointing of every micro-batch, the smallest first."""
    dp = r.gpus // (layout.tp * layout.pp)
    if dp % r.cp or (r.ep > 1 and dp * layout.tp % r.ep):
        return []
    levels = [r.checkpointing] if r.checkpointing else ["none", "selective", "full"]
    base = TrainingRun(
        architecture=r.architecture, gpu=r.gpu, gpus=r.gpus, seq=r.seq, micro_batch=1,
        gpus_per_node=r.gpus_per_node, zero_stage=_stage(r, layout), offload=layout.offload, tp=layout.tp, pp=layout.pp,
        cp=r.cp, ep=r.ep, virtual_stages=r.virtual_stages, method=r.method, lora_rank=r.lora_rank,
        lora_targets=r.lora_targets, train_embeddings=r.train_embeddings, precision=r.precision, optimizer=r.optimizer,
        framework=layout.framework, link_gb_s=r.link_gb_s, network_gb_s=r.network_gb_s,
    )  # fmt: skip
    return [
        [replace(base, micro_batch=micro, accumulation=accumulation, checkpointing=level) for level in levels]
        for micro, accumulation in _batches(r, dp // r.cp, layout.pp)
    ]


def _stage(r: TrainingRequest, layout: Layout) -> int:
    """Cut models keep ZeRO-1 for what data-parallel ranks share, unless another stage is asked for."""
    if r.strategy is not None and layout.tp * layout.pp > 1:
        return STRATEGIES[r.strategy]
    return layout.zero_stage


def _batches(r: TrainingRequest, ranks: int, pp: int) -> list[tuple[int, int]]:
    """Micro-batch and accumulation that make the global batch; without one, a pipeline is filled four times."""
    if r.global_batch is None:
        accumulation = r.accumulation or (4 * pp if pp > 1 else 1)
        sizes = [r.micro_batch] if r.micro_batch else [1, 2, 4, 8, 16, 32, LARGEST_MICRO_BATCH]
        return [(micro, accumulation) for micro in sizes]
    if r.global_batch % ranks:
        return []
    share = r.global_batch // ranks
    sizes = [r.micro_batch] if r.micro_batch else [d for d in range(1, LARGEST_MICRO_BATCH + 1) if share % d == 0]
    pairs = [(micro, share // micro) for micro in sizes if share % micro == 0]
    return [(micro, many) for micro, many in pairs if r.accumulation in (None, many)]


def _candidate(r: TrainingRequest, layout: Layout, run: TrainingRun, c: TrainingConstants) -> Candidate:
    memory = predict_memory(run, c.memory)
    fits = memory.fits(run.gpu.usable_gib) and memory.host_gib <= r.host_gib
    roomy = fits and memory_band(run, memory.needed, c.bands).high <= run.gpu.usable_gib
    speed = estimated_speed(run, c.speed) if fits else None
    shortfall = max(memory.needed / run.gpu.usable_gib, memory.host_gib / r.host_gib)
    return Candidate(layout, run, memory, speed, fits, roomy, shortfall)


def _chosen(tried: list[Candidate]) -> Candidate:
    for kind in ("roomy", "fits"):
        if good := [x for x in tried if getattr(x, kind)]:
            return _fastest_cut(good)
    return min(tried, key=lambda x: (x.shortfall, x.memory.needed))


def _fastest_cut(good: list[Candidate]) -> Candidate:
    """The first in order; among layouts that cut the model the fastest, for they are one step of the order."""
    first = good[0]
    if first.run.tp * first.run.pp == 1 or first.speed is None:
        return first
    return max((x for x in good if x.run.tp * x.run.pp > 1), key=lambda x: (x.pace, -x.layout.rank))


def _ranked(tried: list[Candidate], chosen: Candidate) -> list[Candidate]:
    others = [x for x in tried if x is not chosen]
    return sorted(others, key=lambda x: (not x.roomy, not x.fits, x.layout.rank))[:12]


def _summary(x: Candidate) -> tuple[str, int, int, int, int, str, str, float, float | None]:
    run = x.run
    pace = x.speed.tokens_per_second if x.speed else None
    return (
        x.layout.name, run.zero_stage, run.tp, run.pp, run.micro_batch, run.checkpointing, run.offload,
        x.memory.peak, pace,
    )  # fmt: skip


def _lost(x: Candidate, chosen: Candidate) -> str:
    if not x.fits:
        if x.memory.needed <= x.run.gpu.usable_gib:
            return f"needs {x.memory.host_gib:,.0f} GiB of a node's host memory"
        return f"needs {x.memory.needed:.1f} GiB a GPU of {x.run.gpu.usable_gib:.1f}"
    if not x.roomy and chosen.roomy:
        return "fits only if the prediction is exact: the upper end of its band does not"
    if x.speed and chosen.speed and x.speed.tokens_per_second < 0.99 * chosen.speed.tokens_per_second:
        return f"slower: {x.speed.tokens_per_second:,.0f} of {chosen.speed.tokens_per_second:,.0f} tokens/s a GPU"
    if x.layout.offload != "none":
        return "offload is not needed"
    if x.speed and chosen.speed and x.speed.tokens_per_second > 1.01 * chosen.speed.tokens_per_second:
        gain = x.speed.tokens_per_second / chosen.speed.tokens_per_second - 1
        return f"spreads or cuts more than is needed; by the estimate {gain:.0%} faster, worth a trial"
    return "spreads or cuts more than is needed, for nothing"
