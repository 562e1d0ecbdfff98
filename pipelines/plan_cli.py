"""`pilotline plan`: training and serving plans on the command line, and the constants of this machine."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from components.core.errors import PolicyRefusal

if TYPE_CHECKING:
    from pipelines.plan import Planned

Show = Callable[[argparse.Namespace, dict[str, Any], str], None]
MakeVerb = Callable[..., argparse.ArgumentParser]
SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
STRATEGIES = ["single", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp_full", "fsdp_grad_op"]
SHAPE = {
    "layers": "layers",
    "hidden": "hidden size",
    "heads": "attention heads",
    "kv-heads": "key-value heads",
    "head-dim": "width of a head",
    "ffn": "width of the feed-forward block",
    "vocab": "size of the vocabulary",
    "experts": "routed experts a layer",
    "experts-per-token": "experts that a token passes",
    "expert-ffn": "width of an expert",
    "shared-experts": "experts that every token passes",
    "dense-layers": "first layers without experts",
    "q-latent": "latent width of queries (MLA)",
    "kv-latent": "latent width of keys and values (MLA)",
    "rope-dim": "rotary part of a head (MLA)",
    "value-dim": "width of a value head (MLA)",
    "sliding-window": "tokens that a sliding layer looks back",
    "max-context": "longest context of the model, tokens",
}


def add_plan_verbs(group: Any, verb: MakeVerb, show: Show) -> None:
    """Add serve, train and calibrate to the group; `verb` makes one with the common options, `show` prints."""
    serve = verb(group, "serve", "how a model is served on GPUs, and whether it fits", lambda args: _serve(args, show))
    _model_options(serve)
    _gpu_options(serve)
    _serve_options(serve)
    train = verb(group, "train", "how a model is trained on GPUs, and whether it fits", lambda args: _train(args, show))
    _model_options(train)
    _gpu_options(train)
    _train_options(train)
    verb(group, "calibrate", "this machine's constants from the runs of the home", lambda args: _calibrate(args, show))


def _model_options(verb: argparse.ArgumentParser) -> None:
    model = verb.add_argument_group("model (one of --params, --model, --config, --recipe, or its shape)")
    model.add_argument("--params", type=number, metavar="N", help="number of parameters, for example 13e9")
    model.add_argument("--model", metavar="NAME", help="a public model, for example llama-3-8b")
    model.add_argument("--config", metavar="FILE", help="a Hugging Face config.json")
    model.add_argument("--recipe", metavar="NAME|FILE", help="the model of a recipe")
    for name, text in SHAPE.items():
        model.add_argument(f"--{name}", type=whole, metavar="N", help=text)
    switch = argparse.BooleanOptionalAction
    model.add_argument("--gated", action=switch, help="feed-forward blocks with a gate (default: most likely)")
    model.add_argument("--tied-embeddings", action=switch, help="input and output share one (default: most likely)")


def _gpu_options(verb: argparse.ArgumentParser) -> None:
    gpus = verb.add_argument_group("GPUs")
    gpus.add_argument("--gpus", type=whole, metavar="N", help="all GPUs (default: nodes x GPUs a node)")
    gpus.add_argument("--gpu", metavar="NAME", help="for example H100-80GB; its speed is then known")
    gpus.add_argument("--gpu-memory-gib", type=number, metavar="GIB", help="memory of one GPU")
    gpus.add_argument("--gpus-per-node", type=whole, metavar="N", help="default 8, or all where there are fewer")
    gpus.add_argument("--nodes", type=whole, metavar="N")
    gpus.add_argument("--tp", type=whole, metavar="N", help="tensor parallel (default: chosen)")
    gpus.add_argument("--pp", type=whole, metavar="N", help="pipeline parallel (default: chosen)")


def _serve_options(verb: argparse.ArgumentParser) -> None:
    serve = verb.add_argument_group("serving")
    serve.add_argument("--weights-gb", type=number, metavar="GB", help="size of the weights, instead of --params")
    formats = "bf16, fp8, int8, int4, bnb4, mxfp4, nvfp4, q8_0, fp32"
    serve.add_argument("--weights", metavar="FORMAT", help=f"default bf16; one of {formats}")
    serve.add_argument("--kv-cache-dtype", metavar="TYPE", help="auto (16 bit) or fp8")
    serve.add_argument("--max-model-len", type=whole, metavar="TOKENS", help="longest request (default: what fits)")
    serve.add_argument("--concurrency", type=whole, metavar="N", help="requests of that length at once (default 1)")
    serve.add_argument("--replicas", type=whole, metavar="N", help="default: as many as fit")
    serve.add_argument("--gpu-memory-utilization", type=number, dest="utilisation", metavar="SHARE", help="default 0.9")
    serve.add_argument("--max-num-seqs", type=whole, metavar="N", help="default: vLLM's for this GPU")
    serve.add_argument("--max-num-batched-tokens", type=whole, metavar="N", help="default: vLLM's for this GPU")
    serve.add_argument("--enforce-eager", action="store_true", default=None, dest="eager", help="no CUDA graphs")
    serve.add_argument("--prompt-tokens", type=whole, metavar="N", help="of the usual request (default 1024)")
    serve.add_argument("--output-tokens", type=whole, metavar="N", help="of the usual request (default 256)")
    serve.add_argument("--requests-per-second", type=number, dest="requests_per_s", metavar="N", help="suggest scaling")
    serve.add_argument("--peak-requests-per-second", type=number, dest="peak_requests_per_s", metavar="N")
    serve.add_argument("--wait-ms", type=number, metavar="MS", help="queueing of 95 %% of requests (default 100)")
    serve.add_argument("--itl-ms", type=number, metavar="MS", help="longest time between two tokens")
    serve.add_argument("--vllm-version", metavar="VERSION", help="default: the newest known")
    serve.add_argument("--served-name", metavar="NAME", help="what `vllm serve` is given")
    serve.add_argument("--emit", choices=["vllm"], help="print only the command that serves one replica")


def _train_options(verb: argparse.ArgumentParser) -> None:
    train = verb.add_argument_group("training")
    train.add_argument("--seq-len", type=whole, dest="seq", metavar="TOKENS", help="tokens a sequence (default 2048)")
    train.add_argument("--global-batch", type=whole, metavar="N", help="sequences a step over all GPUs")
    train.add_argument("--micro-batch", type=whole, metavar="N", help="sequences a GPU at once (default: chosen)")
    train.add_argument("--accumulation", type=whole, metavar="N", help="micro-batches a step (default: chosen)")
    train.add_argument("--method", choices=["full", "lora", "qlora"], help="default full, lora with --lora-rank")
    train.add_argument("--lora-rank", type=whole, metavar="N")
    train.add_argument("--lora-targets", choices=["all", "qv"], help="adapted matrices (default qv)")
    train.add_argument("--train-embeddings", action="store_true", default=None, help="beside LoRA's")
    train.add_argument("--precision", metavar="NAME", help="bf16 (default), fp16, fp8, fp4, pure_bf16, fp32")
    train.add_argument("--optimizer", metavar="NAME", help="adamw (default), adamw_8bit, ...")
    train.add_argument("--checkpointing", choices=["none", "selective", "full"], help="default: chosen")
    train.add_argument("--cp", type=whole, metavar="N", help="context parallel (default 1)")
    train.add_argument("--ep", type=whole, metavar="N", help="expert parallel (default 1)")
    train.add_argument("--virtual-stages", type=whole, metavar="N", help="stages a GPU of an interleaved pipeline")
    train.add_argument("--strategy", choices=STRATEGIES, help="default: chosen")
    train.add_argument("--offload", choices=["none", "optimizer", "all"], help="default: chosen")
    train.add_argument("--framework", metavar="NAME", help="for example megatron, torchtitan, deepspeed")
    train.add_argument("--dp", type=whole, metavar="N", help="data parallel (default: chosen)")
    train.add_argument("--interconnect", metavar="NAME", help="for example ethernet-25 (Gbit/s a GPU), nvlink4")
    train.add_argument("--link-gb-s", type=number, metavar="GB/S", help="inside a node, a GPU and direction")
    train.add_argument("--network-gb-s", type=number, metavar="GB/S", help="between nodes, a GPU and direction")
    train.add_argument("--nodes-per-rack", type=whole, metavar="N")
    train.add_argument("--host-memory-gib", type=number, metavar="GIB", help="memory of a node, for offload")
    train.add_argument("--tokens", type=number, metavar="N", help="to train on: hours and cost are told for them")
    train.add_argument("--price-per-gpu-hour", type=number, metavar="MONEY")
    counters = ["device", "reserved", "allocated"]
    train.add_argument("--memory-counter", choices=counters, help="whose peak is told (default device)")
    train.add_argument("--emit", choices=["deepspeed"], help="print only the DeepSpeed configuration")


def _serve(args: argparse.Namespace, show: Show) -> int:
    from pipelines.plan import serve

    found = serve(_given(args), args.recipe)
    if args.emit:
        _can_be_run(found, "command")
        show(args, {"arguments": found.values["vllm_arguments"]}, found.values["vllm_command"])
    else:
        show(args, found.values, found.text)
    return 0 if found.feasible else 3


def _train(args: argparse.Namespace, show: Show) -> int:
    from pipelines.plan import deepspeed, train

    software = {"framework": "deepspeed"} if args.emit else {}  # the plan is for what will run
    found = train({**software, **_given(args)}, args.recipe)
    if args.emit:
        _can_be_run(found, "configuration")
        config = deepspeed(found)
        show(args, config, json.dumps(config, indent=2))
    else:
        show(args, found.values, found.text)
    return 0 if found.feasible else 3


def _can_be_run(found: Planned, what: str) -> None:
    """PolicyRefusal for a plan that does not fit: what is emitted goes into a file or a shell."""
    if not found.feasible:
        fit = found.values.get("would_fit")
        mend = f"would fit: {fit}" if fit else found.values["reasons"][-1]
        raise PolicyRefusal(f"no {what}: the plan does not fit; {mend}")


def _calibrate(args: argparse.Namespace, show: Show) -> int:
    from components.core.home import Home
    from pipelines.plan import calibrate

    found = calibrate(Home.at(args.home))
    show(args, found.values, found.text)
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, by their names."""
    kept = ("call", "verb", "home", "json", "debug", "emit", "recipe")
    return {name: value for name, value in vars(args).items() if name not in kept and value is not None}


def number(text: str) -> float:
    """A finite number above 0, with k, m, b or t for thousands to trillions; ArgumentTypeError otherwise."""
    head, scale = (text[:-1], SUFFIXES[text[-1].lower()]) if text[-1:].lower() in SUFFIXES else (text, 1.0)
    try:
        value = float(head) * scale
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0; write it like 13e9 or 13b")
    return value


def whole(text: str) -> int:
    """A whole number above 0; ArgumentTypeError otherwise."""
    value = number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(value)
