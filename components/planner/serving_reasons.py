"""A serving plan in words: why this split, why not the others, what to watch, what would fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.core.errors import UserError
from components.planner.fleet import MOST_PLACED
from components.planner.serving_request import ServingRequest
from components.planner.serving_runtime import SMALL, scheduler_limits

if TYPE_CHECKING:
    from components.planner.serving import Candidate
    from components.planner.serving_plan import FormatOption, ServingPlan

UNLISTED = {"bnb4": "bitsandbytes", "q8_0": "GGUF"}  # formats that earlier versions of vLLM load
NARROW_LINKS = ("pcie", "unknown")


def reasons(request: ServingRequest, chosen: Candidate, feasible: bool, context: int) -> tuple[str, ...]:
    """Why the chosen split."""
    memory, fleet = chosen.memory, request.fleet
    parts = (
        f"of {memory.total_gib:.1f} GiB a GPU vLLM takes {memory.budget_gib:.1f}: weights {memory.weights_gib:.1f}, "
        f"activations {memory.activations_gib:.1f}, outside torch {memory.outside_torch_gib:.1f}, "
        f"which leaves {memory.kv_cache_gib:.1f} for the KV cache"
    )
    if not feasible:
        return (parts, f"the cache would have to hold {request.concurrency} x {context} tokens")
    if chosen.gpus == 1:
        why = "the model fits one GPU with its cache: replicate it, which needs no communication"
    elif chosen.pp == 1:
        why = f"the model needs {chosen.gpus} GPUs: tensor parallel inside a node of {fleet.gpus_per_node}"
    elif chosen.gpus <= fleet.gpus_per_node:
        why = (
            f"TP {chosen.tp} as wide as the {request.model.heads} heads allow, {chosen.pp} pipeline stages in the node"
        )
    else:
        spread = -(-chosen.gpus // fleet.gpus_per_node)
        why = (
            f"the model does not fit a node of {fleet.gpus_per_node} GPUs: tensor parallel inside each node, "
            f"pipeline parallel over {spread} nodes"
        )
    held = f"the cache holds {memory.kv_tokens:,} tokens, {memory.kv_bytes_per_token / 1024:.0f} KiB each on a GPU"
    return (why, parts, held)


def why_not(
    request: ServingRequest,
    candidate: Candidate,
    chosen: Candidate,
    fits: bool,
    feasible: bool,
    context: int,
    roomy: bool,
) -> str:
    """Why a split was not taken, "" for the one that was."""
    memory = candidate.memory
    if not fits and memory.kv_cache_gib <= 0:
        taken = memory.budget_gib - memory.kv_cache_gib
        return f"does not fit: {taken:.1f} GiB of {memory.budget_gib:.1f} before any cache"
    if not fits:
        return f"the cache holds {memory.kv_tokens:,} tokens of {request.concurrency * context:,} asked"
    if candidate == chosen and feasible:
        return ""
    if not roomy:
        low = candidate.memory.kv_tokens_band[0]
        return f"fits only if the prediction is exact: {low:,} tokens at the low end of its band"
    if candidate.gpus > chosen.gpus:
        fewer = f"{candidate.replicas} replica{'s' * (candidate.replicas > 1)} instead of {chosen.replicas}"
        return f"fits too, with {candidate.gpus} GPUs a replica: {fewer}"
    return "fits too, with more pipeline stages: a token passes them one after the other"


def warnings(request: ServingRequest, chosen: Candidate, feasible: bool, context: int) -> tuple[str, ...]:
    """What to watch."""
    found: list[str] = []
    memory, model, fleet = chosen.memory, request.model, request.fleet
    asked = request.concurrency * context
    if chosen.limits == SMALL and scheduler_limits(request.gpu) != SMALL and not request.max_num_seqs:
        found.append(f"fits with {SMALL.max_num_seqs} sequences at once, fewer than vLLM's own choice for this GPU")
    if feasible and memory.kv_tokens_band[0] < asked:
        found.append(f"at the low end of the band the cache holds {memory.kv_tokens_band[0]:,} tokens, less than asked")
    if chosen.tp > model.kv_heads and not model.kv_latent:
        found.append(f"TP {chosen.tp} is more than the {model.kv_heads} KV heads: each is kept on several GPUs")
    if chosen.tp > 1 and request.gpu.link in NARROW_LINKS and request.gpu.is_known:
        found.append(
            f"{request.gpu.name} has no NVLink: tensor parallel is slow there, compare with --tp 1 --pp {chosen.gpus}"
        )
    if chosen.tp > fleet.gpus_per_node:
        found.append("tensor parallel across nodes: every layer waits for the network")
    if model.layers % chosen.pp:
        found.append(f"{model.layers} layers on {chosen.pp} stages are uneven; the fullest stage is counted")
    if request.gpu.no_bf16 and request.weights.name != "fp32":
        found.append(f"{request.gpu.name} has no bf16: 16 bit means float16 there, check the model for overflow")
    if request.weights.name in UNLISTED:
        found.append(f"vLLM 0.32 lists no {UNLISTED[request.weights.name]} weights; int4 (AWQ, GPTQ) or int8 are alike")
    if chosen.replicas > MOST_PLACED:
        found.append(f"placement lists the first {MOST_PLACED:,} replicas; the others repeat it")
    idle = fleet.gpus - chosen.replicas * chosen.gpus
    if feasible and idle and not request.replicas:
        found.append(f"{idle} of {fleet.gpus} GPUs stay idle")
    if model.sliding_window and not request.sliding_layers:
        found.append("which layers slide is not stated: all are counted with their full cache")
    return tuple(found)


def assumptions(request: ServingRequest, length: int) -> tuple[str, ...]:
    """Numbers that were not given."""
    found = [*request.assumed, *(str(item) for item in request.model.assumed)]
    if request.gpu.source == "stated by the user" and request.memory_gib != request.gpu.memory_gib:
        found.append(f"usable memory {request.memory_gib:.1f} GiB of {request.gpu.memory_gib:g} (what a driver leaves)")
    if request.max_num_seqs is None or request.max_num_batched_tokens is None:
        found.append("max_num_seqs and max_num_batched_tokens as vLLM chooses them for this GPU")
    if length and request.max_model_len is None and request.model.max_context is None:
        found.append(f"the model's longest context is not given: take the smaller of it and {length}")
    return tuple(found)


def launcher(request: ServingRequest, chosen: Candidate) -> str:
    """What starts one replica's processes."""
    if chosen.gpus <= request.fleet.gpus_per_node:
        return "one `vllm serve` a replica, on one node"
    nodes = -(-chosen.gpus // request.fleet.gpus_per_node)
    return (
        f"{nodes} nodes a replica: a Ray cluster over them (--distributed-executor-backend ray), on Kubernetes a "
        f"LeaderWorkerSet of size {nodes}"
    )


def would_fit(
    request: ServingRequest,
    plan: ServingPlan,
    formats: Sequence[FormatOption],
    gpus: int | None,
    gpus_int4: int | None,
    needed: int,
) -> str:
    """One line: what could be changed so that the model fits."""
    ways = []
    smaller = next(
        (item for item in formats if item.replicas and item.weights_total_gib < plan.weights_total_gib), None
    )
    if smaller:
        ways.append(f"{smaller.weights} weights on {smaller.tp * smaller.pp} GPUs")
    elif gpus_int4 and gpus_int4 < (gpus or gpus_int4 + 1):
        ways.append(f"int4 weights on {gpus_int4} GPUs of {request.memory_gib:.0f} GiB")
    if gpus and gpus > request.fleet.gpus:
        ways.append(f"{gpus} GPUs of {request.memory_gib:.0f} GiB")
    shorter = plan.memory.kv_tokens // request.concurrency // 16 * 16
    if shorter >= 16:
        ways.append(f"a context of {shorter:,} tokens")
    elif plan.memory.kv_tokens >= needed:
        ways.append(f"{plan.memory.kv_tokens // needed:,} requests at once")
    return " or ".join(ways) if ways else "nothing of what was tried: take GPUs with more memory"


def format_note(other: ServingRequest) -> str:
    """What a weight format asks of the GPU."""
    if other.weights.name == "fp8" and other.gpu.is_known and other.gpu.fp8_tflops is None:
        return "this GPU has no fp8 units: weights are unpacked to 16 bit, which saves memory, not arithmetic"
    if other.weights.name in ("int8", "int4"):
        return "needs a checkpoint quantised beforehand, and its quality measured"
    return ""


def no_split(request: ServingRequest) -> UserError:
    """No split of the model onto the fleet exists."""
    fleet, heads = request.fleet, request.model.heads
    if request.tp and request.tp > fleet.gpus_per_node and request.tp % fleet.gpus_per_node:
        return UserError(f"tp {request.tp} is no whole number of nodes of {fleet.gpus_per_node} GPUs")
    return UserError(
        f"no split: TP has to divide {heads} heads and TP x PP x replicas to fit {fleet.nodes} nodes of "
        f"{fleet.gpus_per_node} GPUs; change --tp, --pp or --replicas"
    )
