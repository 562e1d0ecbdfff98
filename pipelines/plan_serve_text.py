"""A serving plan as a page of text."""

from __future__ import annotations

from components.planner.serving_plan import ServingPlan
from components.planner.serving_request import ServingRequest
from pipelines.plan_text import assumed, folded, listed, memory_bars, pasted, size, table

MOST_ROWS = 6


def serve_text(plan: ServingPlan, request: ServingRequest, command: str) -> str:
    """The plan for a person: the answer first, then memory, times, reasons, what else was looked at."""
    lines = [
        *(part for line in _answer(plan, request) for part in folded(line)),
        "",
        "  memory of one GPU     GiB",
        *_memory(plan),
    ]
    lines += _speed(plan)
    lines += _scaling(plan)
    lines += listed("why", plan.reasons)
    lines += _alternatives(plan)
    lines += _formats(plan)
    lines += listed("watch", plan.warnings)
    lines += assumed(plan.assumed)
    lines += _placement(plan)
    if plan.feasible:
        lines += ["", *folded(f"start one replica ({plan.launcher})"), *pasted(command)]
    return "\n".join(lines)


def _answer(plan: ServingPlan, request: ServingRequest) -> list[str]:
    fleet = (
        f"{plan.nodes} nodes of {plan.gpus_per_node} GPU{'s' * (plan.gpus_per_node > 1)}"
        if plan.nodes > 1
        else f"{plan.gpus} GPU{'s' * (plan.gpus > 1)}"
    )
    card = "" if request.gpu.name == "unnamed" else f"{request.gpu.name}, "
    what = f"{size(request.model.params)} parameters in {plan.weights} on {fleet} ({card}"
    what += f"{plan.memory.total_gib:.1f} GiB usable each)"
    if not plan.feasible:
        return [f"does not fit: {what}", f"  would fit: {plan.would_fit}"]
    at_once = f"{plan.max_concurrency:.1f} requests" if plan.max_concurrency >= 1.05 else "one request"
    return [
        f"fits: {what}",
        f"  TP {plan.tp} x PP {plan.pp}, {plan.replicas} replica{'s' * (plan.replicas > 1)}: "
        f"{plan.gpus_used} of {plan.gpus} GPU{'s' * (plan.gpus > 1)}",
        f"  context of {plan.max_model_len:,} tokens, {at_once} of that length at once a replica",
    ]


def _memory(plan: ServingPlan) -> list[str]:
    memory = plan.memory
    parts = {
        "weights": memory.weights_gib,
        "activations": memory.activations_gib,
        "outside torch": memory.outside_torch_gib,
        "KV cache": memory.kv_cache_gib,
        "left outside": memory.total_gib - memory.budget_gib,
    }
    band = f"{plan.kv_cache_tokens:,} tokens; 80 % band {plan.kv_cache_tokens_low:,} to {plan.kv_cache_tokens_high:,}"
    graphs = f"CUDA graphs take {memory.cuda_graphs_gib:.1f} of it" if memory.cuda_graphs_gib else ""
    return memory_bars(parts, memory.total_gib, {"KV cache": band, "left outside": graphs})


def _speed(plan: ServingPlan) -> list[str]:
    if not plan.speed:
        return []
    if plan.speed[0].why_not:
        return ["", *folded(f"times: {plan.speed[0].why_not}")]
    first = plan.speed[0]
    rows = [
        (item.concurrency, item.ttft_ms or 0.0, item.itl_ms or 0.0, item.request_ms or 0.0, item.tokens_per_s or 0.0)
        for item in plan.speed
    ]
    title = (
        f"times of one replica, {first.prompt_tokens} tokens in, {first.output_tokens} out; 80 % within a factor of "
    )
    header = ("at once", "first token ms", "between tokens ms", "request ms", "tokens/s")
    return ["", *folded(f"{title}{first.band:.2f}"), *table(header, rows)]


def _scaling(plan: ServingPlan) -> list[str]:
    found = plan.scaling
    if found is None:
        return []
    lines = [
        f"{found.min_replicas} to {found.max_replicas} replicas of {found.replica_requests_per_s:.1f} requests/s each; "
        f"one more at {found.target_concurrency} requests in flight a replica, or {found.queue_per_replica} waiting",
        *found.reasons,
    ]
    return listed("scaling", lines)


def _alternatives(plan: ServingPlan) -> list[str]:
    rows = [
        (item.tp, item.pp, item.replicas, item.kv_cache_tokens, item.why_not or "chosen") for item in plan.alternatives
    ]
    more = f" (of {len(rows)}; all in --json)" if len(rows) > MOST_ROWS else ""
    return ["", f"splits{more}", *table(("TP", "PP", "replicas", "cache tokens", ""), rows[:MOST_ROWS])]


def _formats(plan: ServingPlan) -> list[str]:
    rows = [
        (
            item.weights,
            item.weights_total_gib,
            f"TP {item.tp} x PP {item.pp}" if item.replicas else "does not fit",
            item.replicas,
            item.kv_cache_tokens,
            item.note,
        )
        for item in plan.formats
    ]
    return ["", "other weights", *table(("format", "GiB", "split", "replicas", "cache tokens", ""), rows)]


def _placement(plan: ServingPlan) -> list[str]:
    if plan.nodes == 1 or not plan.placement:
        return []
    lines = []
    for replica in plan.placement[:MOST_ROWS]:
        stages = "; ".join(f"node {stage.node} GPU {_span(stage.gpus)}" for stage in replica.stages)
        lines.append(f"replica {replica.replica}: {stages}")
    if len(plan.placement) > MOST_ROWS:
        lines.append(f"and {len(plan.placement) - MOST_ROWS} more (all in --json)")
    return listed("placement", lines)


def _span(gpus: tuple[int, ...]) -> str:
    return str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]}-{gpus[-1]}"
