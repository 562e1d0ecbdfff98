"""Section of the planner: what was predicted for this machine beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.report import words
from pipelines.report.facts import Facts
from pipelines.report.parts import section

# table, its key, what it is called, its unit
ROWS = (
    ("training", "peak_gib", "Peak memory of a training rank", "GiB"),
    ("training", "tokens_per_second", "Training speed, all ranks", "tokens/s"),
    ("serving", "peak_gib", "Peak memory of a model server", "GiB"),
)
CLOSE = 0.15  # differences up to this are what the planner promises for a machine that it was calibrated on


def plan(facts: Facts) -> dict[str, Any]:
    """Predicted beside measured, and by how much they differ."""
    title = "Plan and measurement"
    rows = [_row(facts.plan, *what) for what in ROWS]
    known = [row for row in rows if row["predicted"] != words.NONE or row["measured"] != words.NONE]
    if not known:
        return section("plan", title, "none", "", empty=True)
    compared = [row for row in known if row["difference"] != words.NONE]
    summary = (
        f"{len(compared)} of {len(known)} predictions could be compared. The verb plan calibrate fits the constants "
        "of this machine to its runs."
    )
    return section("plan", title, "none", summary, rows=known, said="for information")


def _row(plan: Mapping[str, Any], table: str, key: str, name: str, unit: str) -> dict[str, str]:
    found = plan.get(table)
    about: Mapping[str, Any] = found if isinstance(found, dict) else {}
    predicted, measured = (words.finite(about.get(f"{kind}_{key}")) for kind in ("predicted", "measured"))
    low, high = (words.finite(about.get(f"{end}_{key}")) for end in ("low", "high"))
    off = predicted / measured - 1 if predicted is not None and measured else None
    return {
        "name": name,
        "unit": unit,
        "predicted": words.number(predicted),
        "band": "" if low is None or high is None else f"{words.number(low)} to {words.number(high)}",
        "measured": words.number(measured),
        "difference": words.NONE if off is None else f"{off:+.0%}",
        "tone": "none" if off is None else "good" if abs(off) <= CLOSE else "warn",
    }
