"""Rows collected elsewhere: read in whatever spelling, never guessed, never a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.errors import UserError
from components.core.paths import PROJECT_ROOT
from components.planner.calibration_judge import judge
from components.planner.published_rows import read_rows, serving_rows, training_rows
from components.planner.serving_points import figures, points_of, read_points
from components.planner.serving_points import judge as judge_serving
from components.planner.training_points import Point
from components.planner.training_points import points_of as training_points

SHARED = PROJECT_ROOT.parent / "shared" / "data" / "planner"
RUN = {
    "model": "somebody-9b", "params_b": "9.1", "layers": "40", "hidden": "4096", "heads": "32", "kv_heads": "8",
    "vocab": "100000", "seq_len": "4096", "gpu": "8x NVIDIA A100-SXM4-80GB", "gpu_mem_gib": "", "n_gpus": "16",
    "gpus_per_node": "8", "strategy": "fsdp_full", "tp": "1", "pp": "1", "cp": "", "ep": "", "method": "full",
    "micro_batch": "2", "global_batch": "64", "grad_accum": "", "activation_checkpointing": "full",
    "precision": "bf16-mixed", "optimizer": "adamw_torch_fused", "peak_mem_gib": "40", "mem_kind": "reserved",
    "tokens_per_s_per_gpu": "2500", "outcome": "ran", "source": "example.org/blog", "arch_key": "", "notes": "",
}  # fmt: skip
START = {
    "model": "somebody-9b", "params_b": "9.1", "layers": "40", "hidden": "4096", "heads": "32", "kv_heads": "8",
    "head_dim": "128", "dtype": "AWQ-int4", "kv_dtype": "auto", "engine": "vLLM", "gpu": "NVIDIA L4",
    "gpu_mem_gib": "22.5", "tp": "1", "gpu_mem_util": "0.9", "max_model_len": "8192", "outcome": "ran",
    "kv_blocks_or_tokens": "60000", "source": "example.org/log",
}  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "nan", "inf", "1e99", "7", "1.5", "MLA", "n/a", "unknown", "8,192", "zero9", "x" * 99]
    ),
    st.text(max_size=8),
)


def one(**changes: str) -> Point:
    """The point of one row."""
    return training_points(training_rows([RUN | changes]))[0]


def test_a_model_that_no_table_knows_is_read_from_its_numbers() -> None:
    """Shape, GPU, software, accumulation and optimizer as the row means them."""
    run = one().run
    assert run is not None
    assert (run.architecture.layers, run.architecture.kv_heads, run.architecture.params) == (40, 8, 9.1e9)
    assert (run.gpu.name, run.gpu.memory_gib) == ("A100-80GB", 80.0)
    assert (run.framework, run.zero_stage, run.accumulation) == ("fsdp", 3, 2)
    assert (run.precision, run.optimizer, run.checkpointing) == ("bf16", "adamw", "full")
    assert one().counter == "reserved"


@pytest.mark.parametrize(
    ("changes", "framework"),
    [
        ({"source": "NVIDIA-NeMo/Megatron-Bridge docs"}, "megatron"),
        ({"notes": "axolotl 0.4"}, "huggingface"),
        ({"source": "pytorch/torchtitan docs"}, "torchtitan"),
        ({"strategy": "zero3"}, "deepspeed"),
        ({"strategy": "zero1", "tp": "2", "pp": "2"}, "megatron"),
        ({"strategy": "single", "n_gpus": ""}, "huggingface"),
        ({"notes": "unsloth+FA2"}, "unsloth"),
        ({"framework": "DeepSpeed 0.14", "source": "pytorch/torchtitan", "strategy": "zero2"}, "deepspeed"),
    ],
)
def test_software_follows_from_the_row(changes: dict[str, str], framework: str) -> None:
    """What the row names, else what such a strategy is usually run with."""
    run = one(**changes).run
    assert run is not None
    assert run.framework == framework


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seq_len": ""}, "sequence"),
        ({"micro_batch": "", "global_batch": ""}, "micro-batch"),
        ({"strategy": "magic"}, "strategy"),
        ({"n_gpus": "many"}, "number of GPUs"),
        ({"method": "dora"}, "'dora' is unknown"),
        ({"n_gpus": "6", "tp": "4"}, "do not divide"),
        ({"gpu": "X9", "gpu_mem_gib": ""}, "is unknown"),
        ({"model": "nemotron (hybrid mamba)"}, "every layer"),
        ({"params_b": "", "layers": ""}, "architecture"),
    ],
)
def test_a_row_that_does_not_say_enough_is_left_out_with_its_reason(changes: dict[str, str], reason: str) -> None:
    """No number is made up for it."""
    point = one(**changes)
    assert point.run is None
    assert reason in point.missing
    assert point.without("fit") == point.without("memory") == point.missing


def test_adapters_are_read_from_method_and_notes() -> None:
    """Rank and matrices as stated; else the software's public default."""
    stated = one(method="qlora-all", notes="lora_r=64; 4-bit").run
    default = one(method="lora").run
    assert stated is not None
    assert default is not None
    assert (stated.method, stated.lora_rank, stated.lora_targets) == ("qlora", 64, "all")
    assert (default.method, default.lora_rank, default.lora_targets) == ("lora", 8, "qv")


def test_a_start_up_is_read_in_other_spellings_too() -> None:
    """Quantisation, card and engine as logs spell them; another engine is left out."""
    points, left_out = points_of(serving_rows([START, START | {"engine": "sglang"}, START | {"dtype": "zip"}]))
    assert [point.setup.weights.name for point in points] == ["int4"]
    assert points[0].setup.gpu.name == "L4"
    assert points[0].setup.memory_gib == 22.5
    assert min(left_out.values()) == "another engine than vLLM"
    assert len(left_out) == 2


def test_columns_may_be_missing() -> None:
    """A table of two columns has no point that counts, and says why."""
    assert judge(training_points(training_rows([{"model": "a", "outcome": "ran"}])), {}).ran == 0
    points, left_out = points_of(serving_rows([{"model": "a"}]))
    assert points == []
    assert len(left_out) == 1


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({*RUN, *START})), TEXTS, max_size=6))
def test_no_cell_brings_it_down(cells: dict[str, str]) -> None:
    """Whatever stands in a cell: a point, or a reason."""
    points = training_points(training_rows([RUN | cells]))
    judge(points, {})
    assert points[0].run is not None or points[0].missing
    starts, left_out = points_of(serving_rows([START | cells]))
    assert len(starts) + len(left_out) == 1
    judge_serving(starts, [])


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    """One line, the path in it."""
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("x.csv", "none.csv"):
        with pytest.raises(UserError, match=name):
            read_rows(tmp_path / name)


def test_the_shared_start_ups_keep_the_promises_as_they_were_collected() -> None:
    """Read by the rules alone, without what a person added to the planner's own table."""
    if not SHARED.exists():
        pytest.skip("../shared/data/planner is not here")
    points, _ = points_of(serving_rows(read_rows(SHARED / "serve_points.csv")))
    found = figures(judge_serving(points, read_points()[0]))
    assert found["kv_rows"] >= 20
    assert found["kv_tokens_median_error"] <= 0.10
    assert found["ran_called_feasible"] >= 0.95
    assert found["failed_called_infeasible"] >= 0.80
    assert found["band_coverage"] >= 0.80


def test_the_promises_hold_for_models_known_by_their_numbers_alone() -> None:
    """Names taken away, the rows' own numbers of parameters, layers, widths and heads are enough."""
    if not SHARED.exists():
        pytest.skip("../shared/data/planner is not here")
    rows: list[Any] = [row | {"arch_key": "", "model": f"nobody-{n}"} for n, row in enumerate(_shared_runs())]
    found = judge(training_points(training_rows(rows)), {})
    assert found.ran_called_feasible >= 0.95 * found.ran
    assert found.failed_called_infeasible >= 0.8 * found.failed
    assert found.memory.median <= 0.10
    assert found.speed.median <= 0.20


def _shared_runs() -> list[dict[str, str]]:
    return [row for row in read_rows(SHARED / "train_points.csv") if "mamba" not in row["model"]]
