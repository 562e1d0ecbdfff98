"""Synthetic traffic straight into a judge: a whole rollout in milliseconds, for simulations."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.rollout.margins import Margins
from components.rollout.observations import observe
from components.rollout.verdict import CONTINUE, PASS, Judge, Verdict
from tests.fakes.fake_serving import LABELS, Behaviour, FakeServing, fake_score

VERSIONS = {"stable": "1", "canary": "2"}
ROWS = [{"row_id": f"row-{number}"} for number in range(500)]
BATCH = 15


def laptop_margins(**changes: Any) -> Margins:
    """The margins of the laptop recipe."""
    values: dict[str, Any] = {
        "errors": 0.05,
        "latency_ratio": 2.0,
        "score_shift": 0.05,
        "alpha": 0.05,
        "pairs": 200,
        "canary_requests": 100,
        "threshold": 0.5,
        "stable_errors": 0.06,
        "slo_seconds": 1.0,
    }
    return Margins(**{**values, **changes})


@dataclass(frozen=True)
class Simulated:
    """How a simulated rollout ended: stage 0 is the shadow, else the weight; seconds of the stage that ended it."""

    weight: int
    verdict: Verdict
    seconds: float
    requests: int


def simulate(
    seed: int,
    canary: Behaviour,
    stable: Behaviour | None = None,
    weights: tuple[int, ...] = (0, 50),
    rate: float = 30.0,
    deadline: float = 150.0,
    spread: float = 0.3,
) -> Simulated:
    """One rollout of the laptop recipe; weight 0 is the shadow."""
    stack = FakeServing({"canary": canary, "stable": stable or Behaviour()}, seed=seed, latency_spread=spread)
    for arm, version in VERSIONS.items():
        stack.start(arm, Path(), version, arm)
    draws = random.Random(seed)
    judge = Judge(laptop_margins(), sum(weight > 0 for weight in weights))
    judge.baseline([observe(one, VERSIONS, LABELS) for one in stack.decide(draws.choices(ROWS, k=60), rate)])
    total = 0
    for weight in weights:
        stack.set_shadow(weight == 0)
        stack.set_weight(weight)
        if weight:
            judge.begin_step(weight)
        else:
            judge.begin_shadow()
        sent, verdict = 0, Verdict(CONTINUE, "", "")
        while verdict.outcome == CONTINUE:
            rows = draws.choices(ROWS, k=BATCH)
            for row, decision in zip(rows, stack.decide(rows, rate), strict=True):
                judge.add(observe(decision, VERSIONS, LABELS, fake_score(row)))
            sent += BATCH
            verdict = judge.verdict(sent / rate, deadline)
        total += sent
        if verdict.outcome != PASS:
            break
    return Simulated(weight, verdict, sent / rate, total)
