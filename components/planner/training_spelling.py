"""How people, frameworks and tables spell what a training plan asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.core.errors import UserError
from components.planner.architecture_draft import Assumption
from components.planner.training_run import METHODS

SAME_PRECISION = {
    "amp_bf16": "bf16", "bf16-mixed": "bf16", "bfloat16": "bf16", "bf16-true": "pure_bf16", "float16": "fp16",
    "amp_fp16": "fp16", "amp_fp8": "fp8", "mxfp8": "fp8", "fp8-cs": "fp8", "fp8-mx": "fp8", "nvfp4": "fp4",
    "mxfp4": "fp4", "float32": "fp32", "bf16-true-fp8": "fp8", "fp8-mixed": "fp8", "bf16_mixed": "bf16",
    "mixed": "bf16", "fp16-mixed": "fp16", "16-mixed": "fp16", "half": "fp16", "32": "fp32", "32-true": "fp32",
    "tf32": "fp32",
}  # fmt: skip
SAME_FRAMEWORK = {
    "megatron-lm": "megatron", "megatron-bridge": "megatron", "nemo": "megatron", "composer": "llm-foundry",
    "mosaicml": "llm-foundry", "lit-gpt": "litgpt", "lit-llama": "litgpt", "lightning": "litgpt",
    "transformers": "huggingface", "hf": "huggingface", "peft": "huggingface", "trl": "huggingface",
    "llamafactory": "llama-factory", "fsdp2": "fsdp",
}  # fmt: skip
SOFTWARE = (
    "megatron", "torchtitan", "llm-foundry", "fsdp", "unsloth", "deepspeed", "huggingface", "litgpt", "torchtune",
    "llama-factory",
)  # fmt: skip
OFFLOADS = {"cpu_offload": "all", "opt_cpu_offload": "optimizer", "offload": "optimizer"}  # after a strategy's +
SAME_OPTIMIZER = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "fused_adamw": "adamw",
    "fused_adam": "adam", "distributed_fused_adam": "adam", "cpu_adam": "adam", "cpuadam": "adam",
    "deepspeedcpuadam": "adam", "adam8bit": "adamw_8bit", "adamw8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_8": "paged_adamw_8bit", "pagedadamw8bit": "paged_adamw_8bit",
}  # fmt: skip
LINKS = {"nvlink": None, "pcie3": 16.0, "pcie4": 32.0, "pcie5": 64.0, "pcie": 32.0, "nvlink3": 300.0, "nvlink4": 450.0,
         "nvlink5": 900.0}  # inside a node, GB/s a direction; None: as in the GPU's table  # fmt: skip
NETWORKS = {"infiniband": 400.0, "roce": 200.0, "ethernet": 100.0, "efa": 400.0}  # Gbit/s a GPU; -RATE says another


def usual_name(value: str, others: Mapping[str, str], kind: str) -> str:
    """A name as the planner spells it; software also by a longer name that holds it, `NVIDIA/Megatron-LM v0.9`."""
    if kind == "framework" and value not in SOFTWARE and value not in others:
        known = {**{name: name for name in SOFTWARE}, **others}
        parts = [part for part in known if len(part) > 3 and part in value]
        return known[max(parts, key=len)] if parts else value
    return others.get(value, value)


def spelled_out(given: dict[str, Any]) -> dict[str, Any]:
    """Short forms in full: `zero2+cpu_offload`, `lora-r128`, `qlora-all`, `selective:core_attn`, a rank alone."""
    found = dict(given)
    for name in ("lora_rank", "lora_targets", "train_embeddings"):
        if found.get(name):
            found.setdefault("method", "lora")
            if str(found["method"]).lower() == "full":
                raise UserError(
                    f"plan train: {name} belongs to lora or qlora, but method is full; leave one of them out"
                )
    method, _, variant = str(found.get("method", "full")).lower().partition("-")
    if variant in ("all", "qv"):
        found.setdefault("lora_targets", variant)
    elif variant == "emb":
        found.setdefault("train_embeddings", True)
    elif variant[:1] == "r" and variant[1:].isdigit():
        found.setdefault("lora_rank", variant[1:])
    elif variant not in ("", "dq"):
        raise UserError(f"plan train: method {given['method']!r} is unknown; it can be {', '.join(METHODS)}")
    strategy, _, offload = str(found.get("strategy", "")).lower().partition("+")
    if offload:
        kind = OFFLOADS.get(offload.rstrip("0123456789"))
        if kind is None:
            raise UserError(f"plan train: {offload!r} after the strategy is unknown; it can be {', '.join(OFFLOADS)}")
        found.setdefault("offload", kind)
    level = str(found.get("checkpointing", "")).lower().partition(":")[0]
    short = {"method": method, "strategy": strategy.replace("-", ""), "checkpointing": level}
    return found | {name: value for name, value in short.items() if name in found}


def interconnect(name: Any) -> tuple[dict[str, float], list[Assumption]]:
    """Rates that a link's name states, and what was assumed for a network without a rate.

    `nvlink4`, `pcie5`; `infiniband-400` (Gbit/s a GPU), `ethernet-25`.
    """
    kind, _, rate = str(name).lower().partition("-")
    if kind in LINKS and not rate:
        link = LINKS[kind]
        return ({} if link is None else {"link_gb_s": link}), []
    if kind in NETWORKS and not rate:
        usual = NETWORKS[kind]
        why = f"usual for {kind}, as {usual:g} Gbit/s; say another as {kind}-RATE"
        return {"network_gb_s": usual / 8}, [Assumption("network_gb_s", usual / 8, why)]
    try:
        if kind not in NETWORKS or not 0 < float(rate) < 1e6:
            raise ValueError
    except ValueError:
        known = ", ".join([*LINKS, *(f"{network}-{usual:g}" for network, usual in NETWORKS.items())])
        raise UserError(f"plan train: interconnect {name!r} is unknown; it can be {known} (Gbit/s a GPU)") from None
    return {"network_gb_s": float(rate) / 8}, []
