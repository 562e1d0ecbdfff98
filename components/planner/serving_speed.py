"""How fast a replica answers: a roofline with three fitted numbers.

A prompt is bound by arithmetic, a decoding step by reading weights and cache; every layer adds the time of its kernel
launches. At a steady concurrency each step carries, beside the decoding of all sequences, the share of prompts that
enter while one answer is written (S. Williams et al., Roofline, CACM 2009; R. Pope et al., arXiv:2211.05102).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from components.core.records import Record
from components.planner.architecture import Architecture
from components.planner.gpus import Gpu
from components.planner.kv_cache import kv_bytes_per_token
from components.planner.quantisation import WIDE, WeightFormat, weight_gib

GIB = 2.0**30
RING = 2.0  # an all-reduce moves 2 (n-1)/n times its tensor over each GPU's link


@dataclass(frozen=True)
class SpeedConstants:
    """Shares of the published peaks that servers reach, time of a layer's launches, and the band.

    `band` is the factor by which 80 % of published times lie at most above or below.
    """

    compute_share: float = 0.55
    bandwidth_share: float = 0.90
    layer_seconds: float = 80e-6
    band: float = 1.36


SPEED = SpeedConstants()


@dataclass(frozen=True, kw_only=True)
class SpeedEstimate(Record):
    """Times at one concurrency of one replica, milliseconds; output tokens a second. `why_not`: no estimate, and why.

    `band` holds for each of them: 80 % of published times lie between value / band and value x band.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float | None = None
    itl_ms: float | None = None
    request_ms: float | None = None
    tokens_per_s: float | None = None
    band: float | None = None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What is served how: the model, its weights, the GPU and the split."""

    model: Architecture
    gpu: Gpu
    weights: WeightFormat
    tp: int = 1
    pp: int = 1
    kv_dtype: str = "auto"


def speed(
    replica: Replica, concurrency: int, prompt_tokens: int, output_tokens: int, constants: SpeedConstants = SPEED
) -> SpeedEstimate:
    """Time to the first token without queueing, between tokens, of a request, and output tokens a second."""
    asked = SpeedEstimate(concurrency=concurrency, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    if reason := cannot_estimate(replica):
        return replace(asked, why_not=reason)
    first = prefill_seconds(replica, prompt_tokens, constants)
    context = prompt_tokens + output_tokens / 2
    step = decode_seconds(replica, concurrency, context, constants) + concurrency / output_tokens * first
    return replace(
        asked,
        ttft_ms=1000 * first,
        itl_ms=1000 * step,
        request_ms=1000 * (first + step * output_tokens),
        tokens_per_s=concurrency / step,
        band=constants.band,
    )


def cannot_estimate(replica: Replica) -> str:
    """Why no estimate is made, "" where one can be."""
    if replica.gpu.bf16_tflops is None or replica.gpu.bandwidth_gb_s is None:
        return "no estimate: the GPU's speed is not known (name it with --gpu)"
    if replica.model.is_moe:
        return "no estimate: which experts a batch touches is not known beforehand"
    if replica.pp > 1:
        return "no estimate: published times of pipeline-parallel servers are too few to judge one"
    return ""


def prefill_seconds(replica: Replica, tokens: int, constants: SpeedConstants = SPEED) -> float:
    """Time of one prompt alone."""
    model, gpu = replica.model, replica.gpu
    matmul = 2.0 * (model.active_params - model.embedding_params / (1 if model.tied_embeddings else 2)) * tokens
    attention = 2.0 * model.layers * model.q_width * float(tokens) ** 2
    precision = "fp8" if replica.weights.name == "fp8" else "bf16"
    rate = (gpu.peak_tflops(precision) or 0.0) * 1e12 * constants.compute_share * replica.tp
    compute = matmul / rate + attention / ((gpu.bf16_tflops or 0.0) * 1e12 * constants.compute_share * replica.tp)
    floor = _weight_seconds(replica, constants) + model.layers * constants.layer_seconds
    return max(compute, floor) + _all_reduce_seconds(replica, tokens)


def decode_seconds(replica: Replica, sequences: int, context: float, constants: SpeedConstants = SPEED) -> float:
    """Time of one decoding step of `sequences` sequences that hold `context` tokens each."""
    model, gpu = replica.model, replica.gpu
    cache = sequences * context * kv_bytes_per_token(model, replica.tp, 1, replica.kv_dtype)
    reading = _weight_seconds(replica, constants) + cache / _bandwidth(replica, constants)
    rate = (gpu.bf16_tflops or 0.0) * 1e12 * constants.compute_share * replica.tp
    compute = 2.0 * model.active_params * sequences / rate
    return max(reading, compute) + model.layers * constants.layer_seconds + _all_reduce_seconds(replica, sequences)


def _weight_seconds(replica: Replica, constants: SpeedConstants) -> float:
    """Reading what one GPU holds, less the input embedding, of which a step reads a few rows."""
    model = replica.model
    held = weight_gib(model, replica.weights, replica.tp) * GIB
    rows = model.embedding_params / 2 * WIDE / replica.tp if not model.tied_embeddings else 0.0
    return max(held - rows, 0.0) / _bandwidth(replica, constants)


def _bandwidth(replica: Replica, constants: SpeedConstants) -> float:
    return (replica.gpu.bandwidth_gb_s or math.inf) * 1e9 * constants.bandwidth_share


def _all_reduce_seconds(replica: Replica, tokens: int) -> float:
    """Two all-reduces a layer over the links inside the node."""
    if replica.tp == 1 or not replica.gpu.link_gb_s:
        return 0.0
    moved = RING * (replica.tp - 1) / replica.tp * tokens * replica.model.hidden * WIDE
    return 2.0 * replica.model.layers * moved / (replica.gpu.link_gb_s * 1e9)
