"""The section about the rollout: weights, verdicts, and why the margins are what they are."""

from __future__ import annotations

from typing import Any

from pipelines.report import words
from pipelines.report.charts import Axis, Series, line_chart
from pipelines.report.facts import Facts
from pipelines.report.parts import RESULT, TONE, missing, rules, section


def canary(facts: Facts) -> dict[str, Any]:
    """How the candidate met traffic: weights over time, verdicts, rules, and why the margins are what they are."""
    report, title = facts.rollout, "Canary"
    if report is None:
        return missing(facts, "canary", title, "rollout")
    state = {"passed": "good", "rolled_back": "bad"}.get(report.outcome, "warn")
    ends = [(event.seconds, event.weight) for event in report.timeline]
    if ends:
        ends.append((ends[-1][0] * 1.04, ends[-1][1]))
    weights = line_chart(
        "Traffic of the candidate",
        "Share of decisions drawn for the candidate over the rollout's seconds.",
        [Series("weight", ends, "a", steps=True)],
        "seconds since the rollout began",
        Axis("candidate, %", 0.0, 100.0),
        height=200,
    )
    return section(
        "canary",
        title,
        state,
        report.reason,
        first=not report.stable_version,
        engine=words.engine(report.engine),
        requests=words.number(report.requests),
        failed=words.number(report.failed_requests),
        latency=[
            (words.plain(name), f"{words.number(value, 1)} ms") for name, value in sorted(report.latency_ms.items())
        ],
        weights=weights if any(weight for _, weight in ends) else None,
        timeline=[
            {
                "at": words.duration(event.seconds),
                "stage": words.plain(event.stage),
                "weight": f"{event.weight} %",
                "text": event.text,
                "verdict": RESULT.get(event.verdict, event.verdict),
                "tone": TONE.get(event.verdict, "none"),
            }
            for event in report.timeline
        ],
        rules=rules(report.rules),
        margins=_margins(facts),
    )


def _margins(facts: Facts) -> str:
    """The recipe's margins in words, and why they are wide."""
    asked = facts.recipe.get("rollout")
    if not isinstance(asked, dict) or words.finite(asked.get("error_margin")) is None:
        return ""
    errors, latency = words.number(100 * asked["error_margin"]), words.number(asked.get("latency_ratio"), 1)
    deadline, rate = (words.number(asked.get(name)) for name in ("deadline_seconds", "requests_per_second"))
    return (
        f"The candidate may be worse by at most {errors} percentage points of errors, {latency} times the latency and "
        f"a mean score shift of {words.number(asked.get('score_shift'))}. On one machine these margins are wide on "
        f"purpose: the rollout has at most {deadline} seconds at {rate} requests a second, both versions share the "
        "same cores, and the traffic is held-out rows played again. That little traffic cannot prove a small "
        "difference. A cluster with hours of real traffic takes narrow ones."
    )
