"""Training plans: what practice does in known cases, what is refused, what is told of assumptions."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.gpus import gpu_for, known
from components.planner.models import known_models, model_named
from components.planner.training import TrainingPlan, plan_training, request_from
from components.planner.training_deepspeed import deepspeed_config


def plan(**values: Any) -> TrainingPlan:
    """A plan from names and values."""
    return plan_training(request_from(values))


def test_one_billion_on_one_large_gpu_is_not_sharded() -> None:
    """It fits, so nothing is spread, cut or moved."""
    found = plan(params=1e9, gpus=1, gpu_memory_gib=80)
    assert found.feasible
    assert (found.zero_stage, found.tp, found.pp, found.offload) == (0, 1, 1, "none")


@pytest.mark.parametrize("machine", [{"gpu_memory_gib": 80}, {"gpu": "A100-80GB"}, {"gpu": "H100"}])
def test_thirteen_billion_on_eight_gpus_takes_zero_2_or_3(machine: dict[str, Any]) -> None:
    """208 GB of states do not fit on one, a node is enough without cuts or offload."""
    found = plan(params=13e9, gpus=8, **machine)
    assert found.feasible
    assert found.zero_stage in (2, 3)
    assert (found.tp, found.pp, found.offload) == (1, 1, "none")
    assert "ddp" in {other.strategy for other in found.alternatives}


def test_seventy_billion_on_eight_gpus_needs_offload() -> None:
    """1,120 GB of states are more than eight GPUs have: infeasible without offload, and a plan says so."""
    refused = plan(params=70e9, gpus=8, gpu_memory_gib=80, offload="none")
    assert not refused.feasible
    assert refused.no_estimate
    assert any("1,120 GB" in reason for reason in refused.reasons)
    moved = plan(params=70e9, gpus=8, gpu_memory_gib=80)
    assert moved.offload != "none"
    assert any("1,120 GB" in reason for reason in moved.reasons)
    assert moved.host_gib_per_node > 16 * 70e9 / 2**30 * 0.7
    small_host = plan(params=70e9, gpus=8, gpu_memory_gib=80, host_memory_gib=256)
    assert not small_host.feasible


@pytest.mark.parametrize("machine", [{"gpu_memory_gib": 80}, {"gpu": "H100-80GB"}])
def test_seventy_billion_on_sixty_four_gpus_cuts_inside_a_node(machine: dict[str, Any]) -> None:
    """Tensor parallelism stays inside a node of eight."""
    found = plan(params=70e9, gpus=64, **machine)
    assert found.feasible
    assert found.offload == "none"
    assert 1 < found.tp <= 8
    assert found.tp * found.pp * found.dp == 64


def test_three_dimensions_must_make_the_number_of_gpus() -> None:
    """PP 2 x TP 4 x DP 8 is 64; anything else is refused with both numbers."""
    found = plan(params=70e9, gpus=64, gpu="H100", pp=2, tp=4, dp=8)
    assert found.feasible
    assert (found.pp, found.tp, found.dp) == (2, 4, 8)
    with pytest.raises(UserError, match="= 72, but there are 64"):
        request_from({"params": 70e9, "gpus": 64, "gpu": "H100", "pp": 2, "tp": 4, "dp": 9})
    with pytest.raises(UserError, match="does not divide 64"):
        request_from({"params": 70e9, "gpus": 64, "gpu": "H100", "pp": 3})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpus": 8, "gpu_memory_gib": 80}, "number of parameters"),
        ({"params": 7e9}, "name or its memory"),
        ({"params": 7e9, "gpu": "Z9000"}, "'Z9000' is unknown: give its memory"),
        ({"params": 7e9, "gpu": "H1000-80GB"}, "did you mean H100-80GB"),
        ({"params": 7, "gpu": "H100"}, "write the number itself"),
        ({"params": -7e9, "gpu": "H100"}, "above 0"),
        ({"params": float("nan"), "gpu": "H100"}, "above 0"),
        ({"params": "many", "gpu": "H100"}, "a number is needed"),
        ({"params": 7e9, "gpu": "H100", "gpus": 0}, "above 0"),
        ({"params": 7e9, "gpu": "H100", "gpus": 2.5}, "whole number"),
        ({"params": 7e9, "gpu": "H100", "gpu_memory_gib": 1e9}, "GPU memory"),
        ({"params": 7e9, "hidden": 4096, "heads": 33, "gpu": "H100"}, "heads do not divide"),
        ({"params": 7e9, "hidden": 4096, "heads": 32, "kv_heads": 5, "gpu": "H100"}, "KV heads do not divide"),
        ({"params": 7e9, "layers": 400, "hidden": 8192, "gpu": "H100"}, "contradict"),
        (
            {"params": 70e9, "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256,
             "gpu": "H100"},
            "leave one of them out",
        ),
        ({"params": 7e9, "experts": 8, "experts_per_token": 9, "gpu": "H100"}, "experts a token of only 8"),
        ({"model": "llama-3-8b", "params": 7e9, "gpu": "H100"}, "not both"),
        ({"model": "llama-3-8c", "gpu": "H100"}, "did you mean llama-3-8b"),
        ({"params": 7e9, "gpu": "H100", "tp": 7, "gpus": 7}, "attention heads"),
        ({"params": 7e9, "gpu": "H100", "precision": "int3"}, "it can be bf16"),
        ({"params": 7e9, "gpu": "H100", "optimizer": "magic"}, "it can be adamw"),
        ({"params": 7e9, "gpu": "H100", "micro_batch": 8, "global_batch": 4}, "smaller than a micro-batch"),
        ({"params": 7e9, "gpu": "H100", "gpus": 16, "nodes": 3}, "evenly"),
        ({"params": 7e9, "gpu": "H100", "gpus": 16, "nodes": 4, "gpus_per_node": 8}, "are 32"),
        ({"params": 7e9, "gpu": "H100", "interconnect": "string-and-cans"}, "interconnect"),
        ({"params": 7e9, "gpu": "H100", "colour": "red"}, "no setting"),
        ({"config": "/nowhere/config.json", "gpu": "H100"}, "cannot be read"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(values: dict[str, Any], message: str) -> None:
    """What is wrong, where, and what to do."""
    with pytest.raises(UserError, match=message) as caught:
        plan_training(request_from(values))
    assert "\n" not in str(caught.value)


def test_a_batch_that_no_layout_can_split_is_refused() -> None:
    """Two sequences a rank are no micro-batch of three, and seven cannot be split among eight ranks."""
    with pytest.raises(UserError, match="dp 8, global_batch 16, micro_batch 3"):
        plan(params=1e9, gpus=8, gpu="H100", dp=8, tp=1, pp=1, strategy="zero2", global_batch=16, micro_batch=3)
    with pytest.raises(UserError, match="cannot be split among 8"):
        plan(params=1e9, gpus=8, gpu="H100", dp=8, global_batch=7)


def test_what_was_not_given_is_listed_with_its_value() -> None:
    """Nothing is guessed in silence."""
    found = {item.field: item for item in plan(params=13e9, gpus=8, gpu_memory_gib=80).assumed}
    assert {"layers", "hidden", "heads", "kv_heads", "vocab", "ffn", "seq", "precision", "optimizer"} <= set(found)
    assert found["layers"].value == 40
    assert all(item.reason for item in found.values())
    whole = plan(
        model="llama-3-8b", gpus=8, gpu="A100-80GB", seq=4096, global_batch=64, precision="bf16", optimizer="adamw"
    )
    assert whole.assumed == ()


def test_an_unknown_gpu_with_memory_gets_memory_but_no_speed() -> None:
    """Throughput says that it is unknown."""
    found = plan(params=7e9, gpus=8, gpu="Z9000", gpu_memory_gib=80, tokens=1e9, price_per_gpu_hour=2)
    assert found.feasible
    assert found.tokens_per_second_per_gpu is None
    assert (found.hours, found.cost) == (None, None)
    assert "Z9000" in found.no_estimate


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model": "qwen3-30b-a3b", "ep": 8}, "experts"),
        ({"model": "llama-3-8b", "cp": 2, "seq": 65536, "strategy": "zero3"}, "context parallelism"),
        ({"model": "llama-2-70b", "strategy": "zero3", "offload": "all"}, "PCIe"),
        ({"model": "opt-125m", "seq": 16, "micro_batch": 1}, "launching"),
    ],
)
def test_what_cannot_be_predicted_says_so(values: dict[str, Any], reason: str) -> None:
    """No number where no published run tells one."""
    found = plan(gpus=8, gpu="H100", **values)
    assert found.tokens_per_second_per_gpu is None
    assert reason in found.no_estimate


def test_hours_and_cost_follow_from_tokens() -> None:
    """Tokens over tokens/s over all GPUs; the band's ends change places."""
    found = plan(model="llama-3-8b", gpus=8, gpu="A100", seq=4096, global_batch=64, tokens=1e10, price_per_gpu_hour=2)
    pace, hours, cost = found.tokens_per_second_per_gpu, found.hours, found.cost
    assert pace is not None
    assert hours is not None
    assert cost is not None
    assert hours.value == pytest.approx(1e10 / (pace.value * 8) / 3600)
    assert hours.low == pytest.approx(1e10 / (pace.high * 8) / 3600)
    assert cost.high == pytest.approx(hours.high * 8 * 2)
    assert pace.low < pace.value < pace.high
    assert 0.2 < (found.mfu or 0) < 0.7


def test_the_global_batch_is_what_ranks_do() -> None:
    """Micro-batch, accumulation and replicas multiply to it."""
    found = plan(model="llama-3-8b", gpus=16, gpu="H100", seq=4096, global_batch=96)
    assert found.micro_batch * found.accumulation * found.dp == 96 == found.global_batch


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ({"method": "lora-r128"}, {"method": "lora", "lora_rank": 128}),
        ({"method": "qlora-all"}, {"method": "qlora", "lora_targets": "all"}),
        ({"method": "lora-emb"}, {"method": "lora", "train_embeddings": True}),
        ({"strategy": "fsdp_full+cpu_offload"}, {"strategy": "fsdp", "offload": "all"}),
        ({"strategy": "zero2+opt_cpu_offload100"}, {"strategy": "zero2", "offload": "optimizer"}),
        ({"strategy": "ZeRO-3"}, {"strategy": "zero3"}),
        ({"checkpointing": "selective:core_attn"}, {"checkpointing": "selective"}),
        ({"precision": "amp_bf16"}, {"precision": "bf16"}),
        ({"framework": "NeMo"}, {"framework": "megatron"}),
        ({"seq_len": 4096}, {"seq": 4096}),
        ({"interconnect": "infiniband-400"}, {"network_gb_s": 50}),
        ({"nodes": 2, "gpus": None}, {"gpus": 16, "gpus_per_node": 8}),
    ],
)
def test_other_spellings_mean_the_same(values: dict[str, Any], same: dict[str, Any]) -> None:
    """As the field writes them: one plan."""
    base = {"model": "llama-3-8b", "gpus": 8, "gpu": "A100"}
    one, other = plan(**{**base, **values}).to_dict(), plan(**{**base, **same}).to_dict()
    for values_of in (one, other):
        values_of.pop("assumed")
    assert one == other


def test_a_plain_model_is_told_from_a_gated_one_by_its_parameters() -> None:
    """MPT's blocks are four times the width without a gate, Llama's are gated; only the numbers are given."""
    plain = Architecture.from_numbers(params=6.649e9, layers=32, hidden=4096, heads=32, kv_heads=32, vocab=50368)
    assert (plain.gated, plain.ffn, plain.tied_embeddings) == (False, 16384, True)
    gated = Architecture.from_numbers(params=6.738e9, layers=32, hidden=4096, heads=32, kv_heads=32, vocab=32000)
    assert gated.gated
    assert gated.ffn == pytest.approx(11008, rel=0.01)


def test_the_counter_asked_for_is_the_one_shown() -> None:
    """Allocated is below reserved is below what the device shows."""
    peaks = [
        plan(model="llama-2-7b", gpu="A100", method="lora", micro_batch=1, memory_counter=counter).predicted_peak_gib
        for counter in ("allocated", "reserved", "device")
    ]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[2]


def test_parts_add_up_to_the_peak_and_states_follow_the_books() -> None:
    """13B under ZeRO-2 on eight: 2 bytes whole, 6 and 12 bytes an eighth."""
    found = plan(model="llama-2-13b", gpus=8, gpu="A100", strategy="zero2")
    params = 13.016e9 / 2**30
    parts = found.memory_parts_gib
    assert sum(parts.values()) == pytest.approx(found.predicted_peak_gib)
    assert parts["weights"] == pytest.approx(2 * params, rel=0.001)
    assert parts["gradients"] == pytest.approx(6 * params / 8, rel=0.001)
    assert parts["optimizer"] == pytest.approx(12 * params / 8, rel=0.001)


def test_adapters_take_less_than_full_training_and_quantised_bases_least() -> None:
    """QLoRA < LoRA < full, at the same batch."""
    fixed = {"model": "llama-2-7b", "gpu": "A100", "micro_batch": 1, "checkpointing": "full", "strategy": "single"}
    full, lora, qlora = (plan(method=method, **fixed).predicted_peak_gib for method in ("full", "lora", "qlora"))
    assert qlora < 0.6 * lora < 0.6 * full
    assert lora > 2 * 6.738e9 / 2**30


def test_warnings_name_what_hurts() -> None:
    """Tensor parallelism over nodes and racks, bubbles, small batches."""
    across = plan(params=70e9, gpus=32, gpu="H100", gpus_per_node=4, tp=8, nodes_per_rack=1)
    assert any("crosses racks" in warning for warning in across.warnings)
    bubbles = plan(params=70e9, gpus=64, gpu="H100", tp=8, pp=8, global_batch=4, micro_batch=1)
    assert any("pipeline waits" in warning for warning in bubbles.warnings)
    assert any("too small" in warning for warning in bubbles.warnings)
    short = plan(params=7e9, gpus=8, gpu="H100", seq=128, micro_batch=1)
    assert any("too few" in warning for warning in short.warnings)


def test_alternatives_say_why_they_lost() -> None:
    """Every other layout with its reason; those that fit come first."""
    others = plan(params=13e9, gpus=8, gpu="A100").alternatives
    assert len(others) >= 4
    assert all(other.reason for other in others)
    needs = ["needs" in other.reason for other in others]
    assert needs == sorted(needs)


def test_a_deepspeed_configuration_is_what_the_plan_says() -> None:
    """Its three batch sizes agree, as DeepSpeed demands; cut and infeasible plans have none."""
    found = plan(model="llama-2-70b", gpus=8, gpu="H100", global_batch=64, seq=4096)
    config = deepspeed_config(found)
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    assert config["train_batch_size"] == micro * steps * 8 == 64
    assert config["zero_optimization"]["stage"] == 3
    assert config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert config["bf16"] == {"enabled": True}
    with pytest.raises(UserError, match="not a DeepSpeed configuration"):
        deepspeed_config(plan(params=70e9, gpus=64, gpu="H100"))
    with pytest.raises(UserError, match="infeasible"):
        deepspeed_config(plan(params=70e9, gpus=1, gpu="H100", offload="none"))


def test_a_config_json_is_read_and_its_gaps_are_listed(tmp_path: Path) -> None:
    """Llama 3 8B from its configuration; a configuration without a vocabulary lists the one assumed."""
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    whole = Architecture.from_config(config)
    assert whole.params == pytest.approx(8.03e9, rel=0.001)
    assert whole.attention == "gqa"
    assert {item.field for item in whole.assumed} == {"params"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "vocab_size"}))
    found = plan(config=str(path), gpus=8, gpu="H100")
    assert "vocab" in {item.field for item in found.assumed}
    path.write_text("{")
    with pytest.raises(UserError, match="no JSON"):
        request_from({"config": str(path), "gpu": "H100"})
    path.write_text('{"architectures": ["ResNet"]}')
    with pytest.raises(UserError, match="is it a language model"):
        request_from({"config": str(path), "gpu": "H100"})


def test_latent_attention_and_experts_are_read() -> None:
    """DeepSeek V3: 671B parameters of which 37B are active, a cache 576 wide."""
    found = model_named("deepseek-v3")
    assert found.attention == "mla"
    assert found.kv_latent + found.rope_dim == 576
    assert found.active_params == pytest.approx(37e9, rel=0.05)


@pytest.mark.parametrize("name", known_models())
def test_every_model_in_the_table_has_the_parameters_of_its_shape(name: str) -> None:
    """The stated number and the shape agree within two in a hundred, so no row has a slip."""
    found = model_named(name)
    shape = {key: value for key, value in found.__dict__.items() if key not in ("name", "params", "assumed")}
    counted = Architecture.from_numbers(name, **shape).params
    assert counted == pytest.approx(found.params, rel=0.02)


@pytest.mark.parametrize("name", known())
def test_every_gpu_in_the_table_is_possible(name: str) -> None:
    """Usable memory is a little below the nominal one; every fact has its source."""
    gpu = gpu_for(name)
    assert 0.9 * gpu.memory_gib <= gpu.usable_gib < gpu.memory_gib
    assert gpu.source
    assert gpu.bf16_tflops is not None
    assert gpu.fp8_tflops is None or gpu.fp8_tflops > gpu.bf16_tflops


def test_a_plan_takes_under_a_tenth_of_a_second_of_processor_time() -> None:
    """Also the largest: 405B on 512 GPUs."""
    request = request_from({"model": "llama-3.1-405b", "gpus": 512, "gpu": "H100", "seq": 8192, "global_batch": 1024})
    times = []
    for _ in range(5):
        began = time.process_time()
        plan_training(request)
        times.append(time.process_time() - began)
    assert min(times) < 0.1


def test_planning_imports_no_heavy_package() -> None:
    """Nothing but the standard library is loaded for a plan."""
    code = (
        "import sys; from components.planner.training import *;"
        "plan_training(request_from({'params': 13e9, 'gpus': 8, 'gpu': 'H100'}));"
        "print([m for m in ('numpy', 'pandas', 'scipy', 'torch', 'pydantic') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
