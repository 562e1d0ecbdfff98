"""Rows of published runs and start-ups as they are collected elsewhere, in the layout of the planner's own tables.

A column may be missing, a number unreadable, a name spelled in the way of its software; what a row does not say stays
empty, so that the row is left out with that reason instead of being guessed.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from components.core.errors import UserError

STAGES = {
    "single": 0, "none": 0, "ddp": 0, "dp": 0, "megatron": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3,
    "fsdp": 3, "fsdp2": 3, "fsdp_full": 3, "full_shard": 3, "hsdp": 3, "fsdp_grad_op": 2, "shard_grad_op": 2,
}  # fmt: skip
SOFTWARE = (  # what a source, a note or a framework column holds, the first that is found
    ("unsloth", "unsloth"), ("llm-foundry", "llm-foundry"), ("mosaicml", "llm-foundry"), ("composer", "llm-foundry"),
    ("torchtitan", "torchtitan"), ("torchtune", "torchtune"), ("litgpt", "litgpt"), ("lit-gpt", "litgpt"),
    ("lit-llama", "litgpt"), ("megatron", "megatron"), ("nemo", "megatron"), ("deepspeed", "deepspeed"),
    ("llama-factory", "llama-factory"), ("axolotl", "huggingface"), ("peft", "huggingface"), ("trl", "huggingface"),
)  # fmt: skip
ADAPTERS = (  # public defaults of software that states no rank: rank, adapted matrices
    ("qwenlm", "64", "all"), ("nemo", "16", "qv"), ("torchtune", "8", "qv"), ("", "8", "qv"),
)  # fmt: skip
OFFLOADS = {"opt_cpu_offload": "optimizer", "optimizer_offload": "optimizer", "cpu_offload": "all", "offload": "all"}
COUNTERS = {"allocated": "allocated", "reserved": "reserved", "max_allocated": "allocated", "max_reserved": "reserved"}
OPTIMIZERS = (
    ("paged_adamw_8", "paged_adamw_8bit"), ("8bit", "adamw_8bit"), ("8-bit", "adamw_8bit"),
    ("decoupled_adamw", "decoupled_adamw"), ("adamw", "adamw"), ("adam", "adam"), ("lion", "lion"),
    ("adafactor", "adafactor"), ("momentum", "momentum"), ("sgd", "sgd"),
)  # fmt: skip
SHAPE = ("params_b", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "experts_per_token")
RAN = ("ran", "ok", "success", "")
MOST = 1e9  # of whatever is counted; more is a slip of the pen
HYBRID = re.compile(r"mamba|hybrid|jamba|rwkv|ssm", re.IGNORECASE)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file with their columns; UserError where it cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            return [{k: v or "" for k, v in row.items() if isinstance(k, str)} for row in csv.DictReader(stream)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV ({error})") from None


def training_rows(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Rows of training runs in the layout of facts/training_points.csv."""
    return [_training(_Row(row)) for row in rows]


def serving_rows(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Rows of server start-ups in the layout of facts/serve_points.csv."""
    return [_serving(_Row(row)) for row in rows]


class _Row:
    """A row that answers "" for a column that it lacks."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = {key.strip().lower(): str(value or "").strip() for key, value in row.items() if key}

    def text(self, *names: str) -> str:
        """The first of these columns that says something, in lower case."""
        return next((found for name in names if (found := self.plain(name).lower()) not in ("", "unknown", "n/a")), "")

    def plain(self, name: str) -> str:
        """A column as it stands."""
        return self._row.get(name, "")

    def number(self, *names: str) -> str:
        """The first of these columns that is a finite number above or equal to 0, as text; "" where none is."""
        return next((text for name in names if (text := _number(self.plain(name)))), "")

    def above_zero(self, *names: str) -> str:
        """The same, "" for 0."""
        found = self.number(*names)
        return found if found and float(found) > 0 else ""

    def whole(self, *names: str) -> str:
        """The same of whole numbers above 0."""
        found = self.number(*names)
        value = float(found or 0)
        return str(int(value)) if value == int(value) and 0 < value < MOST else ""


def _training(row: _Row) -> dict[str, str]:
    strategy, _, offload = row.text("strategy").replace("-", "_").partition("+")
    about = " ".join(row.text(name) for name in ("framework", "source", "notes"))
    stage = STAGES.get(strategy.replace("zero_", "zero"))
    rank, targets = _adapters(row, about)
    gpus = row.whole("n_gpus", "gpus") or ("1" if strategy == "single" else "")
    found = {name: row.whole(name) for name in ("seq_len", "gpus_per_node", "tp", "pp", "cp", "ep", "micro_batch")}
    return found | {name: row.number(name) for name in SHAPE} | {
        "source": row.plain("source") or "not stated",
        "model": row.plain("arch_key") or row.plain("model"),
        "name": row.plain("model"),
        "hybrid": "1" if HYBRID.search(f"{row.plain('model')} {row.plain('arch_key')}") else "",
        "gpu": row.plain("gpu"),
        "memory_gib": row.number("gpu_mem_gib", "memory_gib"),
        "gpus": gpus,
        "framework": _software(about, strategy, row),
        "zero_stage": "" if stage is None else str(stage),
        "offload": OFFLOADS.get(offload.rstrip("0123456789"), ""),
        "virtual_stages": _found(r"vp=(\d+)", about),
        "method": _method(row.text("method")),
        "lora_rank": rank,
        "lora_targets": targets,
        "train_embeddings": "1" if row.text("method") == "lora-emb" else "",
        "accumulation": _accumulation(row, gpus),
        "micro_batch": found["micro_batch"] or _micro_batch(row, gpus),
        "checkpointing": _checkpointing(row.text("activation_checkpointing", "checkpointing")),
        "precision": _precision(row.text("precision", "dtype")),
        "optimizer": _optimizer(row.text("optimizer")),
        "peak_gib": row.above_zero("peak_mem_gib", "peak_gib"),
        "counter": COUNTERS.get(row.text("mem_kind", "counter"), "device"),
        "tokens_s_gpu": row.above_zero("tokens_per_s_per_gpu", "tokens_s_gpu"),
        "ran": "1" if row.text("outcome") in RAN else "0",
    }  # fmt: skip


def _software(about: str, strategy: str, row: _Row) -> str:
    """What ran it: as the row says, else what such a strategy is usually run with."""
    named = row.text("framework")
    found = next((name for part, name in SOFTWARE if part in (named or about)), "")
    if found and not (found in ("deepspeed", "llama-factory") and strategy.startswith("fsdp")):
        if found == "llama-factory" and strategy.startswith("zero"):
            return "deepspeed"
        return found
    if strategy.startswith(("fsdp", "full_shard", "shard", "hsdp")):
        return "fsdp"
    if strategy.startswith("zero"):
        cut = int(row.whole("tp") or 1) * int(row.whole("pp") or 1) > 1
        return "megatron" if cut else "deepspeed"
    return "huggingface"


def _adapters(row: _Row, about: str) -> tuple[str, str]:
    """Rank and adapted matrices: as the method or a note says, else the software's public default."""
    method, _, variant = row.text("method").partition("-")
    if method not in ("lora", "qlora"):
        return "", ""
    usual = next((rank, targets) for part, rank, targets in ADAPTERS if part in about)
    rank = row.whole("lora_rank") or _found(r"^r(\d+)", variant) or _found(r"lora_r(?:ank)?\s*=\s*(\d+)", about)
    if variant == "all" or variant.startswith("r") or re.search(r"all (linear|modules)", about):
        return rank or usual[0], "all"
    return rank or usual[0], "qv" if re.search(r"\bq\s*,\s*v\b", about) else usual[1]


def _method(text: str) -> str:
    kind = text.partition("-")[0]
    return {"": "full", "sft": "full", "pretrain": "full", "pretraining": "full", "finetune": "full"}.get(kind, kind)


def _ranks(row: _Row, gpus: str) -> float:
    cut = math.prod(int(row.whole(name) or 1) for name in ("tp", "pp", "cp"))
    return int(gpus or 0) / cut


def _accumulation(row: _Row, gpus: str) -> str:
    """As stated, else what the global batch leaves."""
    stated, micro, total = row.whole("grad_accum", "accumulation"), row.whole("micro_batch"), row.whole("global_batch")
    if stated or not (micro and total and gpus):
        return stated
    steps = int(total) / (int(micro) * _ranks(row, gpus))
    return str(int(steps)) if steps >= 1 and steps == int(steps) else ""


def _micro_batch(row: _Row, gpus: str) -> str:
    total, steps = row.whole("global_batch"), row.whole("grad_accum", "accumulation")
    if not (total and steps and gpus) or int(row.whole("pp") or 1) > 1:  # stages count micro-batches in their own way
        return ""
    size = int(total) / (int(steps) * _ranks(row, gpus))
    return str(int(size)) if size >= 1 and size == int(size) else ""


def _checkpointing(text: str) -> str:
    level = text.partition(":")[0]
    same = {
        "true": "full",
        "yes": "full",
        "on": "full",
        "false": "none",
        "no": "none",
        "off": "none",
        "op": "selective",
    }
    level = same.get(level, level)
    return level if level in ("none", "selective", "full") else ""


def _precision(text: str) -> str:
    if "fp8" in text:
        return "fp8"
    if "fp4" in text:
        return "fp4"
    if text in ("bf16-true", "pure_bf16", "bf16_pure", "pure-bf16"):
        return "pure_bf16"
    if text in ("fp32", "float32", "32", "tf32", "32-true"):
        return "fp32"
    return "fp16" if "fp16" in text or ("float16" in text and "bfloat16" not in text) else "bf16"


def _optimizer(text: str) -> str:
    return next((name for part, name in OPTIMIZERS if part in text), "")


def _serving(row: _Row) -> dict[str, str]:
    failed, notes = row.text("fail_reason"), row.text("notes")
    ran = row.text("outcome") in RAN
    outcome = "ran" if ran else "context too long" if "len" in failed else "no cache"
    latent = _found(r"mla\((\d+)\)", row.text("kv_heads"))
    remarks = list(dict.fromkeys(name for part, name in REMARKS if part in notes))
    if row.text("engine") not in ("", "vllm"):
        remarks.append("another engine")
    return {name: row.number(name) for name in SHAPE[:6]} | {
        "source": row.plain("source") or "not stated",
        "model": row.plain("model"),
        "architecture": row.plain("arch_key") or row.plain("model"),
        "kv_latent": str(int(latent) - 64) if latent else "",
        "weights": row.text("dtype", "weights") or "bf16",
        "kv_dtype": row.text("kv_dtype") or "auto",
        "gpu": row.plain("gpu"),
        "memory_gib": row.number("gpu_mem_gib", "memory_gib"),
        "tp": row.whole("tp") or row.whole("n_gpus"),
        "pp": row.whole("pp"),
        "utilisation": row.number("gpu_mem_util", "utilisation"),
        "max_model_len": row.whole("max_model_len")
        or _found(r"context default (\d{4,7})|default (\d{4,7}) context", notes),
        "max_num_seqs": row.whole("max_num_seqs"),
        "max_batched_tokens": row.whole("max_batched_tokens"),
        "outcome": outcome,
        "kv_tokens": row.number("kv_blocks_or_tokens", "kv_tokens"),
        "kv_cache_gib": row.number("kv_gib", "kv_cache_gib"),
        "weights_gib": row.number("weights_gib"),
        "activations_gib": row.number("act_gib", "activations_gib"),
        "outside_torch_gib": row.number("nontorch_gib", "outside_torch_gib"),
        "cuda_graphs_gib": row.number("graph_gib", "cuda_graphs_gib"),
        "remark": "|".join(remarks),
    }


REMARKS = (
    ("multimodal", "multimodal"),
    ("unsloth", "batch set by a trainer"),
    ("grpo", "shared GPU"),
    ("share the card", "shared GPU"),
    ("other tenants", "shared GPU"),
    ("hybrid", "hybrid cache"),
)


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return next(group for group in found.groups() if group) if found else ""


def _number(text: str) -> str:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return ""
    return text.replace(",", "") if 0 <= value < MOST**2 else ""
