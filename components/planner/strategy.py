"""Which ways to spread a training run are tried, in the order in which the field tries them.

One GPU or plain data parallelism; ZeRO 1, 2, 3; tensor parallelism inside a node; tensor, pipeline and data
parallelism over nodes; offload. Where the states do not fit into a node and there are many GPUs, the three together
come before ZeRO 3 over a network (Narayanan et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from components.planner.memory import GIB
from components.planner.training_request import STRATEGIES, TrainingRequest

MANY_GPUS = 32
PARALLEL_FRAMEWORK = "megatron"


@dataclass(frozen=True)
class Layout:
    """A way to spread a run; `rank` is its place in the order, `why` what it is there for."""

    name: str
    zero_stage: int
    tp: int = 1
    pp: int = 1
    offload: str = "none"
    framework: str = "deepspeed"
    rank: int = 0
    why: str = ""


def layouts(request: TrainingRequest) -> list[Layout]:
    """All layouts that the request leaves open, in the order of trying."""
    named = request.framework or _software(request)
    found = [layout for layout in _ordered(request) if _allowed(layout, request)]
    return [replace(x, framework=named or x.framework, rank=rank) for rank, x in enumerate(found)]


def _software(r: TrainingRequest) -> str | None:
    """The software that a named strategy and precision point to; None where each layout's usual one is meant."""
    if str(r.strategy).startswith("fsdp"):
        return "fsdp"
    return PARALLEL_FRAMEWORK if r.strategy == "zero1" and r.precision in ("fp8", "fp4") else None


def _ordered(r: TrainingRequest) -> Iterator[Layout]:
    many = r.gpus > MANY_GPUS and _states_gib(r) > r.gpu.usable_gib * min(r.gpus, r.gpus_per_node)
    one = r.gpus == 1
    yield Layout("single" if one else "ddp", 0, framework="huggingface", why="all of the model on every GPU")
    if not one or (r.strategy and STRATEGIES[r.strategy]):
        yield Layout("zero1", 1, why="optimizer states are spread")
        yield Layout("zero2", 2, why="gradients are spread too")
        if not many:
            yield Layout("zero3", 3, why="weights are spread too")
    yield from _cut(r)
    if r.offload in ("optimizer", "all") and (r.tp or 1) * (r.pp or 1) > 1:
        yield from (replace(cut, offload=r.offload) for cut in _cut(r))
    if not one and many:
        yield Layout("zero3", 3, why="weights are spread over all GPUs, and gathered over the network")
    yield Layout("zero2+offload" if not one else "single+offload", 2, offload="optimizer", why="optimizer on the host")
    if not one:
        yield Layout("zero3+offload", 3, offload="optimizer", why="weights spread, optimizer on the host")
    yield Layout("zero3+offload-all", 3, offload="all", why="weights and optimizer on the host")


def _cut(r: TrainingRequest) -> Iterator[Layout]:
    """Tensor parallel inside a node first, then pipelines, the fewest cuts first."""
    pairs = [
        (tp, pp)
        for tp in _divisors(r.gpus)
        for pp in _divisors(r.gpus // tp)
        if tp * pp > 1 and r.architecture.heads % tp == 0 and pp <= r.architecture.layers
        and (tp <= r.gpus_per_node or tp == r.tp)
    ]  # fmt: skip
    nodes = -(-r.gpus // r.gpus_per_node)
    pairs = [(tp, pp) for tp, pp in pairs if pp <= max(nodes, r.pp or 1) or tp == r.tp]
    for tp, pp in sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1])):
        parts = [name for name, size in (("tp", tp), ("pp", pp), ("dp", r.gpus // (tp * pp))) if size > 1]
        yield Layout("+".join(parts), 1, tp, pp, framework=PARALLEL_FRAMEWORK, why="layers and matrices are cut")


def _allowed(layout: Layout, r: TrainingRequest) -> bool:
    fixed = {"tp": r.tp, "pp": r.pp, "offload": r.offload}
    if any(value is not None and getattr(layout, name) != value for name, value in fixed.items()):
        return False
    if r.dp is not None and r.gpus // (layout.tp * layout.pp) != r.dp:
        return False
    if r.strategy is not None:
        cut = layout.tp * layout.pp > 1
        return layout.zero_stage == STRATEGIES[r.strategy] or (cut and r.strategy != "ddp")
    return True


def _states_gib(r: TrainingRequest) -> float:
    """Weights, gradients and optimizer of the whole model in mixed precision, 16 bytes a trained parameter."""
    return r.architecture.params * (16.0 if r.method == "full" else 2.0) / GIB


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
