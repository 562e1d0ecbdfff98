"""Whether a recipe fits the machine it is about to run on, told before memory is taken.

The needs are lower bounds, so that a machine which could do it is never refused: processes with their libraries,
model states of every training rank, and two model servers side by side with their KV caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from components.core.recipe import Recipe
from components.core.records import RuleResult
from components.planner.architecture import Architecture
from components.planner.kv_cache import kv_bytes_per_token

GIB = 2.0**30
RANK_PROCESS_GIB = 0.35  # Python with torch and DeepSpeed, before a model
SERVER_PROCESS_GIB = {"vllm": 0.5, "reference": 0.3}
SERVER_SEEN_GIB = {"vllm": 0.6, "reference": 0.42}  # resident memory of a server before a model, as measured
SERVERS = 2  # candidate and champion
STATE_BYTES = 4 + 4 + 4  # parameter, gradient and running average of the weights, all in 32 bit
FROZEN_BYTES = 4  # a parameter that is not trained, as most are beside an adapter
OPTIMIZER_BYTES = 8  # two moments, shared among ranks from ZeRO-1 on
LAYER_BYTES = 4 * 10  # kept for the backward pass a token, layer and unit of width; attention's own left out
LOGIT_BYTES = 4 * 2  # a logit and its gradient
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}


@dataclass(frozen=True)
class Need:
    """What one phase takes at once on one machine, and what would make it smaller."""

    phase: str
    gib: float
    text: str
    mend: str


def shape_of(recipe: Recipe) -> dict[str, Any]:
    """The numbers of the recipe's model, as `Architecture.from_numbers` takes them."""
    model = recipe.model
    return {
        "layers": model.layers,
        "hidden": model.hidden_size,
        "heads": model.heads,
        "kv_heads": model.heads,
        "head_dim": model.hidden_size // model.heads,
        "ffn": model.intermediate_size,
        "vocab": model.vocabulary,
        "max_context": model.max_positions,
    }


def architecture_of(recipe: Recipe) -> Architecture:
    """The recipe's model."""
    return Architecture.from_numbers(recipe.model.name, gated=True, tied_embeddings=False, **shape_of(recipe))


def training_of(recipe: Recipe) -> dict[str, Any]:
    """The recipe's model and batch as a training plan on GPUs asks for them."""
    shape = {name: value for name, value in shape_of(recipe).items() if name != "max_context"}
    return {
        **shape,
        "gated": True,
        "tied_embeddings": False,
        "seq": tokens_per_row(recipe),
        "global_batch": recipe.training.batch_size,
    }


def serving_of(recipe: Recipe) -> dict[str, Any]:
    """The recipe's model and its weights' format as a serving plan asks for them."""
    wide = DTYPE_BYTES[recipe.serving.dtype] == 4
    return {**shape_of(recipe), "gated": True, "tied_embeddings": False, "weights": "fp32" if wide else "bf16"}


def tokens_per_row(recipe: Recipe) -> int:
    """Tokens of the longest prompt: text, features, the frame around them and the answer."""
    return min(recipe.model.text_tokens + len(recipe.features.model_inputs) + 3, recipe.model.max_positions)


def local_needs(recipe: Recipe, engine: str) -> tuple[Need, ...]:
    """What training and serving take on one machine without GPUs; `engine` is vllm or reference."""
    return _training(recipe), serving_need(recipe, engine)


def serving_need(recipe: Recipe, engine: str) -> Need:
    """Two servers beside each other, each with its whole cache."""
    weights, cache = _weights_gib(recipe), _cache_gib(recipe, engine)
    each = SERVER_PROCESS_GIB.get(engine, min(SERVER_PROCESS_GIB.values())) + weights + cache
    text = f"{SERVERS} {engine} servers of {each:.1f} GiB: weights {weights:.1f}, KV cache {cache:.1f}"
    mend = "lower serving.kv_cache_gib" if cache > weights else "take a smaller model or serving.dtype bfloat16"
    return Need("serving", SERVERS * each, text, mend)


def server_gib(recipe: Recipe, engine: str) -> float:
    """What one server will be seen to take: its process and weights, and of its cache the pages that get used."""
    used = _sequence_gib(recipe) * recipe.serving.max_sequences
    return SERVER_SEEN_GIB.get(engine, min(SERVER_SEEN_GIB.values())) + _weights_gib(recipe) + used


def judge_memory(needs: Sequence[Need], memory_gib: float) -> tuple[RuleResult, ...]:
    """Each phase against the machine's memory."""
    return tuple(
        RuleResult(
            rule=f"memory_{need.phase}",
            outcome="pass" if need.gib <= memory_gib else "fail",
            observed=round(need.gib, 3),
            limit=round(memory_gib, 3),
            subject=need.phase,
            reason="" if need.gib <= memory_gib else _refusal(need, memory_gib),
        )
        for need in needs
    )


def _refusal(need: Need, memory_gib: float) -> str:
    return (
        f"{need.phase} needs at least {need.gib:.1f} GiB of memory, this machine has {memory_gib:.1f} ({need.text}); "
        f"{need.mend}, or take a machine with {math.ceil(need.gib * 1.25)} GiB"
    )


def _training(recipe: Recipe) -> Need:
    model, training = architecture_of(recipe), recipe.training
    moments = OPTIMIZER_BYTES / training.ranks if training.zero_stage else OPTIMIZER_BYTES
    bytes_each = FROZEN_BYTES if training.tuning == "lora" else STATE_BYTES + moments
    states = model.params * bytes_each / GIB
    rows = training.batch_size / (training.ranks * training.accumulation)
    tokens = rows * tokens_per_row(recipe)
    width = model.hidden + model.ffn / 2
    activations = tokens * (LAYER_BYTES * model.layers * width + LOGIT_BYTES * model.vocab) / GIB
    each = RANK_PROCESS_GIB + states + activations
    text = f"{training.ranks} ranks of {each:.1f} GiB: model states {states:.1f}, batch {activations:.1f}"
    if activations > states:
        mend = f"raise training.accumulation, or lower training.batch_size from {training.batch_size}"
    else:
        mend = "take a smaller model" if training.ranks == 1 else "take a smaller model or fewer training.ranks"
    return Need("training", training.ranks * each, text, mend)


def _weights_gib(recipe: Recipe) -> float:
    return architecture_of(recipe).params * DTYPE_BYTES[recipe.serving.dtype] / GIB


def _cache_gib(recipe: Recipe, engine: str) -> float:
    """vLLM reserves whole GiB; the reference server keeps what its sequences hold."""
    return float(math.ceil(recipe.serving.kv_cache_gib)) if engine == "vllm" else _sequence_gib(recipe)


def _sequence_gib(recipe: Recipe) -> float:
    return kv_bytes_per_token(architecture_of(recipe), dtype="fp32") * tokens_per_row(recipe) / GIB
