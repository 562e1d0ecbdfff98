"""How well the planner predicts published runs of organisations that its constants have not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from components.planner.bands import memory_band, speed_band
from components.planner.calibration_fit import group, left_out_constants
from components.planner.memory import predict_memory
from components.planner.throughput import no_estimate, predict_speed
from components.planner.training_constants import TrainingConstants, training_constants
from components.planner.training_points import Point


@dataclass
class Errors:
    """Relative errors |predicted / reported - 1| and how many reported values lie in their bands."""

    by_group: dict[str, list[float]] = field(default_factory=dict)
    covered: int = 0

    @property
    def all(self) -> list[float]:
        """Errors of all points."""
        return sorted(error for errors in self.by_group.values() for error in errors)

    @property
    def median(self) -> float:
        """Median relative error."""
        return median(self.all)

    @property
    def p90(self) -> float:
        """The error that nine of ten points do not exceed."""
        return self.all[int(0.9 * (len(self.all) - 1))]

    @property
    def coverage(self) -> float:
        """Share of points in their band."""
        return self.covered / len(self.all)


@dataclass
class Judgement:
    """The figures that the planner promises, each organisation left out of the fit in turn."""

    memory: Errors = field(default_factory=Errors)
    speed: Errors = field(default_factory=Errors)
    ran: int = 0
    ran_called_feasible: int = 0
    failed: int = 0
    failed_called_infeasible: int = 0
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def judge(points: Sequence[Point], constants: Mapping[str, TrainingConstants] | None = None) -> Judgement:
    """Predict every point with constants and bands from the other organisations' points.

    With `constants` of other points (`left_out_constants` of the planner's own), organisations that are not among them
    are predicted with what the repository holds.
    """
    unseen = left_out_constants(points) if constants is None else constants
    found = Judgement(left_out={purpose: Counter() for purpose in ("memory", "speed", "fit")})
    for point in points:
        for purpose in found.left_out:
            if reason := point.without(purpose):
                found.left_out[purpose][reason] += 1
        known = unseen.get(group(point)) or training_constants()
        _feasibility(point, known, found)
        _memory(point, known, found.memory)
        _speed(point, known, found)
    return found


def _feasibility(point: Point, constants: TrainingConstants, found: Judgement) -> None:
    if point.run is None or point.without("fit"):
        return
    feasible = predict_memory(point.run, constants.memory).fits(point.run.gpu.usable_gib)
    if point.ran:
        found.ran += 1
        found.ran_called_feasible += feasible
    else:
        found.failed += 1
        found.failed_called_infeasible += not feasible
    if feasible != point.ran:
        found.wrong.append(f"{point.number} {point.model} ({group(point)}): {'ran' if point.ran else 'out of memory'}")


def _memory(point: Point, constants: TrainingConstants, errors: Errors) -> None:
    if point.run is None or point.peak_gib is None or point.without("memory"):
        return
    value = predict_memory(point.run, constants.memory).of_kind(point.counter)
    band = memory_band(point.run, value, constants.bands)
    errors.by_group.setdefault(group(point), []).append(abs(value / point.peak_gib - 1))
    errors.covered += band.low <= point.peak_gib <= band.high


def _speed(point: Point, constants: TrainingConstants, found: Judgement) -> None:
    if point.run is None or point.tokens_per_second is None or point.without("speed"):
        return
    if reason := no_estimate(point.run, constants.speed):
        found.left_out["speed"][reason] += 1
        return
    value = predict_speed(point.run, constants.speed).tokens_per_second
    band = speed_band(point.run, value, constants.bands)
    found.speed.by_group.setdefault(group(point), []).append(abs(value / point.tokens_per_second - 1))
    found.speed.covered += band.low <= point.tokens_per_second <= band.high
