"""Properties of training plans over random models and machines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.errors import UserError
from components.planner.calibration import Machine
from components.planner.gpus import Gpu, gpu_for
from components.planner.memory import predict_memory
from components.planner.models import known_models, model_named
from components.planner.throughput import estimated_speed
from components.planner.training import plan_training, request_from
from components.planner.training_run import TrainingRun

PARTS = ("weights", "gradients", "optimizer", "activations")
requests = st.fixed_dictionaries(
    {
        "params": st.floats(1e8, 5e11),
        "gpus": st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]),
        "seq": st.sampled_from([128, 2048, 8192, 65536]),
        "method": st.sampled_from(["full", "lora", "qlora"]),
        "offload": st.sampled_from([None, "none"]),
        "strategy": st.sampled_from([None, None, "zero2", "zero3"]),
    }
)
runs = st.builds(
    TrainingRun,
    architecture=st.sampled_from([model_named(name) for name in known_models()]),
    gpu=st.sampled_from([gpu_for(name) for name in ("H100", "A100-40GB", "A10G", "B200", "V100")]),
    gpus=st.sampled_from([8, 16, 32]),
    seq=st.integers(16, 65536),
    micro_batch=st.integers(1, 32),
    accumulation=st.integers(1, 16),
    zero_stage=st.integers(0, 3),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    offload=st.sampled_from(["none", "optimizer", "all"]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
    precision=st.sampled_from(["bf16", "fp8", "pure_bf16", "fp32"]),
    framework=st.sampled_from(["deepspeed", "megatron", "fsdp", "torchtitan", "litgpt", "unsloth", "something new"]),
)


@settings(max_examples=60, deadline=None)
@given(values=requests, memory=st.floats(8, 200), more=st.floats(1.0, 3.0))
def test_more_memory_never_makes_a_plan_infeasible(values: dict[str, Any], memory: float, more: float) -> None:
    """What fits on a GPU fits on a larger one."""
    try:
        small = plan_training(request_from({**values, "gpu_memory_gib": memory}))
    except UserError:
        return
    large = plan_training(request_from({**values, "gpu_memory_gib": memory * more}))
    assert large.feasible or not small.feasible


@settings(max_examples=150, deadline=None)
@given(run=runs, times=st.sampled_from([2, 4, 8]))
def test_more_gpus_never_raise_what_one_holds(run: TrainingRun, times: int) -> None:
    """Under the same strategy weights, gradients, optimizer and activations of a GPU stay or shrink."""
    few = predict_memory(run).parts
    many = predict_memory(replace(run, gpus=run.gpus * times)).parts
    for part in PARTS:
        assert many[part] <= few[part] * (1 + 1e-9), part


@settings(max_examples=150, deadline=None)
@given(run=runs)
def test_memory_is_made_of_parts_and_grows_with_the_batch(run: TrainingRun) -> None:
    """Parts are not negative, counters are ordered, and a larger batch or sequence takes no less."""
    found = predict_memory(run)
    assert all(value >= -1e-9 for value in found.parts.values())
    assert found.allocated <= found.reserved + 1e-9 or found.reserved == found.needed
    assert found.needed <= found.peak + 1e-9
    assert predict_memory(replace(run, micro_batch=2 * run.micro_batch)).needed >= found.needed
    assert predict_memory(replace(run, seq=2 * run.seq)).needed >= found.needed


@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_recomputing_and_sharding_never_take_more(run: TrainingRun) -> None:
    """Full checkpointing keeps no more than none does with many layers, a higher ZeRO stage holds no more states."""
    kept = {level: predict_memory(replace(run, checkpointing=level)).parts for level in ("none", "selective", "full")}
    assert kept["selective"]["activations"] <= kept["none"]["activations"]
    if run.architecture.layers / run.pp >= 8:
        assert kept["full"]["activations"] <= kept["none"]["activations"]
    if run.framework != "deepspeed" and run.offload == "none":  # DeepSpeed keeps other bytes at other stages
        states = [predict_memory(replace(run, zero_stage=stage)).parts for stage in (0, 1, 2, 3)]
        totals = [sum(parts[name] for name in PARTS[:3]) for parts in states]
        assert totals == sorted(totals, reverse=True)


@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_no_run_is_faster_than_its_gpu(run: TrainingRun) -> None:
    """Useful work stays below the peak, and shares are shares."""
    speed = estimated_speed(run)
    if speed is None:
        return
    assert speed.tokens_per_second > 0
    a, tokens = run.architecture, speed.tokens_per_second
    passes = 6.0 if run.method == "full" else 4.0
    peak = (run.gpu.peak_tflops(run.precision) or 0.0) * 1e12
    assert tokens * passes * (a.active_params - a.embedding_params) <= peak
    for share in (speed.communication_share, speed.bubble_share, speed.launch_share):
        assert 0.0 <= share <= 1.0


@settings(max_examples=40, deadline=None)
@given(values=requests, gpu=st.sampled_from(["H100", "A100-40GB", "A10G", "RTX4090"]))
def test_a_plan_survives_json(values: dict[str, Any], gpu: str) -> None:
    """Its dictionary is what JSON gives back, without NaN; the batch and the GPUs are products."""
    try:
        plan = plan_training(request_from({**values, "gpu": gpu}))
    except UserError:
        return
    said = plan.to_dict()
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert plan.tp * plan.pp * plan.dp == plan.gpus == values["gpus"]
    assert (
        said["predicted_peak_gib_band"]["low"] <= said["predicted_peak_gib"] <= said["predicted_peak_gib_band"]["high"]
    )


@given(
    process=st.floats(0, 10), factor=st.floats(0.5, 2), rate=st.floats(1e6, 1e15), runs=st.integers(0, 100),
    speed=st.none() | st.floats(0.25, 4),
)  # fmt: skip
def test_a_machine_survives_json(process: float, factor: float, rate: float, runs: int, speed: float | None) -> None:
    """What calibration keeps is read back as it was."""
    machine = Machine("m", process, factor, speed, 0.0, rate, runs)
    assert Machine.from_dict(json.loads(json.dumps(machine.to_dict()))) == machine


def test_strategies_take_gpus_that_nobody_named() -> None:
    """A GPU is only its numbers."""
    run = TrainingRun(
        architecture=model_named("llama-3-8b"), gpu=Gpu("future", 512, 500, 5e3, 1e4, None, 2e4, "nvlink", 900, 100),
        gpus=8, seq=4096, micro_batch=8,
    )  # fmt: skip
    assert estimated_speed(run) is not None
