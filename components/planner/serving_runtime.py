"""What a vLLM server holds beside weights and KV cache, and the defaults that decide it.

The activation profile is the larger of the two peaks of vLLM's profile run: a layer's intermediate tensors over a
whole batch of tokens, or the sampler over `max_num_seqs` rows of logits. The forms follow from the shapes of those
tensors; the constants are medians over published start-up logs (`serving_points.fit`), and a test holds them together.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.planner.architecture import Architecture
from components.planner.gpus import Gpu, gpu_for

GIB = 2.0**30
UTILISATION = 0.9  # share of the GPU's memory that one vLLM instance may take
LARGE_GIB, HUGE_GIB = 70.0, 160.0  # from here on vLLM's defaults are larger (EngineArgs.get_batch_defaults)
GRAPHS_COUNT_SINCE = (0, 21)  # from this version on CUDA graphs are taken out of the share


@dataclass(frozen=True)
class RuntimeConstants:
    """Fitted numbers.

    Attributes:
        bytes_per_logit: peak bytes of the sampler a logit: 16- and 32-bit copies, sorted values and indices, masks.
        outside_torch_gib: CUDA context and libraries on one GPU, as vLLM reports them.
        outside_torch_parallel_gib: the same with communication buffers, tensor or pipeline parallel.
        graph_gib_per_layer: CUDA graphs.
        band: half-width of the 80 % band of the memory beside the KV cache, in units of `uncertainty_gib`.
    """

    bytes_per_logit: float = 35.0
    outside_torch_gib: float = 0.065
    outside_torch_parallel_gib: float = 1.39
    graph_gib_per_layer: float = 0.0189
    band: float = 3.38


CONSTANTS = RuntimeConstants()


@dataclass(frozen=True)
class Limits:
    """What one step of the scheduler may hold: sequences and tokens."""

    max_num_seqs: int
    max_num_batched_tokens: int


SMALL = Limits(256, 2048)


def scheduler_limits(gpu: Gpu, seqs: int | None = None, tokens: int | None = None) -> Limits:
    """vLLM's defaults for an API server on this GPU, where they are not given.

    A card of 70 GiB or more that is no A100 gets 1,024 sequences and 8,192 tokens (16,384 from 160 GiB), others 256 and
    2,048. What counts is the card's name: an unnamed GPU is among the others, and a plan states its limits, so that the
    server takes the same.
    """
    card = gpu_for(gpu.name).memory_gib if gpu.is_known and not gpu.name.upper().startswith(("A100", "A800")) else 0.0
    tokens = tokens or (16_384 if card >= HUGE_GIB else 8192 if card >= LARGE_GIB else SMALL.max_num_batched_tokens)
    return Limits(min(seqs or (1024 if card >= LARGE_GIB else SMALL.max_num_seqs), tokens), tokens)


def activation_gib(model: Architecture, limits: Limits, tp: int, constants: RuntimeConstants = CONSTANTS) -> float:
    """Peak of the profile run on one GPU."""
    tokens, hidden = limits.max_num_batched_tokens, model.hidden
    width = max(model.active_ffn, model.ffn if not model.is_moe else 0)
    layer = tokens * (6.0 * width / tp + 6.0 * hidden)
    sampler = 2.0 * hidden * tokens + constants.bytes_per_logit * limits.max_num_seqs * model.vocab
    return max(layer, sampler) / GIB


def outside_torch_gib(gpus_per_replica: int, constants: RuntimeConstants = CONSTANTS) -> float:
    """CUDA context, libraries and, with more than one GPU, communication buffers."""
    return constants.outside_torch_gib if gpus_per_replica == 1 else constants.outside_torch_parallel_gib


def graph_gib(model: Architecture, pp: int, eager: bool, constants: RuntimeConstants = CONSTANTS) -> float:
    """CUDA graphs of one stage's layers; nothing in eager mode."""
    return 0.0 if eager else constants.graph_gib_per_layer * model.layers / pp


def uncertainty_gib(weights_gib: float, quantised: bool, activations_gib: float, outside_gib: float) -> float:
    """The scale of what may be wrong on one GPU: a share of each part, the more the less of it follows from shapes."""
    return (0.02 if quantised else 0.005) * weights_gib + 0.4 * activations_gib + 0.3 * outside_gib


def graphs_count(version: str) -> bool:
    """Whether this vLLM version takes CUDA graphs out of the share; an unknown version counts as a new one."""
    parts = version.split(".")
    try:
        return (int(parts[0]), int(parts[1])) >= GRAPHS_COUNT_SINCE
    except (ValueError, IndexError):
        return True
