"""What is asked of a training plan, from flags, a recipe or a program; what was left open and what that means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.planner.architecture import Architecture, Assumption
from components.planner.architecture_config import read_config
from components.planner.fleet import MOST_GPUS
from components.planner.gpus import Gpu, gpu_for
from components.planner.memory import MOMENTS
from components.planner.models import model_named
from components.planner.training_run import CHECKPOINTING, METHODS, OFFLOAD
from components.planner.training_spelling import (
    SAME_FRAMEWORK,
    SAME_OPTIMIZER,
    SAME_PRECISION,
    SOFTWARE,
    interconnect,
    spelled_out,
    usual_name,
)

PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "pure_bf16", "fp32")
HOST_TIMES = 2.0  # a node's host memory by its GPUs' where it is not stated: clouds have 1.8 to 4 times as much
COUNTERS = ("device", "reserved", "allocated")
STRATEGIES = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "fsdp_full": 3, "fsdp_grad_op": 2}
SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "tied_embeddings", "experts",
    "experts_per_token", "expert_ffn", "shared_experts", "dense_layers", "q_latent", "kv_latent", "rope_dim",
    "value_dim", "sliding_window", "max_context",
)  # fmt: skip
OTHER = (
    "params", "model", "config", "gpu", "gpu_memory_gib", "gpus", "nodes", "gpus_per_node", "nodes_per_rack", "seq",
    "seq_len",
    "global_batch", "micro_batch", "accumulation", "method", "lora_rank", "lora_targets", "train_embeddings",
    "precision", "optimizer", "strategy", "tp", "pp", "dp", "cp", "ep", "virtual_stages", "checkpointing", "offload",
    "framework", "memory_counter", "tokens", "price_per_gpu_hour", "interconnect", "link_gb_s",
    "network_gb_s", "host_memory_gib",
)  # fmt: skip
WHOLE = (
    "gpus", "gpus_per_node", "nodes_per_rack", "seq", "global_batch", "micro_batch", "accumulation", "lora_rank", "tp",
    "pp", "dp", "cp", "ep", "virtual_stages",
)  # fmt: skip
REAL = ("tokens", "price_per_gpu_hour", "link_gb_s", "network_gb_s", "host_memory_gib")
TEXT = (
    "method", "lora_targets", "precision", "optimizer", "strategy", "checkpointing", "offload", "framework",
    "memory_counter",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """A question to the planner; what is None is the planner's to choose."""

    architecture: Architecture
    gpu: Gpu
    gpus: int = 1
    gpus_per_node: int = 8
    nodes_per_rack: int | None = None
    seq: int = 2048
    global_batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    method: str = "full"
    lora_rank: int = 8
    lora_targets: str = "qv"
    train_embeddings: bool = False
    precision: str = "bf16"
    optimizer: str = "adamw"
    strategy: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    checkpointing: str | None = None
    offload: str | None = None
    framework: str | None = None
    memory_counter: str = "device"
    tokens: float | None = None
    price_per_gpu_hour: float | None = None
    link_gb_s: float | None = None
    network_gb_s: float | None = None
    host_memory_gib: float | None = None
    assumed: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def host_gib(self) -> float:
        """Memory of a node's host: as stated, else a multiple of its GPUs' memory."""
        node = self.gpu.memory_gib * min(self.gpus, self.gpus_per_node)
        return self.host_memory_gib if self.host_memory_gib is not None else HOST_TIMES * node


def request_from(values: Mapping[str, Any]) -> TrainingRequest:
    """A request from names and values, as flags give them; None counts as not given.

    `model` is a public model's name, `config` a path to a Hugging Face config.json or its parsed content; else
    `params` and any numbers of the shape.

    Raises:
        UserError: an unknown name, a missing, impossible or contradicting number, an unknown GPU without memory.
    """
    given = {key: value for key, value in values.items() if value is not None}
    if unknown := sorted(set(given) - {*SHAPE, *OTHER}):
        raise UserError(f"plan train: {unknown[0]!r} is no setting of a training plan")
    if "seq_len" in given:
        given.setdefault("seq", given.pop("seq_len"))
    assumed: list[Assumption] = []
    if "interconnect" in given:
        rates, assumed = interconnect(given.pop("interconnect"))
        given = {**rates, **given}
    given = spelled_out(given)
    architecture = architecture_from(given)
    gpu = gpu_for(given.get("gpu"), _number(given, "gpu_memory_gib"))
    if gpu.note:
        assumed.append(Assumption("gpu", gpu.name, gpu.note))
    settings: dict[str, Any] = {name: _whole(given, name) for name in WHOLE}
    settings |= {name: _number(given, name) for name in REAL}
    settings |= {name: str(given[name]).lower() for name in TEXT if name in given}
    _machines(settings, _whole(given, "nodes"), assumed)
    _assume(assumed, settings, "seq", 2048, "a usual training length")
    if settings.get("method", "full") != "full":
        _assume(assumed, settings, "lora_rank", 8, "the default of PEFT and litgpt")
        _assume(
            assumed, settings, "lora_targets", "qv", "adapters on queries and values, the default of PEFT and litgpt"
        )
    same = {"precision": SAME_PRECISION, "optimizer": SAME_OPTIMIZER, "framework": SAME_FRAMEWORK}
    for name, others in same.items():
        if name in settings:
            settings[name] = usual_name(settings[name], others, name)
        elif name != "framework":
            _assume(assumed, settings, name, TrainingRequest.__dataclass_fields__[name].default, "usual")
    if settings.get("framework") not in (None, *SOFTWARE):
        assumed.append(Assumption("framework", "plain PyTorch", f"{settings['framework']} is not known here"))
    return TrainingRequest(
        architecture=architecture,
        gpu=gpu,
        train_embeddings=bool(given.get("train_embeddings", False)),
        assumed=(*architecture.assumed, *assumed),
        **{key: value for key, value in settings.items() if value is not None},
    )


def _machines(settings: dict[str, Any], nodes: int | None, assumed: list[Assumption]) -> None:
    """GPUs and GPUs a node, of which one and the number of nodes give the other."""
    gpus, each = settings["gpus"], settings["gpus_per_node"]
    if nodes and gpus and each and nodes * each != gpus:
        raise UserError(f"plan train: {nodes} nodes of {each} GPUs are {nodes * each}, but gpus is {gpus}")
    if nodes and gpus and gpus % nodes:
        raise UserError(f"plan train: {gpus} GPUs cannot be spread evenly over {nodes} nodes")
    if nodes and gpus:
        settings["gpus_per_node"] = gpus // nodes
        return
    if each is None and ((gpus or 1) > 8 or nodes):
        _assume(assumed, settings, "gpus_per_node", 8, "usual for training machines")
    if nodes and not gpus:
        settings["gpus"] = nodes * settings["gpus_per_node"]
    _assume(assumed, settings, "gpus", 1, "one GPU unless more are given")
    if settings["gpus_per_node"] is None:
        settings["gpus_per_node"] = min(8, settings["gpus"])


def architecture_from(given: Mapping[str, Any]) -> Architecture:
    """The architecture that `model`, `config` or plain numbers name."""
    shape = {name: given[name] for name in SHAPE if given.get(name) is not None}
    sources = [name for name in ("model", "config") if given.get(name) is not None]
    if len(sources) == 2 or (sources and shape):
        other = sources[1] if len(sources) == 2 else next(iter(shape))
        raise UserError(f"plan: give {sources[0]} or {other}, not both")
    params = given.get("params")
    if given.get("model") is not None:
        if params is not None:
            raise UserError("plan: give model or params, not both")
        return model_named(str(given["model"]))
    if given.get("config") is not None:
        return _from_config(given["config"], None if params is None else _number(given, "params"))
    return Architecture.from_numbers("plan", params=params, **shape)


def _from_config(config: Any, params: float | None) -> Architecture:
    if isinstance(config, Mapping):
        return Architecture.from_config(config, params=params)
    path = Path(str(config))
    return Architecture.from_config(read_config(path), name=str(path), params=params)


def _check(r: TrainingRequest) -> None:
    """Refuse what no plan can hold together."""
    for name, allowed in (
        ("method", METHODS),
        ("precision", PRECISIONS),
        ("optimizer", tuple(MOMENTS)),
        ("strategy", tuple(STRATEGIES)),
        ("checkpointing", CHECKPOINTING),
        ("offload", OFFLOAD),
        ("lora_targets", ("all", "qv")),
        ("memory_counter", COUNTERS),
    ):
        value = getattr(r, name)
        if value is not None and value not in allowed:
            raise UserError(f"plan train: {name} is {value!r}; it can be {', '.join(allowed)}")
    for name in WHOLE:
        value = getattr(r, name)
        if value is not None and value < 1:
            raise UserError(f"plan train: {name} is {value}; a whole number above 0 is needed")
    if r.gpus > MOST_GPUS:
        raise UserError(f"plan train: {r.gpus:g} GPUs are more than the {MOST_GPUS:,} that a plan is made for")
    nodes = -(-r.gpus // r.gpus_per_node)
    if nodes > 1 and nodes * r.gpus_per_node != r.gpus:
        raise UserError(f"plan train: {r.gpus} GPUs are not whole nodes of {r.gpus_per_node}; change one of them")
    if r.method == "full" and r.train_embeddings:
        raise UserError("plan train: full training trains the embeddings too; leave train_embeddings out")
    _check_product(r)
    a = r.architecture
    if r.tp and a.heads % r.tp:
        raise UserError(f"plan train: tp {r.tp} does not divide {a.heads} attention heads")
    if r.pp and r.pp > a.layers:
        raise UserError(f"plan train: pp {r.pp} is more than {a.layers} layers")
    if r.ep > 1 and not a.is_moe:
        raise UserError(f"plan train: ep {r.ep} spreads experts, but the model has none")
    if r.ep > 1 and a.experts % r.ep and all(item.field != "experts" for item in a.assumed):
        raise UserError(f"plan train: ep {r.ep} does not divide {a.experts} experts")
    if r.strategy == "single" and r.gpus > 1:
        raise UserError(f"plan train: strategy single uses one GPU, but there are {r.gpus}")


def _check_product(r: TrainingRequest) -> None:
    named = {name: getattr(r, name) for name in ("tp", "pp", "dp")}
    product = math.prod(value for value in named.values() if value)
    words = " x ".join(f"{name.upper()} {value}" for name, value in named.items() if value)
    if all(named.values()) and product != r.gpus:
        raise UserError(f"plan train: {words} = {product}, but there are {r.gpus} GPUs")
    if r.gpus % product:
        raise UserError(f"plan train: {words} does not divide {r.gpus} GPUs")
    cut = (r.tp or 1) * (r.pp or 1)
    if r.gpus // cut % r.cp:
        raise UserError(f"plan train: context parallel {r.cp} does not divide {r.gpus // cut} data-parallel ranks")
    micro, total = r.micro_batch or 1, r.global_batch
    if total is not None and total < micro:
        raise UserError(f"plan train: a global batch of {total} is smaller than a micro-batch of {micro}")
    if total is not None and r.dp and total % r.dp:
        raise UserError(f"plan train: a global batch of {total} cannot be split among {r.dp} data-parallel ranks")


def _assume(assumed: list[Assumption], values: dict[str, Any], name: str, value: Any, reason: str) -> None:
    if values.get(name) is None:
        values[name] = value
        assumed.append(Assumption(name, value, reason))


def _number(given: Mapping[str, Any], name: str) -> float | None:
    if given.get(name) is None:
        return None
    try:
        value = float(given[name])
    except (TypeError, ValueError):
        raise UserError(f"plan train: {name} is {given[name]!r}; a number is needed") from None
    if not math.isfinite(value) or value <= 0:
        raise UserError(f"plan train: {name} is {given[name]!r}; a number above 0 is needed")
    least, most = (1, 1e9) if name in WHOLE else (1e-3, 1e18)
    if not least <= value <= most:
        raise UserError(f"plan train: {name} is {value:g}; a number from {least:g} to {most:g} is needed")
    return value


def _whole(given: Mapping[str, Any], name: str) -> int | None:
    value = _number(given, name)
    if value is not None and value != int(value):
        raise UserError(f"plan train: {name} is {given[name]!r}; a whole number is needed")
    return None if value is None else int(value)
