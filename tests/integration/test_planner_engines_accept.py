"""What a plan emits, given to the parsers of DeepSpeed and vLLM themselves."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.paths import PROJECT_ROOT
from components.planner.serving import plan_serving
from components.planner.serving_request import request_from as serving_request
from components.planner.serving_vllm import vllm_arguments
from components.planner.training import plan_training, request_from
from components.planner.training_deepspeed import deepspeed_config

SERVED: list[dict[str, Any]] = [
    {"model": "llama-3-8b", "gpus": 1, "gpu": "T4", "weights": "int4", "eager": True},
    {"params": 175e9, "nodes": 12, "gpus_per_node": 4, "gpu_memory_gib": 40.0, "kv_cache_dtype": "fp8"},
    {"model": "llama-3-8b", "gpus": 1, "gpu": "H100", "weights": "fp8", "kv_cache_dtype": "bf16"},
    {"params": 1e9, "gpus": 1, "gpu": "H100", "weights": "fp32"},
]


@pytest.mark.parametrize(
    "asked",
    [
        {"params": 1e9},
        {"params": 1e9, "precision": "fp16"},
        {"params": 1e9, "precision": "fp32", "global_batch": 32, "micro_batch": 4},
        {"params": 7e9, "offload": "optimizer"},
        {"params": 5e9, "strategy": "zero3", "offload": "all"},
    ],
)
def test_deepspeed_reads_the_configuration(asked: dict[str, Any]) -> None:
    """Its own parser takes stage, batch and precision as the plan has them; one GPU, as the parser counts ranks."""
    from deepspeed.runtime.config import DeepSpeedConfig

    plan = plan_training(request_from({"gpus": 1, "gpu": "H100-80GB", "framework": "deepspeed", **asked}))
    assert plan.feasible
    read = DeepSpeedConfig(deepspeed_config(plan))
    assert read.zero_optimization_stage == plan.zero_stage
    assert read.train_batch_size == plan.global_batch
    assert read.gradient_accumulation_steps == plan.accumulation
    assert (read.zero_config.offload_optimizer is not None) == (plan.offload != "none")
    assert (read.zero_config.offload_param is not None) == (plan.offload == "all")
    assert read.bfloat16_config.enabled == (plan.precision == "bf16")


@pytest.mark.parametrize("asked", [{"precision": "fp8"}, {"tp": 8}, {"cp": 2}])
def test_what_deepspeed_does_not_describe_is_refused(asked: dict[str, Any]) -> None:
    """No configuration that means something else."""
    plan = plan_training(request_from({"params": 7e9, "gpus": 8, "gpu": "H100-80GB", **asked}))
    with pytest.raises(UserError, match="DeepSpeed"):
        deepspeed_config(plan)


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_knows_every_argument_and_value() -> None:
    """Names and listed choices, as `vllm serve --help=all` of the pinned version prints them."""
    command = [str(PROJECT_ROOT / ".venv-vllm" / "bin" / "vllm"), "serve", "--help=all"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    for asked in SERVED:
        request = serving_request(asked)
        words = vllm_arguments(plan_serving(request), request)
        for name, value in zip(words, [*words[1:], ""], strict=True):
            if not name.startswith("--"):
                continue
            found = re.search(rf"^  {name}(?: (?P<kind>\S.*))?$|^  {name},", text, re.MULTILINE)
            assert found, f"{name} is not known"
            if (kind := found["kind"]) and kind.startswith(("{", "[")):
                assert value in re.findall(r"[A-Za-z0-9_]+", kind), f"{name} {value}"
