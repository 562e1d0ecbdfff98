"""What a plan's reader should know before trusting it."""

from __future__ import annotations

from components.planner.memory import MemoryPrediction
from components.planner.throughput import Speed
from components.planner.training_request import TrainingRequest
from components.planner.training_run import TrainingRun

BUBBLE = 0.1
TALK = 0.25
FEW_TOKENS = 2048  # a GPU and micro-batch, below which matrix products are too small


def warnings_of(
    request: TrainingRequest,
    run: TrainingRun,
    speed: Speed | None,
    memory: MemoryPrediction,
    fits: bool,
    roomy: bool,
) -> tuple[str, ...]:
    """Warnings of a plan, the gravest first."""
    found = [*_memory(run, memory, fits, roomy), *_network(request, run), *_batch(request, run)]
    bubble = (run.pp - 1) / (run.accumulation * run.virtual_stages + run.pp - 1)
    if bubble > BUBBLE:
        found.append(f"the pipeline waits {bubble:.0%} of the time; more micro-batches a step make that less")
    if speed is not None and speed.communication_share > TALK:
        found.append(f"{speed.communication_share:.0%} of a step is exchange; a larger micro-batch hides more of it")
    return tuple(found)


def _memory(run: TrainingRun, memory: MemoryPrediction, fits: bool, roomy: bool) -> list[str]:
    found = []
    if fits and not roomy:
        found.append("tight: the upper end of the memory's band does not fit; try it before a long run")
    if memory.host_gib > 0:
        found.append(f"offload takes {memory.host_gib:,.0f} GiB of host memory a node")
    if run.architecture.is_moe:
        found.append("memory of a mixture depends on how tokens spread over experts; leave room")
    if run.precision == "bf16" and run.gpu.no_bf16:
        found.append(f"{run.gpu.name} has no bf16; fp16 with loss scaling is meant")
    return found


def _network(request: TrainingRequest, run: TrainingRun) -> list[str]:
    found = []
    if run.tp > run.gpus_per_node:
        per_rack = request.nodes_per_rack and request.nodes_per_rack * run.gpus_per_node
        where = "racks" if per_rack and run.tp > per_rack else "nodes"
        found.append(f"tensor parallel {run.tp} crosses {where} of {run.gpus_per_node} GPUs: every layer waits for it")
    if run.zero_stage == 3 and run.dp > run.gpus_per_node and (request.network_gb_s or 99.0) < 10.0:
        found.append("weights are gathered over a slow network in every micro-batch")
    return found


def _batch(request: TrainingRequest, run: TrainingRun) -> list[str]:
    found = []
    longest = request.architecture.max_context
    if longest is not None and request.seq > longest:
        found.append(f"sequences of {request.seq:,} tokens are longer than the model's context of {longest:,}")
    if request.price_per_gpu_hour is not None and request.tokens is None:
        found.append("no cost is told: say for how many tokens the price is asked (--tokens)")
    if request.global_batch is not None and request.global_batch < run.dp // run.cp * run.pp:
        found.append(f"a global batch of {request.global_batch} is too small for {run.dp} ranks x {run.pp} stages")
    if run.tokens < FEW_TOKENS:
        found.append(f"only {run.tokens:,.0f} tokens a GPU and micro-batch: too few to keep it busy")
    return found
