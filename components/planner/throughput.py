"""Seconds of a training step as a sum of what its parts cost, and from it tokens/s, MFU and communication.

A roofline (Williams et al. 2009) of matrix products, attention and memory traffic, a floor of launches, and exchange
beside it; attention on Hopper and later runs at half the efficiency unless the kernels are theirs (Shah et al. 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from components.planner.memory import layer_bytes
from components.planner.training_constants import SpeedConstants, training_constants
from components.planner.training_run import TrainingRun

HIDES = 3.0  # norm with which computing and exchange combine: 1 is their sum, infinity the larger one
NEWER = ("H100", "H200", "H800", "H20", "B200", "B300", "GB200", "GB300")
LAUNCH_BOUND = 0.5  # share of launches from which on a step says more about the host than about the GPU


@dataclass(frozen=True)
class Speed:
    """Of one GPU: tokens/s; `mfu` counts 6P + 12·L·h·s a token, recomputation left out, as is usual.

    `communication_share` is the part of the step in which nothing but exchange happens, `bubble_share` the part in
    which a pipeline stage waits, `launch_share` how near the step is to the floor of launches.
    """

    tokens_per_second: float
    mfu: float
    step_seconds: float
    communication_share: float
    bubble_share: float
    launch_share: float


def predict_speed(run: TrainingRun, constants: SpeedConstants | None = None) -> Speed:
    """Speed of a run on a GPU whose rates are known; ask `no_estimate` first."""
    c = constants or training_constants().speed
    gpu, a = run.gpu, run.architecture
    assert gpu.bf16_tflops is not None
    compute = _compute(run, c)
    launch = (c.launch_eager_s if run.eager else c.launch_fused_s) * a.layers / run.pp * (_passes(run) / 3)
    busy = _norm(4.0, compute + _tensor_exchange(run, c), launch)
    micro = _norm(HIDES, busy, _shard_exchange(run, c))
    bubble = (run.pp - 1) / (run.accumulation * run.virtual_stages) if run.pp > 1 else 0.0
    step = (micro * (1 + bubble) + _update(run)) * run.accumulation
    tokens = run.seq * run.micro_batch * run.accumulation / (run.tp * run.pp * run.cp)
    speed = tokens / step
    compute_only = _norm(4.0, compute, launch)
    return Speed(
        tokens_per_second=speed,
        mfu=speed * flops_per_token(run) / ((gpu.peak_tflops(run.precision) or gpu.bf16_tflops) * 1e12),
        step_seconds=step,
        communication_share=max(0.0, micro - compute_only) / micro / (1 + bubble),
        bubble_share=bubble / (1 + bubble),
        launch_share=min(1.0, launch / micro),
    )


def no_estimate(run: TrainingRun, constants: SpeedConstants | None = None) -> str | None:
    """Why the speed of a run cannot be predicted, or None."""
    if reason := unpredictable(run):
        return reason
    if predict_speed(run, constants).launch_share > LAUNCH_BOUND:
        return "the batch is so small that launching kernels decides, and that is the host's speed"
    return None


def estimated_speed(run: TrainingRun, constants: SpeedConstants | None = None) -> Speed | None:
    """The speed of a run, or None where `no_estimate` gives a reason."""
    if unpredictable(run):
        return None
    speed = predict_speed(run, constants)
    return None if speed.launch_share > LAUNCH_BOUND else speed


def unpredictable(run: TrainingRun) -> str | None:
    """Why no constants would tell the speed of a run, or None."""
    if not run.gpu.is_known:
        return f"the rates of GPU {run.gpu.name!r} are not known"
    if run.architecture.is_moe:
        return "the balance among experts decides, and it is not known before the run"
    if run.cp > 1:
        return "no published points tell what context parallelism costs"
    if run.offload != "none":
        return "the host's memory and PCIe speed decide; calibrate from a run"
    return None


def flops_per_token(run: TrainingRun) -> float:
    """6P + 12·L·h·s: forward and backward of all active parameters, attention without a causal mask."""
    a = run.architecture
    return 6.0 * a.active_params + 12.0 * a.layers * a.q_width * run.seq


def _passes(run: TrainingRun) -> float:
    """Forward passes' worth of kernels: one forward, two backward, one more where all is recomputed."""
    return 3.0 + (1.0 if run.checkpointing == "full" else 0.0)


def _again(run: TrainingRun) -> float:
    """Share of the forward pass that is computed again."""
    return {"full": 1.0, "selective": 0.1}.get(run.checkpointing, 0.0)


def _compute(run: TrainingRun, c: SpeedConstants) -> float:
    """Seconds a micro-batch of one GPU without exchange."""
    a, gpu, again = run.architecture, run.gpu, _again(run)
    bf16 = (gpu.bf16_tflops or 0.0) * 1e12
    peak = (gpu.peak_tflops(run.precision) or 0.0) * 1e12
    head = float(a.vocab * a.hidden)
    inner = a.active_params - a.embedding_params
    backward = 2.0 if run.method == "full" else 1.0  # frozen matrices need no gradient of their own
    products = 2.0 * run.tokens / (run.tp * run.pp) * ((1 + backward + again) * inner + (1 + backward) * head)
    layers = a.layers / run.pp
    scores = 2.0 * min(run.seq, 2 * (a.sliding_window or run.seq)) * a.q_width * layers * run.tokens / run.tp
    own_kernels = run.framework == "megatron" or not gpu.name.startswith(NEWER)
    traffic = layer_bytes(run) / run.tp * layers * run.tokens * (3 + again)
    traffic += 30.0 * a.vocab * run.tokens / (run.tp * run.pp)
    matmul = c.matmul_fp8 if peak > bf16 else c.matmul
    seconds = products / (matmul * peak) + scores * (3.5 + again) / (c.attention * bf16 * (1.0 if own_kernels else 0.5))
    seconds += c.traffic * traffic / ((gpu.bandwidth_gb_s or 1.0) * 1e9)
    if run.method == "qlora":
        seconds += a.params / (run.tp * run.pp) * (2 + again) / (c.dequantise * 1e9)
    return seconds


def _tensor_exchange(run: TrainingRun, c: SpeedConstants) -> float:
    """Seconds of tensor-parallel exchange that nothing hides: four reductions a layer, two more where recomputed."""
    if run.tp == 1:
        return 0.0
    layers = run.architecture.layers / run.pp
    volume = 2.0 * 2.0 * run.tokens * run.architecture.hidden * (run.tp - 1) / run.tp
    rate = _link(run) if run.tp <= run.gpus_per_node else _network(run)
    return c.tp_exposed * volume * (4 + 2 * _again(run)) * layers / (rate * 1e9)


def _shard_exchange(run: TrainingRun, c: SpeedConstants) -> float:
    """Seconds a micro-batch of gathering shards and reducing gradients among data-parallel ranks."""
    if run.dp == 1:
        return 0.0
    cut = run.tp * run.pp
    trained = (run.architecture.params if run.method == "full" else run.adapter_params) / cut
    rate = c.link * _link(run) if run.tp * run.dp <= run.gpus_per_node else c.network * _network(run)
    if run.zero_stage == 3:
        each = 0.55 if run.method == "qlora" else 2.0
        volume = 2 * each * run.architecture.params / cut + 2.0 * trained
    else:
        volume = 4.0 * trained / run.accumulation
    return volume * (run.dp - 1) / run.dp / (rate * 1e9)


def _update(run: TrainingRun) -> float:
    """Seconds of the optimizer's pass over its states, spread over the micro-batches of a step."""
    trained = run.architecture.params if run.method == "full" else run.adapter_params
    shards = run.dp if run.zero_stage else 1
    traffic = 30.0 * trained / (run.tp * run.pp) / shards
    return traffic / ((run.gpu.bandwidth_gb_s or 1.0) * 1e9) / run.accumulation


def _link(run: TrainingRun) -> float:
    return run.link_gb_s or run.gpu.link_gb_s or 32.0


def _network(run: TrainingRun) -> float:
    return run.network_gb_s or run.gpu.network_gb_s or 12.5


def _norm(power: float, *values: float) -> float:
    return float(sum(value**power for value in values) ** (1 / power))
