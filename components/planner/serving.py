"""`plan_serving`: how a model is served on a fleet: split, replicas, context, concurrency, times, and why.

The order of the field: replicate while the model fits one GPU, else split it inside a node (tensor parallel), else
over nodes (pipeline parallel); the fewest GPUs a replica that hold the asked context, with room for the prediction's
error, win.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from components.planner import serving_reasons as words
from components.planner.fleet import most_replicas, place
from components.planner.kv_cache import cached_tokens
from components.planner.quantisation import weight_format, weight_gib
from components.planner.serving_load import speeds, suggest
from components.planner.serving_memory import GpuMemory, Setup, gpu_memory
from components.planner.serving_plan import Alternative, FormatOption, ServingPlan
from components.planner.serving_request import ServingRequest
from components.planner.serving_runtime import SMALL, Limits
from components.planner.serving_speed import Replica

LEAST_CONTEXT = 4096  # asked where nothing is said: a plan that holds no page of text serves nobody
LONGEST_CONTEXT = 131_072  # offered where the model's own limit is not stated
TRIED_FORMATS = ("bf16", "fp8", "int8", "int4")


@dataclass(frozen=True)
class Candidate:
    """One split with its memory; `replicas` that the fleet holds of it."""

    tp: int
    pp: int
    replicas: int
    memory: GpuMemory
    limits: Limits

    @property
    def gpus(self) -> int:
        """GPUs a replica."""
        return self.tp * self.pp


def plan_serving(request: ServingRequest) -> ServingPlan:
    """Plan how the request's model is served; infeasible plans say what would fit.

    Raises:
        UserError: no split of the model onto the fleet exists at all.
    """
    found = candidates(request)
    fitting = [candidate for candidate in found if holds(request, candidate)]
    chosen = _best(request, fitting) or min(found, key=_nearest)
    plan = _plan(request, chosen, bool(fitting))
    ranked = sorted(found, key=lambda item: (not holds(request, item), not roomy(request, item), *_order(item)))
    formats = _formats(request)
    plan = _fast_enough(request, _enough_for_load(plan))
    return replace(
        plan,
        alternatives=tuple(_alternative(request, candidate, chosen, bool(fitting)) for candidate in ranked),
        formats=formats,
        would_fit=plan.would_fit if fitting else _would_fit(request, plan, formats),
    )


def _enough_for_load(plan: ServingPlan) -> ServingPlan:
    """The plan, infeasible where the fleet is too small for the asked rate."""
    if plan.scaling is None or plan.scaling.enough:
        return plan
    needed = plan.scaling.min_replicas
    return replace(
        plan, feasible=False, would_fit=f"{needed * plan.gpus_per_replica} GPUs: {needed} replicas for the asked rate"
    )


def _fast_enough(request: ServingRequest, plan: ServingPlan) -> ServingPlan:
    """The plan, infeasible where not even a request alone gets its tokens as fast as asked."""
    alone = plan.speed[0].itl_ms if plan.speed else None
    if request.itl_ms is None or alone is None or alone <= request.itl_ms:
        return plan
    text = f"more than {alone:.1f} ms between tokens (a request alone), a larger --tp, faster GPUs or smaller weights"
    return replace(plan, feasible=False, would_fit=text)


def candidates(request: ServingRequest) -> list[Candidate]:
    """All splits to consider: TP divides the heads and stays inside a node, PP a power of two, unless asked for."""
    fleet, model = request.fleet, request.model
    widths = [request.tp] if request.tp else [t for t in _powers(fleet.gpus_per_node) if model.heads % t == 0]
    depths = [request.pp] if request.pp else [p for p in _powers(fleet.gpus) if p <= model.layers]
    found = [
        _candidate(request, tp, pp, request.replicas or replicas)
        for tp in widths
        for pp in depths
        if (replicas := most_replicas(fleet, tp, pp)) >= (request.replicas or 1)
    ]
    if not found:
        raise words.no_split(request)
    return found


def _candidate(request: ServingRequest, tp: int, pp: int, replicas: int) -> Candidate:
    """A split with vLLM's own limits, or with the smaller ones where only these fit and the choice is the planner's."""
    split = _setup(request, tp, pp)
    own = Candidate(tp, pp, replicas, gpu_memory(split), split.limits)
    if request.tp or request.max_num_seqs or request.max_num_batched_tokens or holds(request, own):
        return own
    small = replace(split, max_num_seqs=SMALL.max_num_seqs, max_num_batched_tokens=SMALL.max_num_batched_tokens)
    return Candidate(tp, pp, replicas, gpu_memory(small), small.limits)


def _setup(request: ServingRequest, tp: int, pp: int) -> Setup:
    return Setup(
        model=request.model,
        gpu=request.gpu,
        weights=request.weights,
        memory_gib=request.memory_gib,
        tp=tp,
        pp=pp,
        kv_dtype=request.kv_dtype,
        utilisation=request.utilisation,
        max_num_seqs=request.max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens,
        eager=request.eager,
    )


def needed_context(request: ServingRequest) -> int:
    """Tokens that one request must be able to hold: as asked, else a page of text or the usual request."""
    usual = max(LEAST_CONTEXT, request.prompt_tokens + request.output_tokens)
    return request.max_model_len or min(usual, request.model.max_context or usual)


def holds(request: ServingRequest, candidate: Candidate) -> bool:
    """Whether the cache holds the asked requests at once."""
    return candidate.memory.kv_tokens >= request.concurrency * _cached(request, candidate, needed_context(request))


def roomy(request: ServingRequest, candidate: Candidate) -> bool:
    """Whether also the low end of the cache's band holds them."""
    needed = request.concurrency * _cached(request, candidate, needed_context(request))
    return candidate.memory.kv_tokens_band[0] >= needed


def _best(request: ServingRequest, fitting: list[Candidate]) -> Candidate | None:
    """The fewest GPUs a replica with room for error, else the fewest."""
    return min(fitting, key=lambda item: (not roomy(request, item), *_order(item)), default=None)


def _order(candidate: Candidate) -> tuple[int, int]:
    return candidate.gpus, candidate.pp


def _nearest(candidate: Candidate) -> tuple[float, int]:
    return -candidate.memory.kv_cache_gib, candidate.gpus


def _cached(request: ServingRequest, candidate: Candidate, length: int) -> float:
    model, in_flight = request.model, candidate.limits.max_num_batched_tokens
    return cached_tokens(length, model.sliding_window, request.sliding_layers, model.layers, in_flight)


def _plan(request: ServingRequest, chosen: Candidate, feasible: bool) -> ServingPlan:
    memory = chosen.memory
    limits = chosen.limits
    low, high = memory.kv_tokens_band
    length = request.max_model_len or _longest(request, memory.kv_tokens)
    replicas = chosen.replicas if feasible else 0
    split = _replica(request, chosen)
    times = speeds(request, split, memory.kv_tokens, limits.max_num_seqs) if feasible else ()
    load = suggest(request, split, times, replicas) if feasible else None
    unscaled = (
        (f"no scaling is suggested: {times[-1].why_not}",) if feasible and request.requests_per_s and not load else ()
    )
    used = place(request.fleet, chosen.tp, chosen.pp, replicas) if feasible else ()
    return ServingPlan(
        feasible=feasible,
        tp=chosen.tp,
        pp=chosen.pp,
        replicas=replicas,
        gpus_per_replica=chosen.gpus,
        gpus_used=replicas * chosen.gpus,
        gpus=request.fleet.gpus,
        nodes=request.fleet.nodes,
        gpus_per_node=request.fleet.gpus_per_node,
        weights=request.weights.name,
        weights_gib=memory.weights_gib,
        weights_total_gib=weight_gib(request.model, request.weights),
        kv_cache_gib=max(memory.kv_cache_gib, 0.0),
        kv_cache_tokens=memory.kv_tokens,
        kv_cache_tokens_low=low,
        kv_cache_tokens_high=high,
        max_model_len=length,
        max_concurrency=memory.kv_tokens / max(_cached(request, chosen, length), 1.0),
        memory=memory,
        gpu_memory_utilization=request.utilisation,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        speed=times,
        scaling=load,
        placement=used,
        launcher=words.launcher(request, chosen),
        reasons=words.reasons(request, chosen, feasible, needed_context(request)),
        warnings=(*words.warnings(request, chosen, feasible, needed_context(request)), *unscaled),
        assumed=words.assumptions(request, length),
    )


def _longest(request: ServingRequest, tokens: int) -> int:
    """The longest context to offer: what the cache holds, within the model's own limit, in whole blocks."""
    return min(tokens // max(request.concurrency, 1), request.model.max_context or LONGEST_CONTEXT) // 16 * 16


def _replica(request: ServingRequest, chosen: Candidate) -> Replica:
    return Replica(
        model=request.model,
        gpu=request.gpu,
        weights=request.weights,
        tp=chosen.tp,
        pp=chosen.pp,
        kv_dtype=request.kv_dtype,
    )


def _alternative(request: ServingRequest, candidate: Candidate, chosen: Candidate, feasible: bool) -> Alternative:
    fits = holds(request, candidate)
    return Alternative(
        tp=candidate.tp,
        pp=candidate.pp,
        replicas=candidate.replicas if fits else 0,
        kv_cache_tokens=candidate.memory.kv_tokens,
        why_not=words.why_not(
            request, candidate, chosen, fits, feasible, needed_context(request), roomy(request, candidate)
        ),
    )


def _formats(request: ServingRequest) -> tuple[FormatOption, ...]:
    """The same fleet with other weights."""
    options = []
    for name in TRIED_FORMATS:
        if name == request.weights.name:
            continue
        other = _with_weights(request, name)
        fitting = [candidate for candidate in candidates(other) if holds(other, candidate)]
        best = _best(other, fitting)
        options.append(
            FormatOption(
                weights=name,
                weights_total_gib=weight_gib(request.model, other.weights),
                tp=best.tp if best else 0,
                pp=best.pp if best else 0,
                replicas=best.replicas if best else 0,
                kv_cache_tokens=best.memory.kv_tokens if best else 0,
                note=words.format_note(other),
            )
        )
    return tuple(options)


def _with_weights(request: ServingRequest, name: str) -> ServingRequest:
    return replace(request, weights=weight_format(name), tp=None, pp=None, replicas=None)


def _would_fit(request: ServingRequest, plan: ServingPlan, formats: tuple[FormatOption, ...]) -> str:
    packed = _enough_gpus(_with_weights(request, "int4"))
    return words.would_fit(request, plan, formats, _enough_gpus(request), packed, needed_context(request))


def _enough_gpus(request: ServingRequest) -> int | None:
    """GPUs of the same kind that one replica would need, None where no number of them is enough."""
    for nodes in _powers(1024):
        wider = replace(request, fleet=replace(request.fleet, nodes=nodes), tp=None, pp=None, replicas=None)
        fitting = [candidate for candidate in candidates(wider) if holds(wider, candidate)]
        if fitting:
            return min(fitting, key=_order).gpus
    return None


def _powers(most: int) -> list[int]:
    return [2**n for n in range(most.bit_length()) if 2**n <= most]
