"""A serving plan as vLLM's command line."""

from __future__ import annotations

import shlex

from components.planner.serving_plan import ServingPlan
from components.planner.serving_request import ServingRequest
from components.planner.serving_runtime import graphs_count

HIGHEST_SHARE = 0.98
KV_NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}


def vllm_arguments(plan: ServingPlan, request: ServingRequest) -> list[str]:
    """Arguments of `vllm serve` for one replica, everything that the plan rests on said explicitly.

    From vLLM 0.21 on CUDA graphs count inside the share: it is raised by them, so that the same cache is left.
    """
    share = plan.gpu_memory_utilization
    if graphs_count(request.vllm_version) and plan.memory.cuda_graphs_gib:
        share = min(share + plan.memory.cuda_graphs_gib / plan.memory.total_gib, max(HIGHEST_SHARE, share))
    options: dict[str, str] = {
        "--tensor-parallel-size": str(plan.tp),
        "--pipeline-parallel-size": str(plan.pp),
        "--max-model-len": str(plan.max_model_len),
        "--max-num-seqs": str(plan.max_num_seqs),
        "--max-num-batched-tokens": str(plan.max_num_batched_tokens),
        "--gpu-memory-utilization": f"{share:.3f}",
    }
    if request.weights.vllm:
        options["--quantization"] = request.weights.vllm
    if request.weights.name == "fp32":
        options["--dtype"] = "float32"
    elif request.gpu.no_bf16:
        options["--dtype"] = "float16"
    if request.kv_dtype not in ("auto", "fp32"):
        options["--kv-cache-dtype"] = KV_NAMES.get(request.kv_dtype, request.kv_dtype)
    if plan.gpus_per_replica > plan.gpus_per_node:
        options["--distributed-executor-backend"] = "ray"
    flat = [word for option in options.items() for word in option]
    return [request.served_name, *flat, *(["--enforce-eager"] if request.eager else [])]


def vllm_command(plan: ServingPlan, request: ServingRequest) -> str:
    """The command ready to paste."""
    return "vllm serve " + " ".join(shlex.quote(word) for word in vllm_arguments(plan, request))
