"""The design's operating characteristics at 20 requests a second, and how this judge does on the same traffic."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import minimize_scalar

from components.rollout.verdict import Judge
from tests.fakes.verdict_traffic import RATE, Arm, Ended, LiveTraffic, design_margins, step_alone


@dataclass(frozen=True)
class Row:
    """A change, how the canary answers, and the design's seconds by weight: median and 90th percentile (or None)."""

    change: str
    canary: Arm
    seconds: dict[int, tuple[float, float | None]]
    outcome: str = "fail"


TABLE = (
    Row("errors .5 → 100 %", Arm(errors=1.0), {10: (1.4, 2.6), 50: (0.5, None)}),
    Row("errors .5 → 20 %", Arm(errors=0.2), {10: (8.3, 19.5), 50: (4.2, None)}),
    Row("errors .5 → 5 %", Arm(errors=0.05), {10: (78.0, None), 50: (30.0, None)}),
    Row("errors .5 → 2 %", Arm(errors=0.02), {10: (816.0, None), 50: (268.0, None)}),
    Row("p95 x2", Arm(slower=2.0), {10: (20.0, None), 50: (13.0, None)}),
    Row("p95 x5", Arm(slower=5.0), {10: (4.7, None), 50: (5.8, None)}),
    Row("p95 x1.5 (p50 test)", Arm(slower=1.5), {10: (85.0, None), 50: (36.0, None)}),
    Row("all hang", Arm(hang=True), {10: (4.3, None), 50: (5.7, None)}),
)
PROVED = {  # an identical canary: metric, weight, margin of errors → seconds until that metric alone is proved
    ("errors", 10, 0.02): 114.0,
    ("errors", 10, 0.01): 301.0,
    ("errors", 50, 0.02): 26.0,
    ("errors", 50, 0.01): 71.0,
    ("latency_p95", 10, 0.02): 111.0,
    ("latency_p95", 50, 0.01): 40.0,
}


@dataclass(frozen=True)
class Measured:
    """Seconds to the outcome over the runs that came to it, and what all runs came to."""

    median: float
    p90: float
    outcomes: Counter[str]
    rules: Counter[str]


def measure(row: Row, weight: int, runs: int, deadline: float = 6_000.0) -> Measured:
    """Run one cell of the table. 2 % of errors pass +2 pp at 10 %: there only an abort ends a run."""
    ended = [
        step_alone(f"{row.change} {weight} {run}", weight, row.canary, deadline, **_only(row)) for run in range(runs)
    ]
    return Measured(*_quantiles(ended, row.outcome), _counts(ended, "outcome"), _counts(ended, "rule"))


def proved_seconds(metric: str, weight: int, margin: float, runs: int) -> float:
    """Median seconds until one metric of an identical canary is proved to be no worse."""
    return sorted(_proved(run, metric, weight, margin) for run in range(runs))[runs // 2]


def _proved(run: int, metric: str, weight: int, margin: float) -> float:
    traffic = LiveTraffic(f"proved {run} {weight}", Arm())
    judge = Judge(design_margins(errors=margin, step_errors=()), 1)
    judge.baseline(traffic.baseline())
    judge.begin_step(weight)
    requests = 0
    while judge.evidence_for(metric) < judge.margins.evidence:
        judge.add(traffic.requests(weight, 1)[0])
        requests += 1
    return requests / RATE


def _only(row: Row) -> dict[str, object]:
    """Where an abort is awaited, no pass ends the run first."""
    return {"canary_requests": 10**9} if row.outcome == "fail" else {}


def _quantiles(ended: list[Ended], outcome: str) -> tuple[float, float]:
    seconds = sorted(one.seconds if one.verdict.outcome == outcome else math.inf for one in ended)
    return seconds[len(seconds) // 2], seconds[min(len(seconds) - 1, int(0.9 * len(seconds)))]


def _counts(ended: list[Ended], what: str) -> Counter[str]:
    return Counter(getattr(one.verdict, what) for one in ended)


def clairvoyant_seconds(
    runs: int, weight: float, canary: float = 0.05, stable: float = 0.005, margin: float = 0.005
) -> float:
    """Median seconds of the best test of this kind that knows both rates beforehand, at the same budget.

    One likelihood ratio against the nearest null point, stopped at 1 / (α x share of errors x share of the step).
    """
    divergence: Callable[[float, float], float] = lambda p, q: (  # noqa: E731 - an oracle in one expression
        p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    )
    null = minimize_scalar(
        lambda t: weight * divergence(canary, t + margin) + (1 - weight) * divergence(stable, t),
        bounds=(1e-6, 0.5),
        method="bounded",
        options={"xatol": 1e-12},
    ).x
    factors = {
        (True, True): math.log(canary / (null + margin)),
        (True, False): math.log((1 - canary) / (1 - null - margin)),
        (False, True): math.log(stable / null),
        (False, False): math.log((1 - stable) / (1 - null)),
    }
    enough = math.log(20 / (0.4 * (0.5 if weight < 0.5 else 0.8)))
    return sorted(_one_course(run, weight, (stable, canary), factors, enough) for run in range(runs))[runs // 2]


def _one_course(
    run: int, weight: float, rates: tuple[float, float], factors: dict[tuple[bool, bool], float], enough: float
) -> float:
    draws, log, requests = random.Random(f"clairvoyant {run} {weight}"), 0.0, 0
    while log < enough:
        arm = draws.random() < weight
        log += factors[arm, draws.random() < rates[arm]]
        requests += 1
    return requests / RATE
