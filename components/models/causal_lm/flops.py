"""Floating point operations that a step needs, as model FLOP utilisation counts them.

Two for a multiply and add of each weight that a token meets, forward; as many again for the gradient of its input, and
again for the gradient of the weight where it is trained. So 6 a token and trained weight, 4 a frozen one. Attention
adds 12 x layers x width x length a token, without the causal mask (Chowdhery et al., 2022, "PaLM", appendix B). What
activation checkpointing computes again is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Cost:
    """FLOP a token of the trunk, a token and position of attention, and an output token of the head."""

    trunk: float = 0.0
    attention: float = 0.0
    head: float = 0.0


def cost_of(network: Any) -> Cost:
    """What a token costs in a network, adapters included."""
    embeddings, head = network.get_input_embeddings(), network.get_output_embeddings()
    apart = {id(p) for module in (embeddings, head) for p in module.parameters()}
    trunk = sum(_passes(p) * p.numel() for p in network.parameters() if p.dim() > 1 and id(p) not in apart)
    config = network.config
    width = config.num_attention_heads * (
        getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads
    )
    last = max((p for p in head.parameters() if p.dim() > 1), key=lambda p: p.numel())
    return Cost(float(trunk), 12.0 * config.num_hidden_layers * width, float(_passes(last) * last.numel()))


def step_flops(cost: Cost, lengths: NDArray[np.int64], outputs: int) -> float:
    """FLOP of a batch: rows of these lengths, `outputs` of whose tokens go through the head."""
    return cost.trunk * float(lengths.sum()) + cost.attention * float((lengths**2).sum()) + cost.head * outputs


def _passes(parameter: Any) -> float:
    return 6.0 if parameter.requires_grad else 4.0
