"""What is asked of a serving plan, from numbers, a config.json or a public model's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.architecture_config import read_config, sliding_layers, stored_weights
from components.planner.fleet import Fleet, fleet_of
from components.planner.gpus import Gpu, gpu_for
from components.planner.kv_cache import kv_element_bytes
from components.planner.models import model_named
from components.planner.quantisation import WeightFormat, weight_format
from components.planner.serving_memory import usable_gib
from components.planner.serving_runtime import UTILISATION

SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "tied_embeddings",
    "experts", "experts_per_token", "expert_ffn",
    "shared_experts", "dense_layers", "q_latent", "kv_latent", "rope_dim", "value_dim", "sliding_window", "max_context",
)  # fmt: skip

USUAL_PROMPT, USUAL_OUTPUT = 1024, 256  # tokens of a request where nothing is said


@dataclass(frozen=True, kw_only=True)
class ServingRequest:
    """A model, a fleet and what is asked; None leaves the choice to the planner.

    Attributes:
        memory_gib: of one GPU, as a process sees it.
        max_model_len: tokens of the longest request, prompt and answer.
        concurrency: requests of that length that one replica holds in its cache at once.
        prompt_tokens, output_tokens: the usual request, for times and scaling.
        wait_ms: queueing time that 95 % of requests may not exceed.
        sliding_layers: layers whose attention looks back only `sliding_window` tokens.
    """

    model: Architecture
    gpu: Gpu
    fleet: Fleet
    memory_gib: float
    weights: WeightFormat
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    concurrency: int = 1
    utilisation: float = UTILISATION
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    eager: bool = False
    tp: int | None = None
    pp: int | None = None
    replicas: int | None = None
    prompt_tokens: int = USUAL_PROMPT
    output_tokens: int = USUAL_OUTPUT
    requests_per_s: float | None = None
    peak_requests_per_s: float | None = None
    wait_ms: float = 100.0
    itl_ms: float | None = None
    sliding_layers: int = 0
    served_name: str = "MODEL"
    vllm_version: str = ""
    assumed: tuple[str, ...] = ()


def request_from(values: Mapping[str, Any]) -> ServingRequest:
    """A request from the command's flags (dashes as underscores); None or absent counts as not given.

    The model comes from `config` (a config.json), `model` (a public name), or numbers: `params`, or `weights_gb` (the
    size of its files), with any of the shape's fields.

    Raises:
        UserError: a number that is missing, impossible or contradicts another; the line says which.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if unknown := sorted(set(given) - {*SHAPE, *OPTIONAL, *OTHER}):
        raise UserError(f"plan serve: {unknown[0]!r} is no setting of a serving plan")
    config = read_config(Path(given["config"])) if "config" in given else None
    fmt, assumed = _weights(given, config)
    model, sliding = _model(given, fmt, config)
    stated = given.get("gpu_memory_gib")
    gpu = gpu_for(given.get("gpu"), stated)
    fleet = fleet_of(given.get("gpus"), given.get("nodes"), given.get("gpus_per_node"))
    kv_dtype = str(given.get("kv_cache_dtype", "auto")).lower()
    kv_element_bytes(kv_dtype)
    usual, shorter = _usual_request(given, model)
    request = ServingRequest(
        model=model,
        gpu=gpu,
        fleet=fleet,
        memory_gib=usable_gib(gpu, stated),
        weights=fmt,
        kv_dtype="fp32" if kv_dtype == "auto" and fmt.name == "fp32" else kv_dtype,
        sliding_layers=sliding,
        assumed=(*assumed, *shorter, *([gpu.note] if gpu.note else [])),
        **usual | {name: given[name] for name in OPTIONAL if name in given},
    )
    _check(request)
    return request


def _usual_request(given: Mapping[str, Any], model: Architecture) -> tuple[dict[str, int], list[str]]:
    """Tokens of the usual request where nothing is said and the model holds fewer than usual."""
    longest = min(model.max_context or math.inf, given.get("max_model_len") or math.inf)
    if {"prompt_tokens", "output_tokens"} & set(given) or longest >= USUAL_PROMPT + USUAL_OUTPUT:
        return {}, []
    output = max(1, int(longest) // 5)
    prompt = max(1, int(longest) - output)
    why = f"prompt_tokens not given: {prompt}, and {output} out, assumed (a request can have {longest:,.0f})"
    return {"prompt_tokens": prompt, "output_tokens": output}, [why]


def _weights(given: Mapping[str, Any], config: Mapping[str, Any] | None) -> tuple[WeightFormat, tuple[str, ...]]:
    """The format of the weights and, where it was not given, why that one."""
    if "weights" in given:
        return weight_format(str(given["weights"])), ()
    stored = stored_weights(config) if config is not None else None
    name, why = (stored, "as the configuration states") if stored else ("bf16", "what models are published in")
    return weight_format(name), (f"weights not given: {name} assumed ({why})",)


OPTIONAL = (
    "max_model_len", "concurrency", "utilisation", "max_num_seqs", "max_num_batched_tokens", "eager", "tp", "pp",
    "replicas", "prompt_tokens", "output_tokens", "requests_per_s", "peak_requests_per_s", "wait_ms", "itl_ms",
    "served_name", "vllm_version",
)  # fmt: skip
OTHER = (
    "params", "weights_gb", "model", "config", "weights", "kv_cache_dtype", "gpu", "gpu_memory_gib", "gpus", "nodes",
    "gpus_per_node",
)  # fmt: skip
COUNTS = ("max_model_len", "concurrency", "max_num_seqs", "max_num_batched_tokens", "tp", "pp", "replicas",
          "prompt_tokens", "output_tokens")  # fmt: skip
ABOVE_ZERO = ("requests_per_s", "peak_requests_per_s", "wait_ms", "itl_ms")


def _model(given: Mapping[str, Any], fmt: WeightFormat, config: Mapping[str, Any] | None) -> tuple[Architecture, int]:
    """The architecture and how many of its layers slide."""
    params = given.get("params")
    if "weights_gb" in given:
        if params is not None:
            raise UserError("give either the number of parameters or the size of the weights, not both")
        if not 0 < given["weights_gb"] < 1e6:
            raise UserError(f"weights are {given['weights_gb']:g} GB; a number above 0 and below 1e6 is needed")
        params = given["weights_gb"] * 1e9 / fmt.bytes_per_param
    shape = {name: given[name] for name in SHAPE if name in given}
    sources = [name for name in ("config", "model") if name in given]
    if len(sources) == 2 or (sources and shape):
        other = sources[1] if len(sources) == 2 else next(iter(shape))
        raise UserError(f"plan serve: give {sources[0]} or {other}, not both: the {sources[0]} has its own shape")
    if config is not None:
        return Architecture.from_config(config, str(given["config"]), params), sliding_layers(config)
    if "model" in given:
        named = model_named(str(given["model"]))
        return (_resized(named, params) if params is not None else named), 0
    if params is None and not {"layers", "hidden"} <= set(shape):
        raise UserError("say which model: --params 13e9, --weights-gb 26, --model llama-3-8b or --config config.json")
    return Architecture.from_numbers("model", params=params, **shape), 0


def _resized(named: Architecture, params: float) -> Architecture:
    """A public model with a stated number of parameters (an adapter or a vision tower adds some)."""
    if not 0.75 < params / named.params < 1.35:
        raise UserError(f"{named.name} has {named.params:.4g} parameters, but {params:.4g} are stated; leave one out")
    return named.with_params(params)


def _check(request: ServingRequest) -> None:
    for name in COUNTS:
        value = getattr(request, name)
        if value is not None and (value < 1 or value != int(value)):
            raise UserError(f"{name} is {value}; a whole number of at least 1 is needed")
    for name in ABOVE_ZERO:
        value = getattr(request, name)
        if value is not None and not (0 < value < math.inf):
            raise UserError(f"{name} is {value:g}; a number above 0 is needed")
    if not 0 < request.utilisation <= 1:
        raise UserError(f"gpu_memory_utilization is {request.utilisation:g}; it is a share above 0 and at most 1")
    _check_together(request)
    model, fleet = request.model, request.fleet
    if request.tp and model.heads % request.tp:
        raise UserError(f"tp {request.tp} does not divide {model.heads} heads; choose one that does")
    if request.pp and request.pp > model.layers:
        raise UserError(f"pp {request.pp} is more than the {model.layers} layers of the model")
    asked = (request.tp or 1) * (request.pp or 1) * (request.replicas or 1)
    if asked > fleet.gpus:
        raise UserError(f"tp x pp x replicas is {asked}, there are {fleet.gpus} GPUs")
    if model.max_context and request.max_model_len and request.max_model_len > model.max_context:
        raise UserError(f"max_model_len {request.max_model_len} is beyond the {model.max_context} of the model")


def _check_together(r: ServingRequest) -> None:
    """Numbers that mean nothing without another, or contradict it."""
    if r.requests_per_s is None:
        for name in ("peak_requests_per_s", "itl_ms"):
            if getattr(r, name) is not None:
                raise UserError(f"plan serve: {name} says nothing without requests_per_s; give the average rate too")
    elif r.peak_requests_per_s is not None and r.peak_requests_per_s < r.requests_per_s:
        raise UserError(
            f"plan serve: the peak, {r.peak_requests_per_s:g} requests/s, is below the average of {r.requests_per_s:g}"
        )
    usual = r.prompt_tokens + r.output_tokens
    longest = r.max_model_len or r.model.max_context
    if longest and usual > max(longest, 2):
        raise UserError(f"plan serve: a usual request of {usual} tokens is longer than the longest of {longest}")
    if r.max_num_seqs and r.max_num_batched_tokens and r.max_num_seqs > r.max_num_batched_tokens:
        raise UserError(
            f"plan serve: max_num_batched_tokens {r.max_num_batched_tokens} is below max_num_seqs {r.max_num_seqs};"
            " vLLM refuses that"
        )
