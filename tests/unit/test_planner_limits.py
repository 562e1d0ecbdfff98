"""What a plan holds itself to: host memory, fleets of any size, answer times, contradictions."""

from __future__ import annotations

import time
from typing import Any

import pytest

from components.core.errors import UserError
from components.planner.fleet import MOST_GPUS, MOST_PLACED, Fleet, most_replicas, place
from components.planner.serving import plan_serving
from components.planner.serving_request import request_from as serving_request
from components.planner.training import plan_training, request_from


def test_offload_is_held_against_a_hosts_memory() -> None:
    """Not stated, it is assumed and listed; a model beyond it does not fit, and the reason names the host."""
    found = plan_training(request_from({"params": 70e9, "gpus": 8, "gpu": "H100-80GB"}))
    assert found.feasible
    assert found.offload != "none"
    assert {item.field: item.value for item in found.assumed}["host_memory_gib"] == 2 * 8 * 80
    asked: dict[str, Any] = {"params": 130e9, "gpus": 8, "gpu": "H100-80GB", "strategy": "zero3", "offload": "all"}
    beyond = plan_training(request_from(asked))
    assert not beyond.feasible
    assert "to the host of a node" in " ".join(beyond.reasons)
    assert plan_training(request_from(asked | {"host_memory_gib": 4096})).feasible


def test_a_cut_model_can_be_offloaded_when_asked() -> None:
    """Tensor and pipeline parallel with the optimizer on the host."""
    asked = {"params": 30e9, "gpus": 16, "gpu": "H100-80GB", "tp": 2, "pp": 2, "offload": "optimizer"}
    found = plan_training(request_from(asked))
    assert (found.tp, found.pp, found.offload) == (2, 2, "optimizer")
    assert found.memory_parts_gib["optimizer"] == 0


def test_an_unknown_framework_is_told() -> None:
    """Predicted as plain PyTorch, which stands among the assumptions."""
    found = plan_training(request_from({"params": 7e9, "gpus": 8, "gpu": "H100-80GB", "framework": "homemade"}))
    assert "homemade" in next(item.reason for item in found.assumed if item.field == "framework")


def test_a_sequence_beyond_the_models_context_and_a_price_for_nothing_are_warned_of() -> None:
    """Possible, but not what is usually meant."""
    shape = {"params": 7e9, "max_context": 4096, "gpus": 8, "gpu": "H100-80GB"}
    found = plan_training(request_from(shape | {"seq": 8192, "price_per_gpu_hour": 2}))
    assert any("longer than the model's context" in line for line in found.warnings)
    assert any("no cost is told" in line for line in found.warnings)


@pytest.mark.parametrize("gpus", [16_384, 131_072])
def test_a_fleet_of_any_size_is_planned_at_once(gpus: int) -> None:
    """The largest too takes a tenth of a second of CPU, the best of three; all replicas count, the first are listed."""
    request = serving_request({"params": 13e9, "gpus": gpus, "gpu": "H100-80GB"})
    training = request_from({"params": 405e9, "gpus": gpus, "gpu": "H100-80GB", "global_batch": gpus})
    seconds = []
    for _ in range(3):
        began = time.process_time()
        plan = plan_serving(request)
        plan_training(training)
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.2
    assert plan.replicas == gpus
    assert len(plan.placement) == MOST_PLACED
    assert any("placement lists the first" in line for line in plan.warnings)


@pytest.mark.parametrize("gpus", [MOST_GPUS + 1, 10**30])
def test_more_gpus_than_there_are_is_refused(gpus: int) -> None:
    """In one line and at once."""
    for make in (serving_request, request_from):
        with pytest.raises(UserError, match=r"131,072|1e\+09"):
            make({"params": 13e9, "gpus": gpus, "gpu": "H100-80GB"})


@pytest.mark.parametrize("fleet", [Fleet(5, 8), Fleet(3, 6), Fleet(7, 4), Fleet(4, 1)])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_counted_replicas_are_those_that_can_be_placed(fleet: Fleet, tp: int, pp: int) -> None:
    """No GPU twice, each replica whole, and none more than is counted."""
    count = most_replicas(fleet, tp, pp)
    placed = place(fleet, tp, pp, count)
    used = [(stage.node, gpu) for replica in placed for stage in replica.stages for gpu in stage.gpus]
    assert len(placed) == count
    assert len(used) == len(set(used)) == count * tp * pp
    assert all(node < fleet.nodes and gpu < fleet.gpus_per_node for node, gpu in used)
    with pytest.raises(UserError):
        place(fleet, tp, pp, count + 1)


def test_a_part_of_a_node_is_a_fleet() -> None:
    """Four GPUs of a machine of eight."""
    plan = plan_serving(serving_request({"params": 7e9, "gpus": 4, "gpus_per_node": 8, "gpu": "H100-80GB"}))
    assert (plan.nodes, plan.gpus, plan.replicas) == (1, 4, 4)


def test_tokens_that_cannot_come_so_fast_make_a_plan_infeasible() -> None:
    """No number of replicas makes one request faster."""
    asked = {"params": 13e9, "gpus": 8, "gpu": "H100-80GB", "requests_per_s": 1.0}
    assert plan_serving(serving_request(asked | {"itl_ms": 100.0})).feasible
    plan = plan_serving(serving_request(asked | {"itl_ms": 0.1}))
    assert not plan.feasible
    assert "between tokens" in plan.would_fit


def test_scaling_that_cannot_be_suggested_says_why() -> None:
    """A rate is asked for on a GPU of unknown speed."""
    plan = plan_serving(serving_request({"params": 7e9, "gpus": 1, "gpu_memory_gib": 80, "requests_per_s": 1.0}))
    assert plan.scaling is None
    assert any("no scaling is suggested" in line for line in plan.warnings)


def test_the_usual_request_has_to_fit_the_context_that_is_planned() -> None:
    """Stated lengths are held by the chosen split; a model with a short context has shorter ones."""
    long = plan_serving(
        serving_request(
            {"params": 13e9, "gpus": 8, "gpu": "H100-80GB", "prompt_tokens": 100_000, "output_tokens": 1000}
        )
    )
    assert long.feasible
    assert long.kv_cache_tokens >= 101_000
    short = serving_request({"params": 7e9, "max_context": 512, "gpus": 1, "gpu": "H100-80GB"})
    assert short.prompt_tokens + short.output_tokens <= 512


def test_what_would_fit_is_never_nothing() -> None:
    """A concurrency that no cache holds: as many requests as it does hold."""
    plan = plan_serving(serving_request({"params": 13e9, "gpus": 8, "gpu_memory_gib": 80, "concurrency": 1_000_000}))
    assert not plan.feasible
    assert "requests at once" in plan.would_fit
