"""A model's numbers from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.core.errors import UserError

ALIASES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "tied_embeddings": ("tie_word_embeddings",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_topk", "moe_top_k"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "q_latent": ("q_lora_rank",),
    "kv_latent": ("kv_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",),
    "sliding_window": ("sliding_window",),
    "max_context": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
PLAIN_FFN = {
    "gpt2",
    "gpt_neox",
    "opt",
    "falcon",
    "bloom",
    "mpt",
    "phi",
    "gpt_bigcode",
    "starcoder2",
    "nemotron",
    "gptj",
}
TIED_BY_DEFAULT = {"gpt2", "opt", "falcon", "bloom", "mpt", "gemma", "gemma2", "gemma3_text"}


def numbers_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    inner = config.get("text_config")
    source = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    given: dict[str, Any] = {}
    for ours, theirs in ALIASES.items():
        given[ours] = next((source[key] for key in theirs if source.get(key) is not None), None)
    kind = str(source.get("model_type", ""))
    if not given["layers"] and not given["hidden"]:
        raise UserError(f"{name}: no num_hidden_layers and no hidden_size; is it a language model's config.json?")
    if source.get("multi_query") and given["kv_heads"] is None:
        given["kv_heads"] = 1
    if kind == "falcon" and not source.get("new_decoder_architecture") and source.get("multi_query"):
        given["kv_heads"] = 1
    if source.get("use_sliding_window") is False:
        given["sliding_window"] = None
    if given["kv_latent"]:
        given["head_dim"] = source.get("qk_nope_head_dim") or given["head_dim"]
    if kind:
        given["gated"] = kind not in PLAIN_FFN
    if given["tied_embeddings"] is None and kind:
        given["tied_embeddings"] = kind in TIED_BY_DEFAULT
    if given["experts"] and given["expert_ffn"] is None:
        given["expert_ffn"] = given["ffn"]
    if given["kv_heads"] is None and given["heads"] is not None and kind:
        given["kv_heads"] = given["heads"]  # Hugging Face's own meaning of a config without the field
    return given
