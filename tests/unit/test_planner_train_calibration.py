"""Calibration: a machine's constants come back from runs that were made with them; odd runs are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.calibration import Machine, Measurement, calibrate, cpu_run, predict_ranks
from components.planner.gpus import gpu_for
from components.planner.models import model_named
from components.planner.throughput import predict_speed
from components.planner.training import plan_training, request_from
from components.planner.training_run import TrainingRun

SIZES = (2e5, 1e8, 3e8, 6e8)


def on_cpu(params: float) -> TrainingRun:
    """Two ranks of a dense model of this size."""
    return cpu_run(Architecture.from_numbers(params=params), ranks=2, zero_stage=1, batch_size=32, seq=64)


def measured(run: TrainingRun, truth: Machine, odd: float = 1.0) -> Measurement:
    """What a machine with these constants would show; `odd` distorts it."""
    found = predict_ranks(run, truth)
    return Measurement(run, found.peak_gib.value * odd, (found.tokens_per_second or 0.0) * odd)


def test_constants_of_a_cpu_come_back() -> None:
    """Process, factor, step and rate from runs of different sizes, one of them odd."""
    truth = Machine("here", process_gib=0.8, memory_factor=1.3, step_seconds=0.05, flops_per_second=2e10, runs=1)
    runs = [measured(on_cpu(params), truth) for params in SIZES] + [measured(on_cpu(2e8), truth, odd=1.4)]
    found = calibrate(runs, "here")
    assert found.process_gib == pytest.approx(0.8, rel=0.1)
    assert found.memory_factor == pytest.approx(1.3, rel=0.1)
    assert found.flops_per_second == pytest.approx(2e10, rel=0.1)
    assert found.runs == 5
    again = predict_ranks(on_cpu(4e8), found)
    assert again.peak_gib.value == pytest.approx(predict_ranks(on_cpu(4e8), truth).peak_gib.value, rel=0.15)


def test_one_run_tells_the_process_and_one_speed() -> None:
    """With a single size the tensors keep their computed weight, and the same run is predicted exactly."""
    truth = Machine("here", process_gib=0.7, step_seconds=0.2, flops_per_second=1e9, runs=1)
    one = measured(on_cpu(2e5), truth)
    found = calibrate([one])
    assert found.memory_factor == 1.0
    said = predict_ranks(one.run, found)
    assert said.peak_gib.value == pytest.approx(one.peak_gib)
    assert said.tokens_per_second == pytest.approx(one.tokens_per_second)


def test_a_machine_not_calibrated_gives_memory_but_no_speed() -> None:
    """The process alone is known from the locked packages."""
    said = predict_ranks(on_cpu(2e5))
    assert said.tokens_per_second is None
    assert said.peak_gib.low < said.peak_gib.value < said.peak_gib.high


def test_weights_gradients_moments_and_copies_are_counted_in_fp32() -> None:
    """One rank without sharding: 4 + 4 + 8 bytes and three copies of 4 a parameter, beside what a batch takes."""
    large = cpu_run(model_named("opt-125m"), ranks=1, zero_stage=0, batch_size=1, seq=8)
    assert predict_ranks(large).tensors_gib == pytest.approx(28 * 0.125e9 / 2**30, rel=0.03)


def test_a_slower_gpu_machine_makes_slower_plans() -> None:
    """Runs at three quarters of the predicted speed, with more memory beside the tensors, shift the next plan."""
    run = TrainingRun(
        architecture=model_named("llama-3-8b"), gpu=gpu_for("A100"), gpus=8, seq=4096, micro_batch=1, zero_stage=3
    )
    usual = predict_speed(run).tokens_per_second
    tensors = predict_ranks(run).tensors_gib
    machine = calibrate([Measurement(run, tensors + 4.0, 0.75 * usual * 8)], "cluster")
    assert machine.speed_factor == pytest.approx(0.75)
    assert machine.process_gib == pytest.approx(4.0)
    again = predict_speed(run, machine.constants().speed).tokens_per_second
    assert again == pytest.approx(0.75 * usual, rel=0.02)
    request = request_from({"model": "llama-3-8b", "gpus": 8, "gpu": "A100", "strategy": "zero3", "micro_batch": 1})
    before, after = plan_training(request), plan_training(request, machine.constants())
    assert before.tokens_per_second_per_gpu is not None
    assert after.tokens_per_second_per_gpu is not None
    assert after.tokens_per_second_per_gpu.value < before.tokens_per_second_per_gpu.value
    assert after.predicted_peak_gib > before.predicted_peak_gib


def test_measurements_that_cannot_be_are_refused() -> None:
    """None, negative, mixed kinds, and a speed that belongs to another machine."""
    with pytest.raises(UserError, match="no finished run"):
        calibrate([])
    with pytest.raises(UserError, match="cannot be"):
        calibrate([Measurement(on_cpu(2e5), -1.0, 5.0)])
    gpu = TrainingRun(architecture=model_named("llama-3-8b"), gpu=gpu_for("A100"), gpus=8, seq=4096, micro_batch=4)
    with pytest.raises(UserError, match="each alone"):
        calibrate([Measurement(on_cpu(2e5), 1.0), Measurement(gpu, 40.0)])
    with pytest.raises(UserError, match="times as fast"):
        calibrate([Measurement(gpu, 40.0, 1e8)])


def test_constants_are_kept_in_a_file(tmp_path: Path) -> None:
    """Written and read back; nothing there means the defaults; damage is one line."""
    path = tmp_path / "machine.json"
    assert Machine.read(path) == Machine()
    kept = replace(Machine(), process_gib=0.6, runs=3)
    kept.write(path)
    assert Machine.read(path) == kept
    for text in ("{", "[]", '{"process_gib": -1}', '{"colour": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match="calibrate"):
            Machine.read(path)
