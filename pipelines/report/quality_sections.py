"""Sections about how good the model is: evaluation, fairness, gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from components.core.records import Evidence, Interval
from pipelines.report import words
from pipelines.report.charts import Axis, Series, interval_chart, line_chart
from pipelines.report.facts import Facts
from pipelines.report.parts import TONE, cell, missing, rules, section, whisker

ABOUT_GROUPS = ("group_gap", "fairness")
OTHERS = ":others"  # the slice of a group's complement


def evaluation(facts: Facts) -> dict[str, Any]:
    """Metrics with intervals beside the baselines, ROC and calibration."""
    found, title = facts.evidence, "Evaluation"
    if found is None:
        return missing(facts, "evaluation", title, "evaluate")
    champion = f" and champion version {found.champion_version}" if found.champion_version else ""
    summary = (
        f"{words.number(found.rows)} test rows, {words.number(found.positives)} positive, later than all training rows "
        f"and {_used(found.test_window_uses)}. Baselines{champion} are measured on the same rows; intervals are 95 %."
    )
    named = {
        "This model": found.metrics,
        **({f"Champion {found.champion_version}": found.champion} if found.champion else {}),
    }
    named |= {words.plain(name): metrics for name, metrics in found.baselines.items()}
    shown = [name for name in words.METRICS if name in found.metrics]
    difference = found.champion.get("auc_difference")
    return section(
        "evaluation",
        title,
        "good" if words.finite(_auc(found.metrics)) is not None else "warn",
        summary,
        columns=[(words.metric(name), "lower is better" if name in words.LOWER_IS_BETTER else "") for name in shown],
        table=[
            {"name": name, "cells": [cell(metrics.get(metric)) for metric in shown]} for name, metrics in named.items()
        ],
        comparison=interval_chart(
            "Test AUC beside the baselines",
            "Each row is an estimate with its 95 % interval.",
            [whisker(name, metrics.get("auc"), name == "This model") for name, metrics in named.items()],
            "test AUC",
        ),
        difference=cell(difference) if difference else None,
        roc=line_chart(
            "ROC curve",
            "True positive rate against false positive rate on the test rows; the diagonal is chance.",
            [Series("this model", found.curves.get("roc", []), "a")],
            Axis("false positive rate", 0.0, 1.0),
            Axis("true positive rate", 0.0, 1.0),
            diagonal=True,
        ),
        recall=_precision_recall(found),
        calibration=_calibration(found.curves.get("calibration", [])),
        operating=[(words.metric(name), cell(found.operating.get(name))) for name in words.OPERATING]
        if found.operating
        else [],
        threshold=words.number(found.threshold),
    )


def fairness(facts: Facts) -> dict[str, Any]:
    """Metrics by protected group, each beside everybody else."""
    found, title = facts.evidence, "Fairness"
    if found is None:
        return missing(facts, "fairness", title, "evaluate")
    if not found.slices:
        return section("fairness", title, "none", "The recipe names no protected group.", empty=True)
    judged = [rule for rule in facts.version.gate if rule.rule in ABOUT_GROUPS] if facts.version else []
    tones = {TONE.get(rule.outcome, "warn") for rule in judged}
    state = next((tone for tone in ("bad", "warn", "good") if tone in tones), "none")
    rows = [
        {
            "name": _group(name),
            "small": found.slice_states.get(name) == "insufficient",
            "rows": words.number(_largest(metrics, "n")),
            "positives": words.number(_largest(metrics, "positives")),
            "cells": [cell(metrics.get(metric)) for metric in ("auc", "brier", "ece")],
        }
        for name, metrics in found.slices.items()
    ]
    return section(
        "fairness",
        title,
        state,
        "The same measures by protected group and for everybody else. Small groups have wide intervals.",
        rows=rows,
        columns=[words.metric(name) for name in ("auc", "brier", "ece")],
        differences=[
            {
                "name": name,
                "state": fair.state,
                "reason": fair.reason or ", ".join(fair.left_out),
                "cells": [cell(fair.differences.get(f"{measure}_difference")) for measure in words.DIFFERENCES],
            }
            for name, fair in found.fairness.items()
        ],
        difference_columns=list(words.DIFFERENCES.values()),
        judged=rules(judged),
        chart=interval_chart(
            "Test AUC by group",
            "Each row is a group or everybody outside it, with its 95 % interval; the line is the whole test set.",
            [
                whisker(_group(name), metrics.get("auc"), not name.endswith(OTHERS))
                for name, metrics in found.slices.items()
            ],
            "test AUC",
            _auc(found.metrics),
        ),
    )


def gate(facts: Facts) -> dict[str, Any]:
    """The gate, rule by rule."""
    version, title = facts.version, "Gate"
    if version is None:
        return missing(facts, "gate", title, "register")
    stopped = [rule for rule in version.gate if rule.outcome in ("fail", "insufficient")]
    counted = [rule for rule in version.gate if rule.outcome != "info"]
    summary = f"{len(counted) - len(stopped)} of {len(counted)} rules passed"
    against = (
        f" against champion version {version.champion_version}"
        if version.champion_version
        else ", with no champion yet"
    )
    ending = "." if version.gate_passed else f". The version was not let through: {version.reason}"
    return section(
        "gate",
        title,
        "good" if version.gate_passed else "bad",
        summary + against + ending,
        rules=rules(version.gate),
    )


def _used(uses: int) -> str:
    """How often the test rows were looked at."""
    return "used once" if uses in (0, 1) else f"used for {words.number(uses)} candidates so far"


def _precision_recall(found: Evidence) -> Any:
    return line_chart(
        "Precision and recall",
        "Precision against recall on the test rows, from the highest score down.",
        [Series("this model", found.curves.get("precision_recall", []), "a")],
        Axis("recall", 0.0, 1.0),
        Axis("precision", 0.0, 1.0),
    )


def _calibration(points: Sequence[Sequence[object]]) -> Any:
    return line_chart(
        "Calibration",
        "Rate of positives against mean score in ten groups of equal size; on the diagonal a score means what it says.",
        [Series("this model", points, "a", dots=True)],
        _reach("mean score", points, 0),
        _reach("rate of positives", points, 0),
        diagonal=True,
    )


def _reach(label: str, points: Sequence[Sequence[object]], low: float) -> Axis:
    """A common range for both axes of the calibration chart, so that its diagonal is the diagonal."""
    seen = [value for point in points for value in map(words.finite, point[:2]) if value is not None]
    return Axis(label, low, min(1.0, max(seen, default=1.0) * 1.08) or 1.0)


def _auc(metrics: Mapping[str, Interval]) -> float | None:
    found = metrics.get("auc")
    return None if found is None else words.finite(found.value)


def _largest(metrics: Mapping[str, Interval], attribute: str) -> float | None:
    return max((getattr(interval, attribute) for interval in metrics.values()), default=None)


def _group(name: str) -> str:
    return f"not {name.removesuffix(OTHERS)}" if name.endswith(OTHERS) else name
