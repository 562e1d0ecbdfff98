"""config.json in the shapes that publishers give it: counted parameters against the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.architecture_config import sliding_layers, stored_weights
from components.planner.serving_request import request_from

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}  # fmt: skip
QWEN2_MOE = {
    "model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
    "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 32768,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
DBRX = {
    "model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}, "vocab_size": 100352,
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
        "num_key_value_heads": 8, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202048, "head_dim": 128,
    },
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240, "sliding_window": 1024,
        "sliding_window_pattern": 6, "vocab_size": 262208,
    },
}  # fmt: skip
CHATGLM = {
    "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32,
    "multi_query_attention": True, "multi_query_group_num": 2, "ffn_hidden_size": 13696, "padded_vocab_size": 65024,
    "kv_channels": 128,
}  # fmt: skip
QWEN1 = {
    "model_type": "qwen", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "intermediate_size": 22016, "vocab_size": 151936, "kv_channels": 128, "tie_word_embeddings": False,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
    "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024, "num_kv_heads": 71,
}  # fmt: skip
MPT = {"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32, "expansion_ratio": 4, "vocab_size": 50432}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": None, "vocab_size": 50257}
COHERE = {
    "model_type": "cohere", "num_hidden_layers": 40, "hidden_size": 8192, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 22528, "vocab_size": 256000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "params_b", "kv_heads"),
    [
        (LLAMA, 8.03, 8), (LLAMA | {"tie_word_embeddings": True}, 7.505, 8), (QWEN2_MOE, 14.31, 16),
        (DEEPSEEK, 671.0, 128), (DBRX, 131.6, 8), (LLAMA4, 107.8, 8), (GEMMA3, 3.88, 4), (CHATGLM, 6.24, 2),
        (QWEN1, 7.72, 32), (FALCON, 6.92, 1), (MPT, 6.65, 32), (GPT2, 0.124, 12), (COHERE, 34.98, 64),
        ({"text_config": LLAMA, "vision_config": {"hidden_size": 9}}, 8.03, 8), ({"llm_config": LLAMA}, 8.03, 8),
        ({"thinker_config": {"text_config": LLAMA}}, 8.03, 8), ({"language_config": LLAMA}, 8.03, 8),
        (LLAMA | {"num_key_value_heads": [8] * 32, "intermediate_size": [14336] * 32}, 8.03, 8),
    ],
)  # fmt: skip
def test_parameters_are_those_published(config: dict[str, Any], params_b: float, kv_heads: int) -> None:
    """Within 1 % for plain, grouped, latent, mixed, nested and old spellings; the cache has the right heads."""
    found = Architecture.from_config(config)
    assert found.params / 1e9 == pytest.approx(params_b, rel=0.01)
    assert found.kv_heads == kv_heads


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 32}, "hidden_size is missing"),
        ({"model_type": "llava", "text_config": None}, "num_hidden_layers is missing"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers is True"),
        (LLAMA | {"num_hidden_layers": "many"}, "a number is needed"),
        (LLAMA | {"num_hidden_layers": 10**30}, "no model has more"),
        (LLAMA | {"hidden_size": float("nan")}, "hidden is nan"),
        (LLAMA | {"num_key_value_heads": [8, 4] * 16}, "one number for all layers"),
        (LLAMA | {"num_attention_heads": {"a": 1}}, "num_attention_heads is"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "true or false"),
        ({"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768}, "no decoder-only"),
        ({"model_type": "t5", "num_layers": 24, "d_model": 1024, "is_encoder_decoder": True}, "no decoder-only"),
        ({"model_type": "mamba", "num_hidden_layers": 48, "hidden_size": 2048}, "without attention"),
    ],
)
def test_a_config_of_something_else_is_refused_in_one_line(config: dict[str, Any], message: str) -> None:
    """What is wrong with which field."""
    with pytest.raises(UserError, match=message) as caught:
        Architecture.from_config(config, "config.json")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("missing", "fields"),
    [
        ("num_key_value_heads", {"kv_heads"}), ("tie_word_embeddings", {"tied_embeddings"}),
        ("intermediate_size", {"ffn"}), ("vocab_size", {"vocab"}), ("model_type", {"gated"}),
        ("num_attention_heads", {"heads"}),
    ],
)  # fmt: skip
def test_a_missing_field_is_listed_with_what_was_taken(missing: str, fields: set[str]) -> None:
    """Also where it is what transformers itself would take."""
    config = {name: value for name, value in LLAMA.items() if name != missing}
    assumed = {item.field for item in Architecture.from_config(config).assumed} - {"params"}
    assert assumed == fields


def test_the_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """A quantised checkpoint is planned as such, and the plan says why; what is asked for comes first."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK))
    asked: dict[str, Any] = {"config": str(tmp_path), "gpus": 16, "gpu": "H200"}
    request = request_from(asked)
    assert request.weights.name == "fp8"
    assert any("fp8 assumed (as the configuration states)" in line for line in request.assumed)
    assert request_from(asked | {"weights": "bf16"}).weights.name == "bf16"


@pytest.mark.parametrize(
    ("quantisation", "name"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"), ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"), ({"quant_method": "bitsandbytes"}, "bnb4"),
        ({"quant_method": "mxfp4"}, "mxfp4"), ({"quant_method": "new"}, None), ("odd", None), (None, None),
    ],
)  # fmt: skip
def test_what_a_checkpoint_says_of_its_format(quantisation: Any, name: str | None) -> None:
    """Known methods by name or bits; unknown ones say nothing."""
    assert stored_weights(LLAMA | {"quantization_config": quantisation}) == name


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, 0), ({"sliding_window": 4096}, 32), ({"sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
        ({"sliding_window": 4096, "model_type": "gemma2"}, 16),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20}, 12),
        ({"sliding_window": 4096, "sliding_window_pattern": "odd"}, 32),
        ({"sliding_window": 4096, "num_hidden_layers": "32"}, 0),
    ],
)  # fmt: skip
def test_layers_that_slide(fields: dict[str, Any], layers: int) -> None:
    """As the config lists them, else as its kind alternates; odd values say nothing."""
    assert sliding_layers(LLAMA | fields) == layers
