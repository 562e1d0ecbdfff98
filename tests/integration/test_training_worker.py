"""The worker's loop: ranks and accumulation change no data; a dropped step leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.errors import UserError
from components.core.recipe import Recipe
from components.core.records import ModelRef, TrainingSetRef
from components.models.causal_lm.prepare import prepare
from components.training.engine import check_device
from components.training.job import Job
from components.training.schedule import held_out_rows, learning_rate, parts_of_rank
from components.training.speed import MEASURED, CommunicationClock, Meter
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set, rows, tiny_recipe

SHAPES = ((1, 1), (2, 1), (1, 2), (2, 2))  # ranks, accumulation
TOLERANCE = 2e-5  # of a loss after ten steps: sums of 32-bit numbers in another order


def _prepared(job: Job, source: Path) -> Job:
    job.prepared.mkdir(parents=True)
    frames = [pd.read_parquet(source / f"{name}.parquet") for name in ("train", "validation")]
    prepare(job.recipe, TrainingSetRef.read(source), *frames, job.prepared)
    job.write()
    return job


def _recipe(**training: object) -> Recipe:
    return tiny_recipe(training={"steps": 10, "checks": 2, "learning_rate": 5e-3, "clip_norm": 0.5} | training)


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], list[dict[str, float]]]:
    """The curve of one job at each number of ranks and of micro-batches."""
    found = {}
    for ranks, accumulation in SHAPES:
        root = tmp_path_factory.mktemp(f"{ranks}x{accumulation}")
        publish_training_set(root / "set")
        model = forked_ranks.run(root, _recipe(ranks=ranks, accumulation=accumulation).to_json())
        assert isinstance(model, ModelRef), model
        found[ranks, accumulation] = list(model.curve)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_ranks_and_accumulation_leave_the_curve_as_it_is(
    curves: dict[tuple[int, int], list[dict[str, float]]], shape: tuple[int, int]
) -> None:
    """Every draw of noise included: losses and gradient norms within the tolerance, learning rates exactly."""
    expected, found = curves[1, 1], curves[shape]
    assert len(found) == len(expected)
    assert sum("loss" in point for point in expected) == 10
    for ours, theirs in zip(found, expected, strict=True):
        names = set(theirs) - MEASURED
        assert set(ours) - MEASURED == names
        for name in names - {"validation_auc"}:
            exact = name in {"lr", "step"}
            assert ours[name] == (theirs[name] if exact else pytest.approx(theirs[name], abs=TOLERANCE, rel=1e-4)), name


@pytest.mark.slow
def test_the_curve_tells_speed_memory_communication_and_stragglers(
    curves: dict[tuple[int, int], list[dict[str, float]]],
) -> None:
    """On a CPU without a stated peak all but the FLOP utilisation, which stays unknown."""
    points = [point for point in curves[2, 1] if "loss" in point]
    assert set(points[0]) & MEASURED == MEASURED - {"mfu"}
    for point in points:
        assert point["tokens_per_second"] > 0
        assert 0.05 < point["memory_gib"] < 8
        assert 0 < point["communication_share"] < 1
        assert 1 <= point["straggler_spread"] <= 2


@pytest.mark.slow
def test_a_dropped_step_changes_neither_weights_nor_optimizer(tmp_path: Path) -> None:
    """At every ZeRO stage, two ranks and two micro-batches: as if the step had never been."""
    source = publish_training_set(tmp_path / "set")
    for stage in range(4):
        _prepared(Job(tmp_path / f"stage-{stage}", "k", _recipe(zero_stage=stage, accumulation=2)), source)
    forked_ranks.call("training_drop", tmp_path, range(4), _recipe())
    found = json.loads((tmp_path / "drop.json").read_text())
    assert found == {str(stage): {"held": True, "moved": True, "same": True} for stage in range(4)}


@settings(deadline=None, max_examples=60)
@given(ranks=st.integers(1, 8), accumulation=st.integers(1, 6), micro=st.integers(1, 5))
def test_all_micro_batches_together_are_the_batch_in_order(ranks: int, accumulation: int, micro: int) -> None:
    """Turn by turn and rank by rank the slices follow each other, whatever their number."""
    batch = ranks * accumulation * micro
    training = tiny_recipe(training={"batch_size": batch, "ranks": ranks, "accumulation": accumulation}).training
    parts = [parts_of_rank(training, rank, ranks) for rank in range(ranks)]
    seen = [row for turn in range(accumulation) for rank in range(ranks) for row in range(batch)[parts[rank][turn]]]
    assert seen == list(range(batch))


def test_schedules_warm_up_and_end_where_they_say() -> None:
    """Constant stays, linear falls by equal amounts, both after the same warm-up."""
    about = {"steps": 100, "learning_rate": 1.0, "warmup_share": 0.1, "final_learning_rate_share": 0.0}
    linear, constant = (tiny_recipe(training=about | {"schedule": name}).training for name in ("linear", "constant"))
    assert {learning_rate(constant, step) for step in range(10, 100)} == {1.0}
    falls = np.diff([learning_rate(linear, step) for step in range(10, 100)])
    assert falls == pytest.approx(np.full(89, -0.01))
    assert learning_rate(constant, 0) == pytest.approx(0.1)
    assert learning_rate(linear, 0) == pytest.approx(0.1)


def test_a_validation_sample_keeps_both_classes_and_their_share() -> None:
    """The same rows in every process; all of them where none are asked for or more than there are."""
    labels = (np.arange(1000) % 10 == 0).astype(int)
    training = tiny_recipe(training={"validation_rows": 100}).training
    found = held_out_rows(labels, training)
    assert len(set(found)) == 100
    assert labels[found].sum() == 10
    assert (held_out_rows(labels, training) == found).all()
    few = tiny_recipe(training={"validation_rows": 2}).training
    assert set(labels[held_out_rows(labels, few)]) == {0, 1}
    for rows_asked in (0, 5000):
        every = tiny_recipe(training={"validation_rows": rows_asked}).training
        assert (held_out_rows(labels, every) == np.arange(1000)).all()


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({"batch_size": 9, "ranks": 2}, "not a multiple of training.ranks 2"),
        ({"batch_size": 10, "ranks": 2, "accumulation": 3}, "ranks 2 x training.accumulation 3; take 12"),
        ({"zero_stage": 0, "offload_optimizer": "cpu"}, "needs training.zero_stage 1"),
        ({"zero_stage": 2, "offload_parameters": "cpu"}, "needs training.zero_stage 3"),
    ],
)
def test_shapes_that_do_not_divide_or_offload_are_one_line(training: dict[str, object], says: str) -> None:
    """Batch = micro-batch x accumulation x ranks; what is suggested is taken."""
    with pytest.raises(UserError, match=says) as refused:
        tiny_recipe(training=training)
    assert "\n" not in str(refused.value)
    tiny_recipe(training={"batch_size": 12, "ranks": 2, "accumulation": 3})


@pytest.mark.parametrize("name", ["offload_optimizer", "offload_parameters", "precision"])
def test_what_a_cpu_cannot_honour_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offload from a CPU to itself, and bf16 on it; each names what to set."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    value = "bf16" if name == "precision" else "cpu"
    with pytest.raises(UserError, match=f"training.{name}"):
        check_device(tiny_recipe(training={"zero_stage": 3, name: value}).training)
    check_device(tiny_recipe().training)


def test_endless_texts_are_refused(tmp_path: Path) -> None:
    """A text of more than a million characters is a broken row; the line says which."""
    frame = rows(20, 1)
    frame.loc[7, "text"] = "x" * 1_000_001
    source = publish_training_set(tmp_path / "set", {"train": frame, "validation": rows(9, 2), "test": rows(9, 3)})
    with pytest.raises(UserError, match="row 7 has a text of 1,000,001 characters"):
        prepare(tiny_recipe(), TrainingSetRef.read(source), frame, rows(9, 2), tmp_path)


def test_speed_is_told_from_all_ranks() -> None:
    """Two ranks of 2 s and 1 s of own work within 4 s: shares and spread by hand."""
    meter = Meter(CommunicationClock(object(), blocking=True), peak_flops=100.0, tokens=80, flops=400.0)
    found = meter.values(np.array([[4.0, 4.0], [2.0, 3.0], [1.0, 1.5]]))
    assert found == {
        "tokens_per_second": 20.0,
        "memory_gib": 1.5,
        "mfu": 0.5,
        "communication_share": 0.625,
        "straggler_spread": pytest.approx(4 / 3, abs=1e-4),
    }
    unknown = Meter(CommunicationClock(object(), blocking=False), peak_flops=None, tokens=80)
    assert set(unknown.values(np.array([[4.0], [0.0], [1.0]]))) == {"tokens_per_second", "memory_gib"}
