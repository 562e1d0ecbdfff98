"""A model's numbers from a Hugging Face config.json, and what its missing fields mean to transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.planner.architecture_draft import Assumption

ALIASES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "tied_embeddings": ("tie_word_embeddings",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "dense_layers": ("first_k_dense_replace",),
    "q_latent": ("q_lora_rank",),
    "kv_latent": ("kv_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",),
    "sliding_window": ("sliding_window",),
    "max_context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
INNER = ("text_config", "llm_config", "language_config", "thinker_config", "decoder", "attn_config", "ffn_config")
PLAIN_FFN = {
    "gpt2", "gpt_neo", "gpt_neox", "opt", "falcon", "bloom", "mpt", "phi", "gpt_bigcode", "starcoder2", "nemotron",
    "gptj", "codegen", "xglm", "persimmon",
}  # fmt: skip
GATED = (  # how kinds with gated blocks begin
    "llama", "mistral", "mixtral", "ministral", "qwen", "gemma", "phi3", "phimoe", "deepseek", "cohere", "olmo", "glm",
    "chatglm", "granite", "gpt_oss", "smollm", "internlm", "baichuan", "dbrx", "stablelm", "minicpm", "exaone", "ernie",
    "hunyuan", "yi", "nemotron-nas", "apertus", "kimi", "arcee", "seed_oss",
)  # fmt: skip
TIED_BY_DEFAULT = {
    "gpt2", "gpt_neo", "gpt_bigcode", "opt", "falcon", "bloom", "mpt", "gemma", "gemma2", "gemma3", "gemma3_text",
    "cohere", "cohere2", "starcoder2", "smollm3", "xglm",
}  # fmt: skip
NO_DECODER = {"bert", "roberta", "distilbert", "electra", "deberta-v2", "albert", "modernbert", "vit", "clip", "siglip"}
NO_ATTENTION = {
    "mamba", "mamba2", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "nemotron_h",
    "granitemoehybrid", "recurrent_gemma", "lfm2", "qwen3_next", "minimax", "kimi_linear",
}  # fmt: skip
EVERY_NTH_SEES_ALL = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "llama4_text": 4}
QUANTISED = {  # quant_method of a checkpoint -> weight format; None: its bits decide
    "fp8": "fp8", "fbgemm_fp8": "fp8", "modelopt": "fp8", "awq": None, "gptq": None, "bitsandbytes": "bnb4",
    "mxfp4": "mxfp4", "compressed-tensors": None, "auto-round": None,
}  # fmt: skip


def read_config(path: Path) -> dict[str, Any]:
    """A config.json, or the one in a folder; UserError where it cannot be read as a JSON object."""
    file = path / "config.json" if path.is_dir() else path
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); name a Hugging Face config.json") from None
    except (ValueError, RecursionError):
        raise UserError(f"{file}: no JSON; name a Hugging Face config.json") from None
    if not isinstance(parsed, dict):
        raise UserError(f"{file}: no JSON object; name a Hugging Face config.json")
    return parsed


def numbers_of(config: Mapping[str, Any], name: str) -> tuple[dict[str, Any], list[Assumption]]:
    """The numbers of the language model in a config, and what its missing fields were taken for.

    Raises:
        UserError: no decoder with attention in every layer, or fields that no such model has.
    """
    source = flattened(config)
    kind = _kind(source)
    _refuse_others(source, kind, name)
    given: dict[str, Any] = {}
    for ours, theirs in ALIASES.items():
        given[ours] = next((_one(source[key], key, name) for key in theirs if source.get(key) is not None), None)
    for ours in ("layers", "hidden"):
        if given[ours] is None:
            raise UserError(f"{name}: {ALIASES[ours][0]} is missing; is it a language model's config.json?")
    _own_spellings(given, source, kind)
    if given["tied_embeddings"] is not None and not isinstance(given["tied_embeddings"], bool):
        raise UserError(f"{name}: tie_word_embeddings is {given['tied_embeddings']!r}; true or false is needed")
    return given, _defaults(given, kind)


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the language model of a multimodal one, and nested groups of fields, on its top level."""
    found = dict(config)
    for key in INNER:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            found |= {name: value for name, value in flattened(inner).items() if value is not None}
    return found


def sliding_layers(config: Mapping[str, Any]) -> int:
    """Layers with a sliding window, as the configuration or its kind names them; all where neither does."""
    source = flattened(config)
    layers = next((source[key] for key in ALIASES["layers"] if isinstance(source.get(key), int)), 0)
    if not source.get("sliding_window") or source.get("use_sliding_window") is False:
        return 0
    kinds = source.get("layer_types")
    if isinstance(kinds, list):
        return sum("sliding" in str(kind) for kind in kinds[:layers])
    first = source.get("max_window_layers")
    if source.get("use_sliding_window") and isinstance(first, int):
        return max(0, layers - first)
    pattern = source.get("sliding_window_pattern") or EVERY_NTH_SEES_ALL.get(_kind(source))
    return layers - layers // pattern if isinstance(pattern, int) and pattern > 0 else layers


def stored_weights(config: Mapping[str, Any]) -> str | None:
    """The weight format that a checkpoint's config states, None where it is 16 bit or not known."""
    found = config.get("quantization_config") or flattened(config).get("quantization_config")
    if isinstance(found, Mapping):
        method = str(found.get("quant_method", "")).lower()
        if method == "bitsandbytes" and found.get("load_in_8bit"):
            return "int8"
        bits = found.get("bits") or found.get("w_bit")
        return QUANTISED.get(method) or {4: "int4", 8: "int8"}.get(bits if isinstance(bits, int) else 0)
    kind = str(config.get("torch_dtype") or config.get("dtype") or flattened(config).get("torch_dtype") or "")
    return "fp32" if kind == "float32" else None


def _kind(source: Mapping[str, Any]) -> str:
    return str(source.get("model_type", "")).lower()


def _refuse_others(source: Mapping[str, Any], kind: str, name: str) -> None:
    if kind in NO_DECODER or source.get("is_encoder_decoder") is True or kind in ("t5", "bart", "whisper"):
        raise UserError(f"{name}: {kind or 'it'} is no decoder-only language model; plans are made for those")
    if kind in NO_ATTENTION:
        raise UserError(
            f"{name}: {kind} has layers without attention, outside what is planned; give --params and numbers instead"
        )


def _one(value: Any, key: str, name: str) -> Any:
    """A value, or the one that all layers share; UserError where layers differ or it is no plain value."""
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    if isinstance(value, (list, Mapping)) or (isinstance(value, bool) and key != "tie_word_embeddings"):
        shown = str(value) if len(str(value)) < 40 else f"{str(value)[:36]} ..."
        raise UserError(f"{name}: {key} is {shown}; one number for all layers is needed")
    return value


def _own_spellings(given: dict[str, Any], source: Mapping[str, Any], kind: str) -> None:
    """Fields that mean something else in one family."""
    if source.get("multi_query") is True and (given["kv_heads"] is None or kind == "falcon"):
        given["kv_heads"] = given["kv_heads"] if source.get("new_decoder_architecture") else 1
    if kind == "chatglm" and source.get("multi_query_attention") is False:
        given["kv_heads"] = given["heads"]
    if kind == "qwen" and isinstance(given["ffn"], int):
        given["ffn"] //= 2  # its two gated halves are counted together
    if source.get("use_sliding_window") is False:
        given["sliding_window"] = None
    if given["kv_latent"]:
        given["head_dim"] = source.get("qk_nope_head_dim") or given["head_dim"]
    if given["ffn"] is None and isinstance(source.get("expansion_ratio"), int) and isinstance(given["hidden"], int):
        given["ffn"] = source["expansion_ratio"] * given["hidden"]
    if given["experts"] and given["expert_ffn"] is None:
        given["expert_ffn"] = given["ffn"]
    shared, expert = source.get("shared_expert_intermediate_size"), given["expert_ffn"]
    if isinstance(shared, int) and isinstance(expert, int) and expert > 0 and given["shared_experts"] is None:
        given["shared_experts"] = round(shared / expert)
    if kind == "llama4_text" and isinstance(given["layers"], int):
        step = source.get("interleave_moe_layer_step")
        given["dense_layers"] = given["layers"] - given["layers"] // step if isinstance(step, int) and step > 0 else 0
        given["ffn"], given["shared_experts"] = source.get("intermediate_size_mlp") or given["ffn"], 1


def _defaults(given: dict[str, Any], kind: str) -> list[Assumption]:
    """What transformers takes for a field that is not there, for a config that names its kind."""
    if not kind:
        return []
    found = []
    if given["tied_embeddings"] is None:
        given["tied_embeddings"] = tied = kind in TIED_BY_DEFAULT
        found.append(Assumption("tied_embeddings", tied, f"the default of {kind}"))
    if given["kv_heads"] is None and given["heads"] is not None and not given["kv_latent"]:
        given["kv_heads"] = heads = given["heads"]
        found.append(Assumption("kv_heads", heads, "without the field there are as many as heads"))
    given["gated"] = kind not in PLAIN_FFN
    if given["gated"] and not kind.startswith(GATED):
        found.append(Assumption("gated", True, f"{kind} is not known here, and most models since 2023 have a gate"))
    return found
