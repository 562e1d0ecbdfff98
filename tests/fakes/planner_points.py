"""The shared table of published runs in the layout of the planner's own table."""

from __future__ import annotations

import csv
from pathlib import Path

COLUMNS = (
    "source", "model", "seq_len", "gpu", "memory_gib", "gpus", "gpus_per_node", "framework", "zero_stage", "offload",
    "tp", "pp", "cp", "ep", "virtual_stages", "method", "lora_rank", "lora_targets", "train_embeddings", "micro_batch",
    "accumulation", "checkpointing", "precision", "optimizer", "peak_gib", "counter", "tokens_s_gpu", "ran",
)  # fmt: skip
SAME = ("source", "seq_len", "gpu", "gpus_per_node", "tp", "pp", "cp", "ep", "micro_batch", "optimizer")
FRAMEWORKS = {
    "llm-foundry": "llm-foundry", "torchtitan": "torchtitan", "torchtune": "torchtune", "litgpt": "litgpt",
    "lit-llama": "litgpt", "Megatron": "megatron", "NeMo": "megatron", "stanford_alpaca": "fsdp",
    "LLaMA-Factory": "llama-factory", "QwenLM": "deepspeed", "LlamaFactory": "deepspeed", "OpenRLHF": "deepspeed",
    "DeepSpeed": "deepspeed", "dllm": "deepspeed", "odyn": "deepspeed",
}  # fmt: skip
STAGES = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp_full": 3, "fsdp_grad_op": 2}
OFFLOAD = {"opt_cpu_offload100": "optimizer", "cpu_offload": "all"}
PRECISION = {"bf16-true": "pure_bf16", "fp16": "fp16", "nvfp4": "fp4"}


def shared_rows(path: Path) -> list[dict[str, str]]:
    """Rows of the shared file in our layout."""
    with path.open(newline="") as stream:
        return [ours(row) for row in csv.DictReader(stream)]


def ours(row: dict[str, str]) -> dict[str, str]:
    """One row in our layout; what the row's note or its software's public defaults tell becomes a column."""
    framework = _framework(row)
    strategy, _, offload = row["strategy"].partition("+")
    rank, targets = _adapters(row)
    counter = {"device_total": "device"}.get(row["mem_kind"], row["mem_kind"])
    return {name: row[name] for name in SAME} | {
        "model": row["arch_key"] or row["model"],
        "memory_gib": row["gpu_mem_gib"],
        "gpus": row["n_gpus"],
        "framework": framework,
        "zero_stage": str(STAGES[strategy]) if strategy else "",
        "offload": OFFLOAD.get(offload, ""),
        "virtual_stages": _virtual_stages(row["notes"]),
        "method": row["method"].partition("-")[0],
        "lora_rank": rank,
        "lora_targets": targets,
        "train_embeddings": "1" if row["method"] == "lora-emb" else "",
        "accumulation": row["grad_accum"],
        "checkpointing": row["activation_checkpointing"].partition(":")[0],
        "precision": _precision(row["precision"]),
        "peak_gib": row["peak_mem_gib"],
        "counter": counter,
        "tokens_s_gpu": row["tokens_per_s_per_gpu"],
        "ran": "1" if row["outcome"] == "ran" else "0",
    }


def _framework(row: dict[str, str]) -> str:
    if "unsloth" in row["notes"]:
        return "unsloth"
    if "QwenLM" in row["source"] and row["strategy"] == "single":
        return "huggingface"
    return next((name for part, name in FRAMEWORKS.items() if part in row["source"]), "huggingface")


def _adapters(row: dict[str, str]) -> tuple[str, str]:
    if row["method"] == "full":
        return "", ""
    if "QwenLM" in row["source"]:
        return "64", "all"
    if row["method"] == "lora-r128":
        return "128", "all"
    return ("16" if "NeMo" in row["source"] else "8"), ("all" if row["method"].endswith("-all") else "qv")


def _virtual_stages(notes: str) -> str:
    stages = [part[3:] for part in notes.replace(";", " ").split() if part.startswith("vp=") and part[3:].isdigit()]
    return stages[0] if stages else ""


def _precision(name: str) -> str:
    if name in PRECISION:
        return PRECISION[name]
    return "fp8" if "fp8" in name else "bf16"
