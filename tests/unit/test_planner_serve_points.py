"""The serving planner against published start-ups and answer times, each source left out of the fit in turn."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from components.core.paths import PROJECT_ROOT
from components.planner.serving_points import TABLE, figures, fit, judge, read_points
from components.planner.serving_runtime import CONSTANTS
from components.planner.serving_speed import SPEED
from components.planner.serving_speed_points import fit_speed, read_speed_points, speed_figures

PUBLISHED = PROJECT_ROOT.parent / "shared" / "data" / "planner" / "serve_points.csv"


def test_the_figures_hold_with_each_source_left_out() -> None:
    """KV-cache tokens within 10 % at the median, runs called feasible, failures infeasible, bands cover 80 %."""
    points, _ = read_points()
    found = figures(judge(points))
    assert found["kv_rows"] >= 20
    assert found["ran_rows"] >= 20
    assert found["failed_rows"] >= 8
    assert found["kv_tokens_median_error"] <= 0.10
    assert found["ran_called_feasible"] >= 0.95
    assert found["failed_called_infeasible"] >= 0.80
    assert found["band_coverage"] >= 0.80


def test_every_row_is_judged_or_left_out_with_a_reason() -> None:
    """None is dropped in silence, and no row that was left out states all that is needed."""
    points, left_out = read_points()
    with TABLE.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(points) + len(left_out) == len(rows)
    assert all(left_out.values())
    unstated = [name for name, reason in left_out.items() if reason.endswith("is not stated")]
    for name in unstated:
        row = rows[int(name.split(":")[0].removeprefix("line ")) - 2]
        assert not all(row[column] for column in ("memory_gib", "utilisation", "tp", "layers"))


def test_the_shipped_constants_are_the_fit() -> None:
    """What plans use is what the table gives."""
    points, _ = read_points()
    for name, value in dataclasses.asdict(fit(points)).items():
        assert getattr(CONSTANTS, name) == pytest.approx(value, rel=0.01), name
    speeds, _ = read_speed_points()
    for name, value in dataclasses.asdict(fit_speed(speeds)).items():
        assert getattr(SPEED, name) == pytest.approx(value, rel=0.01), name


def test_a_fit_does_not_see_the_source_that_is_left_out() -> None:
    """Changing a source's printed parts changes no prediction of that source."""
    points, _ = read_points()
    source = points[0].source
    bent = [dataclasses.replace(p, outside_torch_gib=50.0) if p.source == source else p for p in points]
    plain = [row.memory.kv_tokens for row in judge(points) if row.point.source == source]
    assert plain == [row.memory.kv_tokens for row in judge(bent) if row.point.source == source]


def test_published_answer_times_hold_across_sources() -> None:
    """Median error under 25 %, bands cover 80 %, what is left out says why."""
    points, left_out = read_speed_points()
    found = speed_figures(points)
    assert found["times"] >= 10
    assert found["median_error"] <= 0.25
    assert found["band_coverage"] >= 0.80
    assert all(left_out.values())


def test_the_table_agrees_with_the_published_points() -> None:
    """Our numbers are those of the collected points, row by row."""
    if not PUBLISHED.exists():
        pytest.skip("the collected points are not here")
    ours = _rows(TABLE)
    theirs = _rows(PUBLISHED)
    assert len(ours) == len(theirs)
    names = {"memory_gib": "gpu_mem_gib", "utilisation": "gpu_mem_util", "weights_gib": "weights_gib", "tp": "tp",
             "kv_cache_gib": "kv_gib", "activations_gib": "act_gib", "outside_torch_gib": "nontorch_gib"}  # fmt: skip
    for mine, other in zip(ours, theirs, strict=True):
        assert all(mine[name] == other[column] for name, column in names.items()), mine["model"]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))
