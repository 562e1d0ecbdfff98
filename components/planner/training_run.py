"""One training run as the planner's formulas see it."""

from __future__ import annotations

from dataclasses import dataclass

from components.planner.architecture import Architecture
from components.planner.gpus import Gpu

METHODS = ("full", "lora", "qlora")
CHECKPOINTING = ("none", "selective", "full")
OFFLOAD = ("none", "optimizer", "all")
# Frameworks whose software is known apart; anything else is predicted as eager PyTorch.
FUSED = {
    "megatron",
    "torchtitan",
    "llm-foundry",
    "fsdp",
    "unsloth",
}  # norms and activation functions run as fused kernels


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run with nothing left open.

    `zero_stage` 0 is one GPU or plain data parallelism, 3 full sharding (FSDP included). `precision` is bf16, fp16, fp8
    or fp4 (mixed: fp32 master weights), pure_bf16 or fp32. `dp` counts the replicas among which ZeRO shards; context
    parallel ranks are among them.
    """

    architecture: Architecture
    gpu: Gpu
    gpus: int
    seq: int
    micro_batch: int
    gpus_per_node: int = 8
    accumulation: int = 1
    zero_stage: int = 0
    offload: str = "none"
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    method: str = "full"
    lora_rank: int = 16
    lora_targets: str = "all"
    train_embeddings: bool = False
    checkpointing: str = "full"
    precision: str = "bf16"
    optimizer: str = "adamw"
    framework: str = "deepspeed"
    link_gb_s: float | None = None
    network_gb_s: float | None = None

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.gpus // (self.tp * self.pp)

    @property
    def tokens(self) -> float:
        """Tokens that one GPU holds in one micro-batch."""
        return self.seq * self.micro_batch / self.cp

    @property
    def tokens_per_step(self) -> float:
        """Tokens of one optimizer step over all GPUs."""
        return float(self.seq * self.micro_batch * self.accumulation * (self.dp // self.cp))

    @property
    def eager(self) -> bool:
        """Whether norms and activation functions run as separate kernels that keep their inputs."""
        return self.framework not in FUSED

    @property
    def adapter_params(self) -> float:
        """Trainable parameters of low-rank adapters, rank x (inputs + outputs) of every adapted matrix."""
        a = self.architecture
        if self.method == "full":
            return 0.0
        half_kv = a.kv_width / 2
        if self.lora_targets == "qv":
            sides = (a.hidden + a.q_width) + (a.hidden + half_kv)
        else:
            attention = 2 * (a.hidden + a.q_width) + 2 * (a.hidden + half_kv)
            sides = attention + (3 if a.gated else 2) * (a.hidden + a.active_ffn)
        return self.lora_rank * sides * a.layers
