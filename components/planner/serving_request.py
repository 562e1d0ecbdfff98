"""What is asked of a serving plan, from numbers, a config.json or a public model's name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.planner.architecture import Architecture, Assumption
from components.planner.fleet import Fleet, fleet_of
from components.planner.gpus import Gpu, gpu_for
from components.planner.kv_cache import kv_element_bytes
from components.planner.models import model_named
from components.planner.quantisation import WeightFormat, weight_format
from components.planner.serving_memory import usable_gib
from components.planner.serving_runtime import UTILISATION

SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "experts_per_token", "expert_ffn",
    "shared_experts", "dense_layers", "q_latent", "kv_latent", "rope_dim", "value_dim", "sliding_window", "max_context",
)  # fmt: skip


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
    prompt_tokens: int = 1024
    output_tokens: int = 256
    requests_per_s: float | None = None
    peak_requests_per_s: float | None = None
    wait_ms: float = 100.0
    itl_ms: float | None = None
    sliding_layers: int = 0
    served_name: str = "MODEL"
    vllm_version: str = ""


def request_from(values: Mapping[str, Any]) -> ServingRequest:
    """A request from the command's flags (dashes as underscores); None or absent counts as not given.

    The model comes from `config` (a config.json), `model` (a public name), or numbers: `params`, or `weights_gb` (the
    size of its files), with any of the shape's fields.

    Raises:
        UserError: a number that is missing, impossible or contradicts another; the line says which.
    """
    given = {name: value for name, value in values.items() if value is not None}
    fmt = weight_format(str(given.get("weights", "bf16")))
    model, sliding = _model(given, fmt)
    stated = given.get("gpu_memory_gib")
    gpu = gpu_for(given.get("gpu"), stated)
    fleet = fleet_of(given.get("gpus"), given.get("nodes"), given.get("gpus_per_node"))
    kv_dtype = str(given.get("kv_cache_dtype", "auto"))
    kv_element_bytes(kv_dtype)
    request = ServingRequest(
        model=model,
        gpu=gpu,
        fleet=fleet,
        memory_gib=usable_gib(gpu, stated),
        weights=fmt,
        kv_dtype=kv_dtype,
        sliding_layers=sliding,
        **{name: given[name] for name in OPTIONAL if name in given},
    )
    _check(request)
    return request


OPTIONAL = (
    "max_model_len", "concurrency", "utilisation", "max_num_seqs", "max_num_batched_tokens", "eager", "tp", "pp",
    "replicas", "prompt_tokens", "output_tokens", "requests_per_s", "peak_requests_per_s", "wait_ms", "itl_ms",
    "served_name", "vllm_version",
)  # fmt: skip
COUNTS = ("max_model_len", "concurrency", "max_num_seqs", "max_num_batched_tokens", "tp", "pp", "replicas",
          "prompt_tokens", "output_tokens")  # fmt: skip
ABOVE_ZERO = ("requests_per_s", "peak_requests_per_s", "wait_ms", "itl_ms")


def _model(given: Mapping[str, Any], fmt: WeightFormat) -> tuple[Architecture, int]:
    """The architecture and how many of its layers slide."""
    params = given.get("params")
    if "weights_gb" in given:
        if params is not None:
            raise UserError("give either the number of parameters or the size of the weights, not both")
        if not 0 < given["weights_gb"] < 1e6:
            raise UserError(f"weights are {given['weights_gb']:g} GB; a number above 0 is needed")
        params = given["weights_gb"] * 1e9 / fmt.bytes_per_param
    shape = {name: given[name] for name in SHAPE if name in given}
    if "config" in given:
        config = _read_config(Path(given["config"]))
        return Architecture.from_config(config, str(given["config"]), params), _sliding_layers(config)
    if "model" in given:
        if shape:
            raise UserError(f"model {given['model']!r} has its own shape; leave {next(iter(shape))} out")
        named = model_named(str(given["model"]))
        return (named.with_params(params) if params is not None else named), 0
    if params is None and not {"layers", "hidden"} <= set(shape):
        raise UserError("say which model: --params 13e9, --weights-gb 26, --model llama-3-8b or --config config.json")
    return _from_numbers(params, shape), 0


def _from_numbers(params: float | None, shape: Mapping[str, Any]) -> Architecture:
    """The architecture; more parameters than a dense model of this shape can have are those of unstated experts."""
    try:
        return Architecture.from_numbers("model", params=params, **shape)
    except UserError:
        if params is None or {"experts", "ffn"} & set(shape):
            raise
    mixture = Architecture.from_numbers("model", params=params, **shape, experts=2, experts_per_token=1)
    unstated = Assumption("experts", "a mixture", "too many parameters for a dense model of this depth and width")
    return replace(mixture, assumed=(*mixture.assumed, unstated))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable config.json ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a JSON object; give a Hugging Face config.json")
    return found


def _sliding_layers(config: Mapping[str, Any]) -> int:
    """Layers with a sliding window, as the configuration names them; all where it has one and names none."""
    inner = config.get("text_config")
    source = {**config, **inner} if isinstance(inner, Mapping) else config
    if not source.get("sliding_window") or source.get("use_sliding_window") is False:
        return 0
    kinds = source.get("layer_types")
    if isinstance(kinds, list):
        return sum("sliding" in str(kind) for kind in kinds)
    layers = int(source.get("num_hidden_layers") or 0)
    pattern = int(source.get("sliding_window_pattern") or 0)  # every pattern-th layer sees everything
    return layers - layers // pattern if pattern else layers


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
