"""The KV cache: bytes a token for grouped, multi-head and latent attention, and what a sequence holds."""

from __future__ import annotations

import math

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.quantisation import KV_BYTES

BLOCK = 16  # tokens a block in vLLM


def kv_element_bytes(dtype: str) -> float:
    """Bytes of one cached number; UserError for an unknown type."""
    if dtype.lower() not in KV_BYTES:
        raise UserError(f"kv cache dtype {dtype!r}: not one of {', '.join(KV_BYTES)}")
    return KV_BYTES[dtype.lower()]


def kv_bytes_per_token(model: Architecture, tp: int = 1, pp: int = 1, dtype: str = "auto") -> float:
    """Bytes of cache that one token takes on one GPU of the fullest pipeline stage.

    Grouped attention: keys and values of the KV heads that the GPU holds, at least one (heads are copied where TP
    exceeds their number). Latent attention: one vector of latent and rotary part a layer, whole on every GPU.
    """
    layers = math.ceil(model.layers / pp)
    element = kv_element_bytes(dtype)
    if model.kv_latent:
        return layers * (model.kv_latent + model.rope_dim) * element
    heads = max(model.kv_heads / tp, 1.0)
    return 2.0 * layers * heads * model.head_dim * element


def kv_tokens(kv_gib: float, bytes_per_token: float) -> int:
    """Tokens that fit, in whole blocks; 0 where nothing is left."""
    blocks = max(kv_gib, 0.0) * 2.0**30 / bytes_per_token // BLOCK
    return int(blocks) * BLOCK


def cached_tokens(length: int, window: int | None, sliding_layers: int, layers: int, in_flight: int) -> float:
    """Tokens of cache that one sequence of `length` holds, averaged over layers.

    A layer with a sliding window keeps the window and what is in flight beside it, the others keep everything;
    vLLM frees the rest only where its cache manager knows the layers apart.
    """
    if not window or not sliding_layers:
        return float(length)
    kept = min(length, window - 1 + in_flight)
    return (sliding_layers * kept + (layers - sliding_layers) * length) / layers
