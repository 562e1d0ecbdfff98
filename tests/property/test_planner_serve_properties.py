"""Serving plans for any model and fleet: more never hurts, splits add up, JSON round-trips."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from components.planner.gpus import known
from components.planner.serving import plan_serving
from components.planner.serving_plan import ServingPlan
from components.planner.serving_request import request_from

fleets = st.fixed_dictionaries(
    {
        "params": st.floats(1e8, 1e12),
        "nodes": st.sampled_from([1, 2, 3, 12]),
        "gpus_per_node": st.sampled_from([1, 2, 4, 6, 8]),
        "weights": st.sampled_from(["bf16", "fp8", "int8", "int4"]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
        "max_model_len": st.sampled_from([None, 2048, 32768]),
        "concurrency": st.sampled_from([1, 8]),
        "tp": st.none(),
    }
)


@settings(max_examples=80, deadline=None)
@given(fleets, st.floats(6, 300), st.floats(1.0, 3.0), st.sampled_from([None, *known()]))
def test_more_memory_never_makes_a_feasible_plan_infeasible(
    values: dict[str, Any], memory: float, factor: float, gpu: str | None
) -> None:
    """Neither for a named GPU nor for an unnamed one."""
    less = plan_serving(request_from({**values, "gpu": gpu, "gpu_memory_gib": float(round(memory))}))
    more = plan_serving(request_from({**values, "gpu": gpu, "gpu_memory_gib": float(round(memory * factor))}))
    assert more.feasible or not less.feasible


@settings(max_examples=50, deadline=None)
@given(fleets, st.integers(8, 200))
def test_a_plan_uses_what_there_is_and_holds_what_was_asked(values: dict[str, Any], memory: int) -> None:
    """Parts add up to the budget, GPUs are not used twice, the cache holds the asked context."""
    plan = plan_serving(request_from({**values, "gpu_memory_gib": memory}))
    parts = plan.memory
    held = parts.weights_gib + parts.activations_gib + parts.outside_torch_gib + parts.kv_cache_gib
    assert held <= parts.budget_gib + 1e-6
    assert plan.gpus_used == plan.replicas * plan.tp * plan.pp <= plan.gpus
    used = [(stage.node, gpu) for replica in plan.placement for stage in replica.stages for gpu in stage.gpus]
    assert len(used) == len(set(used)) == plan.gpus_used
    if plan.feasible:
        assert plan.kv_cache_tokens >= values["concurrency"] * (values["max_model_len"] or 1)
        assert plan.tp <= plan.gpus_per_node
    else:
        assert plan.would_fit


@settings(max_examples=30, deadline=None)
@given(fleets, st.integers(8, 200))
def test_a_plan_survives_json(values: dict[str, Any], memory: int) -> None:
    """To plain values and back."""
    plan = plan_serving(request_from({**values, "gpu_memory_gib": memory}))
    assert ServingPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
