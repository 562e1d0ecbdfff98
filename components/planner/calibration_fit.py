"""Fit of the planner's constants to published runs: a robust least squares of log ratios, drawn to where it starts.

Every constant is positive and fitted as a logarithm. Each repository weighs at most as 25 points, so that one long
table does not decide. A constant that the points do not tell stays where it starts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from components.planner.bands import CLASSES, memory_class, speed_class
from components.planner.memory import predict_memory
from components.planner.throughput import no_estimate, predict_speed
from components.planner.training_constants import Bands, MemoryConstants, SpeedConstants, TrainingConstants
from components.planner.training_points import Point

HEAVIEST = 25.0  # a repository's points weigh at most as this many
PULL = 0.35  # how strongly a constant is drawn to its start: as a residual of this much a unit of its logarithm
KNEE = 0.12  # residuals beyond this count linearly (Huber)
KEPT_MEMORY = ("needed_gib", "working_fused", "selective")  # too few points tell them
KEPT_SPEED = ("launch_fused_s", "attention")
BAND_LEVEL = 0.85  # a little above the promised 0.8: bands are judged on sources that they have not seen
C = TypeVar("C", MemoryConstants, SpeedConstants)
# Few repositories stand for all software: no band is narrower than what the field states for its class.
NARROWEST = {"memory": {"common": 0.1, "rare": 0.2}, "speed": {"common": 0.2, "rare": 0.35}}
WIDEST = 0.7
STEPS = 25


def fit(points: Sequence[Point]) -> TrainingConstants:
    """The constants that fit the points, and bands from what each repository shows when it is left out."""
    memory, speed = _constants(points)
    residuals = left_out_residuals(points)
    provenance = {
        "method": "components/planner/calibration_fit.py, run by benchmarks/bench_planner.py --fit",
        "table": "components/planner/facts/training_points.csv",
        "memory_points": sum(point.without("memory") is None for point in points),
        "speed_points": sum(point.without("speed") is None for point in points),
        "repositories": len({group(point) for point in points}),
    }
    return TrainingConstants(memory, speed, bands_from(residuals), provenance)


def group(point: Point) -> str:
    """The organisation behind a source: all its tables are left out together."""
    parts = point.source.split("/")
    owner = parts[1] if parts[0] in ("github.com", "huggingface.co") and len(parts) > 1 else parts[0]
    return "NVIDIA" if owner.startswith("NVIDIA") else owner


def left_out_constants(points: Sequence[Point]) -> dict[str, TrainingConstants]:
    """For every organisation the constants and bands that the other organisations' points give."""
    found = {}
    for name in sorted({group(point) for point in points}):
        others = [point for point in points if group(point) != name]
        memory, speed = _constants(others)
        inner = left_out_residuals(others)
        found[name] = TrainingConstants(memory, speed, bands_from(inner))
    return found


Residuals = dict[str, dict[str, list[tuple[str, float]]]]


def left_out_residuals(points: Sequence[Point]) -> Residuals:
    """log(predicted / reported) by quantity and class, each organisation predicted from the others' points."""
    found: Residuals = {kind: {name: [] for name in CLASSES} for kind in ("memory", "speed")}
    for name in sorted({group(point) for point in points}):
        memory, speed = _constants([point for point in points if group(point) != name])
        for point in points:
            if group(point) == name and point.run is not None:
                if point.without("memory") is None:
                    found["memory"][memory_class(point.run)].append((name, memory_residual(point, memory)))
                if point.without("speed") is None and no_estimate(point.run, speed) is None:
                    found["speed"][speed_class(point.run)].append((name, speed_residual(point, speed)))
    return found


def bands_from(residuals: Residuals) -> Bands:
    """Half widths: the level's quantile of absolute residuals, every organisation weighing by its root of points."""
    return Bands(
        *(
            {name: max(_width(of_class), NARROWEST[kind][name]) for name, of_class in found.items()}
            for kind, found in residuals.items()
        )
    )


def memory_residual(point: Point, constants: MemoryConstants) -> float:
    """log(predicted / reported) of a peak."""
    assert point.run is not None
    assert point.peak_gib is not None
    return math.log(predict_memory(point.run, constants).of_kind(point.counter) / point.peak_gib)


def speed_residual(point: Point, constants: SpeedConstants) -> float:
    """log(predicted / reported) of tokens/s."""
    assert point.run is not None
    assert point.tokens_per_second is not None
    return math.log(predict_speed(point.run, constants).tokens_per_second / point.tokens_per_second)


def _constants(points: Sequence[Point]) -> tuple[MemoryConstants, SpeedConstants]:
    memory = tuple(point for point in points if point.without("memory") is None)
    speed = tuple(point for point in points if point.without("speed") is None)
    return _memory_constants(memory), _speed_constants(speed)


@lru_cache(maxsize=256)  # most organisations have points of one kind only, so the same fit is asked for again
def _memory_constants(points: tuple[Point, ...]) -> MemoryConstants:
    return _solve(MemoryConstants(), KEPT_MEMORY, points, memory_residual)


@lru_cache(maxsize=256)
def _speed_constants(points: tuple[Point, ...]) -> SpeedConstants:
    return _solve(SpeedConstants(), KEPT_SPEED, points, speed_residual)


def _solve(start: C, kept: Sequence[str], points: Sequence[Point], residual: Callable[[Point, Any], float]) -> C:
    """Levenberg-Marquardt on logarithms of the constants with Huber weights."""
    import numpy as np

    if not points:
        return start
    names = [f.name for f in fields(start) if f.name not in kept]
    counts = Counter(group(point) for point in points)
    weights = np.array([min(1.0, HEAVIEST / counts[group(point)]) ** 0.5 for point in points])

    def moved(x: Any) -> C:
        return replace(start, **{n: getattr(start, n) * math.exp(v) for n, v in zip(names, x, strict=True)})

    def residuals(x: Any) -> Any:
        constants = moved(x)
        return np.array([residual(point, constants) for point in points])

    def loss(r: Any, x: Any) -> float:
        big = np.abs(r)
        huber = np.where(big <= KNEE, r**2, 2 * KNEE * big - KNEE**2)
        return float((weights**2 * huber).sum() + (PULL**2) * (x**2).sum())

    x, damping = np.zeros(len(names)), 1e-2
    r = residuals(x)
    for _ in range(STEPS):
        columns = [(residuals(x + 1e-4 * unit) - r) / 1e-4 for unit in np.eye(len(names))]
        jacobian = np.stack(columns, axis=1)
        w = weights**2 * np.minimum(1.0, KNEE / np.maximum(np.abs(r), 1e-9))
        hessian = jacobian.T @ (w[:, None] * jacobian) + PULL**2 * np.eye(len(names))
        step = np.linalg.solve(hessian + damping * np.eye(len(names)), jacobian.T @ (w * r) + PULL**2 * x)
        tried = np.clip(x - step, -2.0, 2.0)
        found = residuals(tried)
        if loss(found, tried) < loss(r, x):
            done = float(np.abs(tried - x).max()) < 1e-3
            x, r, damping = tried, found, damping / 3
            if done:
                break
        else:
            damping *= 5
            if damping > 1e4:
                break
    return moved(x)


def _width(residuals: Sequence[tuple[str, float]]) -> float:
    if not residuals:
        return WIDEST
    counts = Counter(name for name, _ in residuals)
    ordered = sorted((abs(value), counts[name] ** -0.5) for name, value in residuals)
    total = sum(weight for _, weight in ordered)
    seen = 0.0
    for size, weight in ordered:
        seen += weight
        if seen >= BAND_LEVEL * total:
            return min(size, WIDEST)
    return WIDEST
