"""The training plan as a value: what a person, a program and DeepSpeed read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from components.planner.architecture import Assumption
from components.planner.bands import Band, around, memory_band, speed_band
from components.planner.memory import MemoryPrediction, bytes_per_parameter
from components.planner.strategy import Layout
from components.planner.throughput import Speed, no_estimate
from components.planner.training_constants import TrainingConstants
from components.planner.training_request import TrainingRequest
from components.planner.training_run import TrainingRun
from components.planner.training_warnings import warnings_of


@dataclass(frozen=True)
class Alternative:
    """A layout that was not taken, and why."""

    strategy: str
    zero_stage: int
    tp: int
    pp: int
    micro_batch: int
    checkpointing: str
    offload: str
    predicted_peak_gib: float
    tokens_per_second_per_gpu: float | None
    reason: str


@dataclass(frozen=True)
class TrainingPlan:
    """How to train, what it takes and how sure that is. Bands hold 80 % of published runs; GiB and tokens/s a GPU.

    `speed` and what follows from it are None where `no_estimate` says why.
    """

    feasible: bool
    strategy: str
    zero_stage: int
    offload: str
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    gpus: int
    micro_batch: int
    accumulation: int
    global_batch: int
    seq: int
    checkpointing: str
    method: str
    precision: str
    optimizer: str
    framework: str
    gpu: str
    gpu_memory_gib: float
    usable_gib: float
    memory_parts_gib: dict[str, float]
    peak_gib: Band
    allocated_gib: float
    reserved_gib: float
    host_gib_per_node: float
    tokens_per_second_per_gpu: Band | None
    mfu: float | None
    communication_share: float | None
    bubble_share: float | None
    hours: Band | None
    cost: Band | None
    no_estimate: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    assumed: tuple[Assumption, ...]

    @property
    def predicted_peak_gib(self) -> float:
        """The predicted peak of the fullest GPU, as its device, or the counter asked for, would show it."""
        return self.peak_gib.value

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `predicted_peak_gib` and `tokens_per_second_per_gpu` are numbers, their bands beside."""
        values = asdict(self)
        for name in ("peak_gib", "tokens_per_second_per_gpu", "hours", "cost"):
            band = values.pop(name)
            short = "predicted_peak_gib" if name == "peak_gib" else name
            rounded = None if band is None else Band(**band).to_dict(4)
            values[short] = None if rounded is None else rounded.pop("value")
            values[f"{short}_band"] = rounded
        values["memory_parts_gib"] = {name: round(gib, 3) for name, gib in self.memory_parts_gib.items()}
        for name in ("allocated_gib", "reserved_gib", "host_gib_per_node"):
            values[name] = round(values[name], 2)
        for name in ("mfu", "communication_share", "bubble_share"):
            values[name] = None if values[name] is None else round(values[name], 4)
        for other in values["alternatives"]:
            other["predicted_peak_gib"] = round(other["predicted_peak_gib"], 1)
            if other["tokens_per_second_per_gpu"] is not None:
                other["tokens_per_second_per_gpu"] = round(other["tokens_per_second_per_gpu"], 1)
        values["reasons"], values["warnings"] = list(self.reasons), list(self.warnings)
        values["alternatives"], values["assumed"] = list(values["alternatives"]), list(values["assumed"])
        return values


def assemble(
    request: TrainingRequest,
    layout: Layout,
    run: TrainingRun,
    memory: MemoryPrediction,
    speed: Speed | None,
    fits: bool,
    roomy: bool,
    others: list[Alternative],
    constants: TrainingConstants,
) -> TrainingPlan:
    """The plan of a chosen run."""
    pace = None if speed is None else speed_band(run, speed.tokens_per_second, constants.bands)
    hours, cost = _bill(request, run, pace)
    rank_batch = run.micro_batch * run.accumulation
    return TrainingPlan(
        feasible=fits,
        strategy=layout.name,
        zero_stage=run.zero_stage,
        offload=run.offload,
        tp=run.tp,
        pp=run.pp,
        dp=run.dp,
        cp=run.cp,
        ep=run.ep,
        gpus=run.gpus,
        micro_batch=run.micro_batch,
        accumulation=run.accumulation,
        global_batch=rank_batch * (run.dp // run.cp),
        seq=run.seq,
        checkpointing=run.checkpointing,
        method=run.method,
        precision=run.precision,
        optimizer=run.optimizer,
        framework=run.framework,
        gpu=run.gpu.name,
        gpu_memory_gib=run.gpu.memory_gib,
        usable_gib=run.gpu.usable_gib,
        memory_parts_gib=memory.parts,
        peak_gib=memory_band(run, memory.of_kind(request.memory_counter), constants.bands),
        allocated_gib=memory.allocated,
        reserved_gib=memory.reserved,
        host_gib_per_node=memory.host_gib,
        tokens_per_second_per_gpu=pace,
        mfu=None if speed is None else speed.mfu,
        communication_share=None if speed is None else speed.communication_share,
        bubble_share=None if speed is None else speed.bubble_share,
        hours=hours,
        cost=cost,
        no_estimate="" if speed is not None else (no_estimate(run, constants.speed) or "the plan does not fit"),
        reasons=_reasons(request, layout, run, memory, fits),
        warnings=warnings_of(request, run, speed, memory, fits, roomy),
        alternatives=tuple(others),
        assumed=(*request.assumed, *_chosen_here(request, run)),
    )


def _bill(request: TrainingRequest, run: TrainingRun, pace: Band | None) -> tuple[Band | None, Band | None]:
    if pace is None or request.tokens is None:
        return None, None
    hours = Band(*(request.tokens / (value * run.gpus) / 3600 for value in (pace.value, pace.high, pace.low)))
    price = request.price_per_gpu_hour
    return hours, None if price is None else Band(*(x * run.gpus * price for x in (hours.value, hours.low, hours.high)))


def _reasons(
    request: TrainingRequest, layout: Layout, run: TrainingRun, memory: MemoryPrediction, fits: bool
) -> tuple[str, ...]:
    a, parts = request.architecture, memory.parts
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    found = []
    if request.method == "full":
        each = bytes_per_parameter(run)
        total = each.weights + each.gradients + each.optimizer
        found.append(
            f"states are {total:g} bytes a parameter: {total * a.params / 1e9:,.0f} GB in all, {states:.1f} GiB on the"
            " fullest GPU"
        )
    else:
        found.append(f"frozen weights and {run.adapter_params / 1e6:,.0f} M trained ones: {states:.1f} GiB a GPU")
    found.append(f"{layout.name}: {layout.why}")
    if run.offload != "none" and request.offload is None and request.method == "full":
        found.append(
            f"without offload nothing fits: at 16 bytes a parameter the states alone are {16 * a.params / 1e9:,.0f} GB,"
            f" and {run.gpus} GPUs have {run.gpus * run.gpu.memory_gib:,.0f} GiB"
        )
    if fits:
        found.append(f"needs {memory.needed:.1f} GiB of {run.gpu.usable_gib:.1f} usable on {run.gpu.name}")
    elif memory.needed > run.gpu.usable_gib:
        found.append(
            f"no layout fits: the nearest, {layout.name}, needs {memory.needed:.1f} GiB a GPU of"
            f" {run.gpu.usable_gib:.1f}; use more GPUs, larger ones, LoRA or offload"
        )
    else:
        found.append(
            f"no layout fits: the nearest, {layout.name}, moves {memory.host_gib:,.0f} GiB to the host of a node, which"
            f" has {request.host_gib:,.0f}; use more GPUs, LoRA, or say --host-memory-gib"
        )
    if run.checkpointing != "none" and request.checkpointing is None:
        found.append(f"{run.checkpointing} activation checkpointing, for less of it does not fit or is slower")
    return tuple(found)


def _chosen_here(request: TrainingRequest, run: TrainingRun) -> tuple[Assumption, ...]:
    found = []
    if request.global_batch is None:
        size = run.micro_batch * run.accumulation * (run.dp // run.cp)
        found.append(Assumption("global_batch", size, "the chosen micro-batch on every rank"))
    if run.gpus > run.gpus_per_node and request.network_gb_s is None:
        rate = run.gpu.network_gb_s or 12.5
        found.append(Assumption("network_gb_s", rate, "usual between nodes, a GPU and direction"))
    if run.offload != "none" and request.host_memory_gib is None:
        found.append(Assumption("host_memory_gib", round(request.host_gib), "twice the memory of a node's GPUs"))
    return tuple(found)


__all__ = ["Alternative", "TrainingPlan", "around", "assemble"]
