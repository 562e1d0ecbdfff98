"""Peak memory of one GPU in training, by part, as a sum of first principles and a few fitted constants.

States follow ZeRO (Rajbhandari et al. 2020); activations follow Korthikanti et al. 2022 with flash attention, adapted
to grouped keys, gated blocks and frozen weights (a frozen matrix keeps no input for its own gradient).
"""

from __future__ import annotations

from dataclasses import dataclass

from components.planner.training_constants import MemoryConstants, training_constants
from components.planner.training_run import TrainingRun

GIB = float(2**30)
PARTS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "buffers", "overhead")
MOMENTS = {  # bytes a trained parameter that the optimizer keeps beside a master copy
    "adamw": 8.0,
    "adam": 8.0,
    "decoupled_adamw": 8.0,
    "adamw_8bit": 2.0,
    "paged_adamw_8bit": 2.0,
    "lion": 4.0,
    "adafactor": 0.1,
    "sgd": 0.0,
    "momentum": 4.0,
}
FULL_SHARD = {"torchtitan", "llm-foundry", "fsdp"}  # fp32 shards, gathered in 16 bit
UPCAST = {"huggingface"}  # prepare_model_for_kbit_training keeps what is not quantised in fp32
LOGIT_BYTES = {  # beside plain PyTorch's: fused or chunked losses keep less, copies more
    "litgpt": 1.25,
    "torchtitan": 1.1,
    "torchtune": 0.35,
    "megatron": 0.55,
    "llm-foundry": 0.55,
    "fsdp": 0.55,
    "unsloth": 0.05,
}
NF4 = 0.55  # bytes a parameter, block scales included


@dataclass(frozen=True)
class Bytes:
    """Bytes a parameter: weights, gradients, optimizer."""

    weights: float
    gradients: float
    optimizer: float


@dataclass(frozen=True)
class MemoryPrediction:
    """Parts in GiB of the fullest GPU.

    `allocated` is what tensors take, `reserved` the allocator's pool, `peak` what the device shows, `needed` the least
    with which the run goes on; `host_gib` what offload puts into the memory of one node's host.
    """

    parts: dict[str, float]
    allocated: float
    reserved: float
    peak: float
    needed: float
    host_gib: float

    def fits(self, usable_gib: float) -> bool:
        """Whether a GPU with this much usable memory can run it."""
        return self.needed <= usable_gib

    def of_kind(self, kind: str) -> float:
        """The value that a counter of this kind would show: allocated, reserved or device_total."""
        return {"allocated": self.allocated, "reserved": self.reserved}.get(kind, self.peak)


def predict_memory(run: TrainingRun, constants: MemoryConstants | None = None) -> MemoryPrediction:
    """Peak memory of the fullest GPU of a run, in GiB."""
    c = constants or training_constants().memory
    states, host = _states(run)
    parts = {
        **states,
        "gathered": _gathered(run),
        "activations": _activations(run, c),
        "logits": _logits(run, c),
        "buffers": _buffers(run),
    }
    rounded = {name: value / GIB for name, value in parts.items()}
    tensors = sum(rounded.values())
    needed = tensors + c.needed_gib
    ceiling = max(run.gpu.usable_gib, needed)  # no counter shows more than there is
    peak = min(tensors + c.device_gib, ceiling)
    return MemoryPrediction(
        parts=rounded | {"overhead": peak - tensors},
        allocated=tensors + c.allocated_gib,
        reserved=min(tensors + c.reserved_gib, ceiling),
        peak=peak,
        needed=needed,
        host_gib=host / GIB,
    )


def bytes_per_parameter(run: TrainingRun) -> Bytes:
    """What a fully trained parameter costs before sharding, by framework and precision.

    Mixed precision: Megatron keeps 16-bit weights and gradients and fp32 master and moments; FSDP shards fp32 weights
    and gradients; DeepSpeed accumulates 16-bit gradients in fp32, from ZeRO-2 beside the 16-bit ones.
    """
    moments = MOMENTS[run.optimizer]
    if run.precision == "pure_bf16":
        return Bytes(2.0, 2.0, moments / 2 if moments >= 4 else moments)
    if run.precision == "fp32" and run.framework == "deepspeed" and run.zero_stage:
        return Bytes(4.0, 4.0, 4.0 + moments)  # each rank's share is copied flat
    if run.precision == "fp32" or run.framework in FULL_SHARD:
        return Bytes(4.0, 4.0, moments)
    if run.framework == "megatron":
        return Bytes(2.0, 2.0, 4.0 + moments)
    if run.framework == "deepspeed":
        return Bytes(2.0, 6.0 if run.zero_stage >= 2 else 4.0, 4.0 + moments)
    return Bytes(4.0, 4.0, moments)


def _states(run: TrainingRun) -> tuple[dict[str, float], float]:
    """Bytes of weights, gradients and optimizer on the fullest GPU, and bytes moved to the host by offload."""
    share = _Shares(run)
    if run.method == "full":
        each = bytes_per_parameter(run)
        states = {
            "weights": share.of(each.weights, 3),
            "gradients": share.of(each.gradients, 2),
            "optimizer": share.of(each.optimizer, 1),
        }
    else:
        a = run.architecture
        trained = run.adapter_params + (a.embedding_params if run.train_embeddings else 0.0)
        trained /= run.tp * run.pp
        base = share.of(2.0, 3)
        if run.method == "qlora":
            outer = a.embedding_params / a.params
            wide = 4.0 if run.framework in UPCAST else 2.0
            base = share.of(NF4 * (1 - outer) + wide * outer, 3)
        states = {
            "weights": base + 2.0 * trained / share.divisor(3),
            "gradients": 2.0 * trained / share.divisor(2),
            "optimizer": MOMENTS[run.optimizer] * trained / share.divisor(1),
        }
    host = 0.0
    if run.offload in ("optimizer", "all"):
        host += states["optimizer"] + states["gradients"]
        states["optimizer"] = 0.0
        if run.method == "full" and run.framework == "deepspeed":
            states["gradients"] *= 2.0 / bytes_per_parameter(run).gradients  # accumulated on the host
    if run.offload == "all" and run.zero_stage == 3:
        host += states["weights"] + states["gradients"]
        states["weights"] = states["gradients"] = 0.0
    return states, host * min(run.gpus, run.gpus_per_node)


class _Shares:
    """How many bytes of all parameters one GPU of the fullest pipeline stage holds."""

    def __init__(self, run: TrainingRun) -> None:
        a = run.architecture
        self._run = run
        outer = a.vocab * a.hidden * (1 if a.tied_embeddings or run.pp > 1 else 2)
        inner = max(a.params - a.embedding_params - a.expert_params, 0.0)
        self._dense = inner / (run.tp * run.pp) + outer / run.tp
        self._experts = a.expert_params / (run.ep * run.pp)

    def divisor(self, stage: int) -> int:
        """Among how many ranks ZeRO spreads what it shards from this stage on."""
        return self._run.dp if self._run.zero_stage >= stage else 1

    def of(self, each: float, stage: int) -> float:
        """Bytes of a state that ZeRO shards from this stage on; experts have fewer replicas to shard among."""
        run = self._run
        if run.zero_stage < stage:
            return each * (self._dense + self._experts)
        replicas = max(1, run.dp * run.tp // run.ep)
        return each * (self._dense / run.dp + self._experts / replicas)


def _gathered(run: TrainingRun) -> float:
    """Bytes of full 16-bit weights that are present at once although they are sharded."""
    a = run.architecture
    if run.zero_stage < 3 or (run.dp == 1 and run.framework != "deepspeed"):
        return 0.0
    each = 2.0
    block = a.layer_params / run.tp
    outer = a.embedding_params / run.tp
    if run.framework == "litgpt":
        whole = each * a.params / run.tp
        return whole * (2.0 if run.method == "full" else 1.0)
    if run.method == "qlora":
        return NF4 * 2 * block + each * outer
    live = 1e9 if run.framework == "deepspeed" else 0.0
    return each * min(a.params / run.tp, 2 * block + outer + live)


def _activations(run: TrainingRun, c: MemoryConstants) -> float:
    a = run.architecture
    layers = a.layers / run.pp
    in_flight = min(run.pp, run.accumulation)
    wide = 2.0 if run.precision == "fp32" else 1.0
    layer = wide * layer_bytes(run) / run.tp
    if run.checkpointing == "full":
        kept = 2.0 * wide * a.hidden * layers * in_flight / run.tp  # sequence parallel beside tensor parallel
        working = c.working_fused if run.framework == "unsloth" else c.working_layers
        return run.tokens * (kept + working * layer)
    kept = c.kept * layer * layers * in_flight
    return run.tokens * kept * (c.selective if run.checkpointing == "selective" else 1.0)


def layer_bytes(run: TrainingRun) -> float:
    """Bytes a token that one layer keeps for its backward pass, before tensor parallelism."""
    a = run.architecture
    norms = 18.0 if run.eager and a.gated else 8.0
    attention = 2.0 * (2 * a.q_width + a.kv_width)
    frozen = run.method != "full"
    width = (6.0 if frozen or not run.eager else 8.0) if a.gated else (2.0 if frozen else 4.0)
    if run.method == "qlora" or (frozen and run.lora_targets == "all"):
        width += 2.0
        norms += 4.0 if run.method == "qlora" else 0.0
    return norms * a.hidden + attention + width * a.active_ffn


def _logits(run: TrainingRun, c: MemoryConstants) -> float:
    """Bytes of logits, their fp32 copy and gradient; with a pipeline they are on its last stage, not the fullest."""
    if run.pp > 1:
        return 0.0
    each = LOGIT_BYTES.get(run.framework, 1.0) * c.logit_bytes
    return each * run.tokens * run.architecture.vocab / run.tp


def _buffers(run: TrainingRun) -> float:
    """Communication buckets of the framework."""
    if run.gpus == 1 or run.framework == "megatron":
        return 0.0
    if run.framework == "deepspeed" and run.zero_stage in (1, 2):
        trained = run.architecture.params if run.method == "full" else run.adapter_params
        return 2.0 * 2.0 * min(5e8, trained)
    return 0.0
