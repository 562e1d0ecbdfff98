"""GPUs, models and weights by the names that clouds, drivers, hubs and logs give them."""

from __future__ import annotations

import pytest

from components.core.errors import UserError
from components.planner.gpus import gpu_for
from components.planner.models import known_models, model_named
from components.planner.quantisation import weight_format


@pytest.mark.parametrize(
    ("name", "memory", "found", "gib"),
    [
        ("8xH100", 80, "H100-80GB", 80), ("8 x A100 80GB", None, "A100-80GB", 80), ("2*A100", 40, "A100-40GB", 40),
        ("NVIDIA A100-SXM4-40GB", None, "A100-40GB", 40), ("NVIDIA A100 80GB PCIe", None, "A100-PCIE-80GB", 80),
        ("H100 SXM5 80GB", None, "H100-80GB", 80), ("NVIDIA H100 80GB HBM3", 79.1, "H100-80GB", 80),
        ("H100", 94, "H100-NVL-94GB", 94), ("H200 141GB HBM3e", None, "H200", 141),
        ("Tesla V100-SXM2-16GB", None, "V100-16GB", 16), ("nvidia-tesla-t4", 14.7, "T4", 16),
        ("nvidia-l4", None, "L4", 24), ("a100-80g", None, "A100-80GB", 80), ("RTX A6000", 48, "A6000", 48),
        ("GeForce RTX 4090", 24, "RTX4090", 24), ("RTX 6000 Ada Generation", None, "RTX6000-ADA", 48),
        ("L40S", 44.4, "L40S", 48), ("AMD Instinct MI300X", None, "MI300X", 192),
    ],
)  # fmt: skip
def test_a_card_is_known_by_its_other_names(name: str, memory: float | None, found: str, gib: float) -> None:
    """Counts, vendors, sockets and memory types around the chip's name change nothing."""
    gpu = gpu_for(name, memory)
    assert (gpu.name, gpu.memory_gib, gpu.note) == (found, gib, "")
    assert gpu.is_known


@pytest.mark.parametrize(
    ("name", "memory", "gib", "known", "note"),
    [
        ("A100", None, 80, True, "others have 40"), ("A100", 64, 64, True, "instead of 80"),
        ("RTX 4090", 48, 48, True, "instead of 24"), ("T4", 80, 80, True, "no such card"),
        ("NVIDIA H100 1g.10gb", None, 10, False, "as its name says"), ("6GB laptop", None, 6, False, "its name"),
        ("A10G or L4", 22.06, 22.06, False, ""), ("RTX 4090 Laptop", 16, 16, False, ""),
    ],
)  # fmt: skip
def test_what_is_not_sure_of_a_card_is_noted(
    name: str, memory: float | None, gib: float, known: bool, note: str
) -> None:
    """Another memory, an unstated one, a slice; a chip that is not in the table has no rates."""
    gpu = gpu_for(name, memory)
    assert (gpu.memory_gib, gpu.is_known) == (gib, known)
    assert note in gpu.note
    assert bool(note) == bool(gpu.note)


@pytest.mark.parametrize("name", ["H1000-80GB", "X9000", "Z"])
def test_an_unknown_card_needs_its_memory(name: str) -> None:
    """A slip of a known name is no card of its own."""
    with pytest.raises(UserError, match="give its memory"):
        gpu_for(name)
    assert gpu_for(name, 80).bf16_tflops is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("Meta-Llama-3-8B", "llama-3-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Llama-3.3-70B-Instruct", "llama-3.1-70b"), ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b"),
        ("Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"), ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"), ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("GPT OSS 120B", "gpt-oss-120b"), ("microsoft/phi-4", "phi-4"),
    ],
)  # fmt: skip
def test_a_model_is_known_by_its_published_names(name: str, found: str) -> None:
    """Owner, tuning, version and quantisation change no shape."""
    assert model_named(name).name == found


def test_every_model_of_the_table_is_found_by_its_own_name() -> None:
    """No rule for other names hides one."""
    assert all(model_named(name).name == name for name in known_models())


@pytest.mark.parametrize("name", ["llama-3-9b", "qwen", "", "instruct", "llama-3.2-8b"])
def test_no_model_is_taken_for_another(name: str) -> None:
    """Near is not enough."""
    with pytest.raises(UserError, match="not in the planner's table"):
        model_named(name)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("AWQ-int4", "int4"), ("gptq-int4", "int4"), ("awq_marlin", "int4"), ("bnb-4bit", "bnb4"),
        ("fp8_e4m3", "fp8"), ("BF16", "bf16"), ("int4 (awq)", "int4"),
    ],
)  # fmt: skip
def test_a_format_is_known_by_its_parts(name: str, found: str) -> None:
    """As checkpoints are called."""
    assert weight_format(name).name == found


@pytest.mark.parametrize("name", ["", "foo", "fp8-int4", "7bit"])
def test_an_unknown_or_double_format_is_refused(name: str) -> None:
    """Not the nearest one in silence."""
    with pytest.raises(UserError, match="no such format"):
        weight_format(name)
