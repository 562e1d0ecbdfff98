"""Published answer times: the three numbers of the roofline fitted from them, and how well it holds elsewhere."""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.gpus import gpu_for
from components.planner.models import model_named
from components.planner.quantisation import weight_format
from components.planner.serving_speed import Replica, SpeedConstants, cannot_estimate, speed

TABLE = Path(__file__).parent / "facts" / "serve_speed_points.csv"
GRID = (
    (0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60),
    (0.60, 0.70, 0.75, 0.80, 0.85, 0.90),
    (20e-6, 40e-6, 60e-6, 80e-6, 100e-6, 130e-6),
)
COVERAGE = 0.85
NARROWEST = 1.34  # one model on one machine gave 5.1 and 9.1 thousand tokens/s in two containers: 1.34 either way
EARLY = "an engine of 2023, before CUDA graphs"


@dataclass(frozen=True)
class SpeedPoint:
    """One published time: `kind` is ttft_ms, itl_ms or request_ms."""

    name: str
    source: str
    replica: Replica
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    kind: str
    seen_ms: float


def read_speed_points(path: Path = TABLE) -> tuple[list[SpeedPoint], dict[str, str]]:
    """Times of which a prediction can be made, and name → reason of the rows left out."""
    points: list[SpeedPoint] = []
    left_out = {}
    with path.open(newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), start=2):
            name = f"line {number}: {row['model']} on {row['tp']} x {row['gpu']}"
            replica = Replica(
                model=_model(row), gpu=gpu_for(row["gpu"], float(row["memory_gib"])),
                weights=weight_format(row["weights"]), tp=int(row["tp"]),
            )  # fmt: skip
            if reason := cannot_estimate(replica) or (EARLY if row["remark"] == "early engine" else ""):
                left_out[name] = reason.removeprefix("no estimate: ")
                continue
            kinds = ["ttft_ms"] if row["remark"] == "eager" else ["ttft_ms", "itl_ms", "request_ms"]
            if row["remark"] == "eager":
                left_out[f"{name}, itl_ms"] = "eager mode: launches are not in CUDA graphs"
            points += [
                SpeedPoint(
                    name, row["source"], replica, int(row["concurrency"]), int(row["prompt_tokens"]),
                    int(row["output_tokens"]), kind, float(row[kind]),
                )
                for kind in kinds if row[kind]
            ]  # fmt: skip
    return points, left_out


def predicted_ms(point: SpeedPoint, constants: SpeedConstants) -> float:
    """The time that is predicted; a fixed batch reads all its prompts in the time of one answer."""
    found = speed(point.replica, point.concurrency, point.prompt_tokens, point.output_tokens, constants)
    return float(getattr(found, point.kind))


def fit_speed(points: Sequence[SpeedPoint]) -> SpeedConstants:
    """The numbers on a grid with the least sum of absolute log errors; the band from errors across sources.

    Points of one source share an engine and a machine, so the band is taken from predictions made without the point's
    own source.
    """
    best = _best(points)
    scores = sorted(abs(miss) for miss in _across(points))
    rank = min(math.ceil(COVERAGE * (len(scores) + 1)), len(scores)) - 1
    return replace(best, band=max(math.exp(scores[rank]), NARROWEST))


def error(point: SpeedPoint, constants: SpeedConstants) -> float:
    """Natural logarithm of predicted over seen."""
    return math.log(predicted_ms(point, constants) / point.seen_ms)


def speed_figures(points: Sequence[SpeedPoint]) -> dict[str, float]:
    """Errors and coverage with each source left out of the fit in turn."""
    fits = {source: fit_speed([p for p in points if p.source != source]) for source in {p.source for p in points}}
    errors = [(error(point, fits[point.source]), fits[point.source].band) for point in points]
    return {
        "times": len(points),
        "median_error": statistics.median(abs(math.expm1(e)) for e, _ in errors),
        "band_coverage": statistics.mean(abs(e) <= math.log(band) for e, band in errors),
    }


def _best(points: Sequence[SpeedPoint]) -> SpeedConstants:
    return min((SpeedConstants(*numbers) for numbers in itertools.product(*GRID)), key=lambda c: _miss(points, c))


def _across(points: Sequence[SpeedPoint]) -> list[float]:
    sources = {point.source for point in points}
    bests = {source: _best([p for p in points if p.source != source]) for source in sources}
    return [error(point, bests[point.source]) for point in points]


def _miss(points: Sequence[SpeedPoint], constants: SpeedConstants) -> float:
    return sum(abs(error(point, constants)) for point in points)


def _model(row: dict[str, str]) -> Architecture:
    try:
        return model_named(row["model"])
    except UserError:
        return Architecture.from_numbers(row["model"], params=float(row["params_b"]) * 1e9)
