"""The network: a Llama-architecture causal language model with random weights from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components.core.recipe import Model
from components.models.causal_lm.prompt import Renderer
from components.models.causal_lm.tokenizer import BEGIN, END, PAD, TOKENIZER_FILE

SPREAD = 0.02  # standard deviation of an ordinary embedding
WITHIN = 0.004  # and of one bucket around its place on the feature's line


def build_network(model: Model, prepared: Path, renderer: Renderer, seed: int) -> Any:
    """A new LlamaForCausalLM in fp32; the same seed gives the same weights in every process."""
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer.from_file(str(prepared / TOKENIZER_FILE))
    torch.manual_seed(seed)
    network: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=model.hidden_size,
            intermediate_size=model.intermediate_size,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            num_key_value_heads=model.heads,
            max_position_embeddings=model.max_positions,
            tie_word_embeddings=False,
            attention_dropout=0.0,
            bos_token_id=tokenizer.token_to_id(BEGIN),
            eos_token_id=tokenizer.token_to_id(END),
            pad_token_id=tokenizer.token_to_id(PAD),
            attn_implementation="sdpa",
            dtype="float32",
        )
    )
    _place_buckets_in_order(network.get_input_embeddings().weight, renderer)
    return network


def _place_buckets_in_order(embeddings: Any, renderer: Renderer) -> None:
    """Neighbouring buckets start near each other: each feature's buckets lie along one random direction."""
    import torch

    with torch.no_grad():
        for first, count in zip(renderer.first_bucket_ids, renderer.bucket_counts, strict=True):
            centre, direction = torch.randn(2, embeddings.shape[1]) * SPREAD
            for bucket in range(int(count) + 1):
                place = 2.0 * (2.0 * bucket / max(int(count), 1) - 1.0)
                noise = torch.randn(embeddings.shape[1]) * WITHIN
                embeddings[int(first) + bucket] = centre + direction * place + noise
