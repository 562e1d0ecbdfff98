"""The section about what may go wrong with a model later: changed and hostile inputs, drift, what it gives away."""

from __future__ import annotations

from typing import Any

from components.core.records import Evidence
from pipelines.report import words
from pipelines.report.charts import Whisker, interval_chart
from pipelines.report.facts import Facts
from pipelines.report.parts import cell, missing, section, whisker

SHIFTS = {"mean_shift": "Mean shift", "p95_shift": "95th percentile", "flip_rate": "Flips", "invalid_rate": "Invalid"}
MEMORY = {
    "membership_auc": "Membership test, AUC",
    "completion_rate_train": "Training texts completed",
    "completion_rate_heldout": "Held-out texts completed",
}


def robustness(facts: Facts) -> dict[str, Any]:
    """Score shifts by change of the input, drift of test against training, memorisation, and what was not measured."""
    found, title = facts.evidence, "Robustness"
    if found is None:
        return missing(facts, "robustness", title, "evaluate")
    if not found.parts:
        return section("robustness", title, "none", "", empty=True)
    invalid = found.invalid_rate
    summary = "The inputs of a sample of test rows were changed, and hostile texts put into them."
    if invalid is not None:
        summary = (
            f"{words.number(invalid.positives)} of {words.number(invalid.n)} answers to changed and hostile inputs "
            "were no member of the closed set of labels."
        )
    return section(
        "robustness",
        title,
        "none" if invalid is None else "warn" if invalid.positives else "good",
        summary,
        columns=list(SHIFTS.values()),
        rows=[
            {"name": words.plain(name), "cells": [cell(measured.get(key)) for key in SHIFTS]}
            for name, measured in found.robustness.items()
        ],
        chart=interval_chart(
            "Mean change of the score",
            "Each row is a change of the input, with its 95 % interval.",
            [whisker(words.plain(name), item.get("mean_shift"), True) for name, item in found.robustness.items()],
            "mean change of the score",
        ),
        drift=_drift(found),
        facts=_facts(found),
        open=[(words.plain(name), said) for name, said in found.parts.items() if said != "measured"],
    )


def _drift(found: Evidence) -> Any:
    """Each column's index; the interval runs from zero to what samples of one distribution would show."""
    rows = [Whisker(name, item.get("psi"), 0.0, item.get("noise"), "own") for name, item in found.drift.items()]
    return interval_chart(
        "Drift of test against training",
        "Each row is a column's population stability index; the line at zero is what chance would show.",
        sorted(rows, key=lambda row: -(words.finite(row.value) or 0.0)),
        "population stability index",
    )


def _facts(found: Evidence) -> list[tuple[str, str]]:
    """Single figures in words."""
    told = [(name, _ended(found, key)) for key, name in MEMORY.items() if key in found.memorisation]
    finds = ", ".join(
        f"{words.plain(kind).lower()} {words.number(count)}" for kind, count in found.personal_data.items()
    )
    told += [("Personal data in the model's files", finds)] if finds else []
    if found.latency_ms:
        told.append(("One row offline, 95th percentile", f"{words.number(found.latency_ms.get('offline_p95'), 2)} ms"))
    if found.cost_per_thousand is not None:
        told.append(("Scoring 1,000 rows in batches", words.number(found.cost_per_thousand, 4)))
    return told


def _ended(found: Evidence, key: str) -> str:
    shown = cell(found.memorisation[key])
    return f"{shown['value']} ({shown['interval']})" if shown["interval"] else shown["value"]
