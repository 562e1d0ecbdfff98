"""A machine's own constants from what was measured on it, and the prediction for ranks on a CPU.

Published runs tell what GPUs and frameworks usually take. What a process takes before it holds a model, and how fast
this machine is, only this machine tells: `calibrate` reads it from runs whose peak and speed were measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from components.core.errors import UserError
from components.core.publish import write_atomic
from components.planner.architecture import Architecture
from components.planner.bands import Band, around
from components.planner.gpus import Gpu
from components.planner.memory import GIB, predict_memory
from components.planner.throughput import estimated_speed, flops_per_token
from components.planner.training_constants import TrainingConstants, training_constants
from components.planner.training_run import TrainingRun

RANK_PROCESS_GIB = 0.515  # Python with torch, DeepSpeed and transformers as locked: a rank with 4,688 parameters
WEIGHT_COPIES = 3  # averaged and best weights in fp32 beside what a rank trains, and the best while it is replaced
SLOWER_TO_FASTER = 4.0  # a calibrated factor beyond this says that the run was not what it is said to be
CPU_BAND = 0.15  # half width as a logarithm of a peak on a CPU


@dataclass(frozen=True)
class Measurement:
    """One measured run. `peak_gib` is the fullest GPU's or rank's peak; tokens/s are those of all GPUs or ranks."""

    run: TrainingRun
    peak_gib: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Machine:
    """What a machine's own runs tell.

    `process_gib` is what a rank takes without its tensors (CPU) or the device's memory beside them (GPU); tensors
    weigh `memory_factor` times what is computed. On GPUs `speed_factor` multiplies predicted tokens/s; on a CPU a step
    takes `step_seconds` and its work at `flops_per_second` a rank. `runs` tells how many measurements are behind it.
    """

    name: str = "this machine"
    process_gib: float = RANK_PROCESS_GIB
    memory_factor: float = 1.0
    speed_factor: float | None = None
    step_seconds: float = 0.0
    flops_per_second: float | None = None
    runs: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Machine:
        """What `to_dict` gave; UserError where it is something else."""
        try:
            machine = cls(**values)
            if not 0 <= machine.process_gib < 1024 or not 0.1 <= machine.memory_factor <= 10:
                raise ValueError("its numbers are impossible")
        except (TypeError, ValueError) as error:
            raise UserError(
                f"calibration: not a machine's constants ({error}); run `pilotline plan calibrate`"
            ) from None
        return machine

    def write(self, path: Path) -> None:
        """Keep the constants as JSON."""
        write_atomic(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Machine:
        """What `write` wrote; the defaults where there is no file."""
        if not path.exists():
            return cls()
        try:
            values = json.loads(path.read_text())
        except ValueError:
            raise UserError(f"{path}: no JSON; remove it or run `pilotline plan calibrate`") from None
        return cls.from_dict(values if isinstance(values, dict) else {"": values})

    def constants(self, usual: TrainingConstants | None = None) -> TrainingConstants:
        """The planner's constants for GPUs of this machine."""
        c = usual or training_constants()
        if self.runs == 0 or self.speed_factor is None:
            return c
        f = self.speed_factor
        s = c.speed
        speed = replace(
            s, matmul=s.matmul * f, matmul_fp8=s.matmul_fp8 * f, attention=s.attention * f, traffic=s.traffic / f,
            launch_eager_s=s.launch_eager_s / f, launch_fused_s=s.launch_fused_s / f, link=s.link * f,
            network=s.network * f, tp_exposed=s.tp_exposed / f, dequantise=s.dequantise * f,
        )  # fmt: skip
        shift = self.process_gib - c.memory.device_gib
        memory = replace(
            c.memory, device_gib=self.process_gib, needed_gib=max(0.0, c.memory.needed_gib + min(shift, 0.0))
        )
        return replace(c, memory=memory, speed=speed)


@dataclass(frozen=True)
class RankPrediction:
    """Of ranks on a CPU: peak memory of one rank in GiB, and tokens/s of all; None until calibrated."""

    peak_gib: Band
    tensors_gib: float
    tokens_per_second: float | None


def cpu_run(architecture: Architecture, ranks: int, zero_stage: int, batch_size: int, seq: int) -> TrainingRun:
    """A run of DeepSpeed ranks in fp32 on this machine's CPU; `batch_size` rows a step over all ranks."""
    return TrainingRun(
        architecture=architecture,
        gpu=Gpu("cpu", 1024.0, 1024.0),
        gpus=ranks,
        gpus_per_node=ranks,
        seq=seq,
        micro_batch=max(1, -(-batch_size // ranks)),
        zero_stage=zero_stage,
        checkpointing="none",
        precision="fp32",
        framework="deepspeed",
    )


def predict_ranks(run: TrainingRun, machine: Machine | None = None) -> RankPrediction:
    """Peak memory of one CPU rank, and tokens/s of all where the machine is calibrated."""
    m = machine or Machine()
    tensors = _tensors(run)
    peak = m.process_gib + m.memory_factor * tensors
    speed = None
    if m.flops_per_second is not None:
        seconds = m.step_seconds + _work(run) / m.flops_per_second
        speed = run.tokens_per_step / seconds
    return RankPrediction(around(peak, CPU_BAND), tensors, speed)


def calibrate(measurements: Sequence[Measurement], name: str = "this machine") -> Machine:
    """A machine's constants from measured runs, all on its CPU or all on its GPUs.

    Medians, so that one odd run does not decide; the tensors' factor only where runs differ enough in size to tell.

    Raises:
        UserError: no measurement, both kinds, or numbers that cannot be.
    """
    if not measurements:
        raise UserError("plan calibrate: no finished run has its peak and speed recorded; run `pilotline run` first")
    for found in measurements:
        for label, value in (("peak_gib", found.peak_gib), ("tokens_per_second", found.tokens_per_second)):
            if value is not None and not 0 < value < 1e12:
                raise UserError(f"plan calibrate: a measured {label} of {value} cannot be")
    kinds = {found.run.gpu.name == "cpu" for found in measurements}
    if len(kinds) == 2:
        raise UserError("plan calibrate: runs on CPUs and on GPUs tell different constants; calibrate each alone")
    process, factor = _memory(measurements)
    common = Machine(name=name, process_gib=process, memory_factor=factor, runs=len(measurements))
    if kinds == {True}:
        step, rate = _cpu_speed(measurements)
        return replace(common, step_seconds=step, flops_per_second=rate)
    return replace(common, speed_factor=_gpu_speed(measurements))


def _tensors(run: TrainingRun) -> float:
    """GiB of what a rank or GPU holds beside the process."""
    memory = predict_memory(run)
    parts = sum(value for part, value in memory.parts.items() if part != "overhead")
    copies = WEIGHT_COPIES * 4.0 * run.architecture.params / GIB if run.gpu.name == "cpu" else 0.0
    return parts + copies


def _memory(measurements: Sequence[Measurement]) -> tuple[float, float]:
    pairs = [(_tensors(m.run), m.peak_gib) for m in measurements if m.peak_gib is not None]
    if not pairs:
        return RANK_PROCESS_GIB, 1.0
    sizes = [tensors for tensors, _ in pairs]
    middle = median(sizes)
    slopes = [(y - v) / (x - u) for i, (x, y) in enumerate(pairs) for u, v in pairs[:i] if abs(x - u) > 0.25]
    factor = min(max(median(slopes), 0.5), 2.0) if len(pairs) >= 3 and slopes and middle > 0 else 1.0
    return max(0.0, median([peak - factor * tensors for tensors, peak in pairs])), factor


def _work(run: TrainingRun) -> float:
    """FLOP of one rank in one step."""
    return flops_per_token(run) * run.tokens * run.accumulation


def _cpu_speed(measurements: Sequence[Measurement]) -> tuple[float, float | None]:
    """Seconds a step and FLOP/s a rank; one size of run cannot tell both, and then all is work."""
    pairs = [
        (_work(m.run), m.run.tokens_per_step / m.tokens_per_second)
        for m in measurements
        if m.tokens_per_second is not None
    ]
    if not pairs:
        return 0.0, None
    slopes = [(t - s) / (w - v) for i, (w, t) in enumerate(pairs) for v, s in pairs[:i] if abs(w - v) > 0.5 * min(w, v)]
    each = median(slopes) if slopes else 0.0
    if each > 0:
        step = median([seconds - each * work for work, seconds in pairs])
        if step >= 0:
            return step, 1.0 / each
    return 0.0, 1.0 / median([seconds / work for work, seconds in pairs])


def _gpu_speed(measurements: Sequence[Measurement]) -> float | None:
    ratios = [
        m.tokens_per_second / (speed.tokens_per_second * m.run.gpus)
        for m in measurements
        if m.tokens_per_second is not None and (speed := estimated_speed(m.run)) is not None
    ]
    if not ratios:
        return None
    factor = median(ratios)
    if not 1 / SLOWER_TO_FASTER <= factor <= SLOWER_TO_FASTER:
        raise UserError(
            f"plan calibrate: runs were {factor:.2g} times as fast as predicted; check their GPU, batch and sequence"
        )
    return factor
