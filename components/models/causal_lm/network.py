"""The network: a Llama-architecture model with random weights from a seed, or an initial model with new tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components.core.recipe import Model
from components.models.causal_lm.initial import Initial, load_network, read_pointer
from components.models.causal_lm.prompt import Renderer
from components.models.causal_lm.tokenizer import BEGIN, END, PAD, TOKENIZER_FILE

SPREAD = 0.02  # standard deviation of an ordinary embedding
WITHIN = 0.2  # of that, of one bucket around its place on the feature's line


def build_network(model: Model, prepared: Path, renderer: Renderer, seed: int) -> Any:
    """A causal language model in fp32; the same seed gives the same weights in every process."""
    import torch

    torch.manual_seed(seed)
    initial = read_pointer(prepared)
    if initial is not None:
        return _extended(initial, renderer)
    network = _new(model, prepared)
    _place_buckets_in_order(network.get_input_embeddings().weight, renderer, SPREAD)
    return network


def trunk(network: Any) -> Any:
    """All of a network but its head, which gives hidden states; inside an adapter too."""
    inner = network.get_base_model() if hasattr(network, "get_base_model") else network
    return inner.base_model


def _new(model: Model, prepared: Path) -> Any:
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer.from_file(str(prepared / TOKENIZER_FILE))
    return LlamaForCausalLM(
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


def _extended(initial: Initial, renderer: Renderer) -> Any:
    """The initial model with a row for each new token, around the mean of the rows that it has."""
    import torch

    network = load_network(initial)
    rows = network.get_input_embeddings().weight.shape[0]
    network.resize_token_embeddings(max(rows, *(i + 1 for i in renderer.new_token_ids), 1), mean_resizing=False)
    network.config.pad_token_id = renderer.pad_id
    new = torch.tensor(renderer.new_token_ids, dtype=torch.long)
    old = torch.ones(network.get_input_embeddings().weight.shape[0], dtype=torch.bool)
    old[new] = False
    tables = {
        id(layer.weight): layer.weight for layer in (network.get_input_embeddings(), network.get_output_embeddings())
    }
    with torch.no_grad():
        for weight in tables.values():
            known = weight[old]
            mean, spread = known.mean(0), float(known.std())
            weight[new] = mean + spread * torch.randn(len(new), weight.shape[1])
        first = network.get_input_embeddings().weight
        _place_buckets_in_order(first, renderer, float(first[old].std()))
    return network


def _place_buckets_in_order(embeddings: Any, renderer: Renderer, spread: float) -> None:
    """Neighbouring buckets start near each other: each feature's buckets lie along one random direction."""
    import torch

    with torch.no_grad():
        for first, count in zip(renderer.first_bucket_ids, renderer.bucket_counts, strict=True):
            centre, direction = torch.randn(2, embeddings.shape[1]) * spread
            for bucket in range(int(count) + 1):
                place = 2.0 * (2.0 * bucket / max(int(count), 1) - 1.0)
                noise = torch.randn(embeddings.shape[1]) * (WITHIN * spread)
                embeddings[int(first) + bucket] = centre + direction * place + noise
