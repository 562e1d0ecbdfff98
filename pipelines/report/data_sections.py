"""Sections about what went in: data, features, training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.report import words
from pipelines.report.charts import Series, histogram_pair, line_chart
from pipelines.report.facts import Facts
from pipelines.report.parts import missing, rules, section


def data(facts: Facts) -> dict[str, Any]:
    """The contract's verdict, its checks and examples of failing rows."""
    verdict, title = facts.contract, "Data"
    if verdict is None:
        return missing(facts, "data", title, "validate")
    failed = [check for check in verdict.checks if check.outcome in ("fail", "insufficient")]
    summary = (
        f"{words.number(verdict.rows)} rows were checked by {len(verdict.checks)} rules; {words.number(verdict.clean)} "
        f"are clean and {words.number(verdict.quarantined)} were put aside."
    )
    if not verdict.passed:
        summary = f"The contract does not hold: {verdict.reason or f'{len(failed)} rules failed'}. {summary}"
    columns = sorted({name for row in facts.quarantined for name in _values(row)})
    return section(
        "data",
        title,
        "good" if verdict.passed else "bad",
        summary,
        contract=f"{verdict.contract} {verdict.version}",
        engine=verdict.engine,
        quarantined=words.share(verdict.quarantined / verdict.rows if verdict.rows else None),
        checks=rules(verdict.checks),
        failed=len(failed),
        examples=[
            {"rule": words.text(row.get("rule")), "row": words.text(row.get("row")), "values": _values(row)}
            for row in facts.quarantined[:20]
        ],
        columns=columns[:8],
    )


def features(facts: Facts) -> dict[str, Any]:
    """Splits, freshness of the feature views and what each feature looks like."""
    rows, title = facts.training_set, "Features"
    if rows is None:
        return missing(facts, "features", title, "featurise")
    summary = (
        f"{len(rows.features)} features of service {rows.feature_service}, each as known when its row was received; "
        f"read as of {words.moment(rows.as_of)}. Training ends {rows.embargo_days} days before validation and test."
    )
    summary = " ".join([summary, *(f"{note[:1].upper()}{note[1:]}." for note in rows.notes)])
    views = facts.statistics.get("views")
    each = facts.statistics.get("features")
    return section(
        "features",
        title,
        "warn" if rows.notes else "good",
        summary,
        splits=[
            {
                "name": split.name,
                "rows": words.number(split.rows),
                "positives": words.number(split.positives),
                "rate": words.share(split.positives / split.rows if split.rows else None),
                "from": words.day(split.time_min),
                "to": words.day(split.time_max),
            }
            for split in rows.splits
        ],
        views=[_view(name, about, rows.as_of) for name, about in items(views)],
        each=[_feature(name, about) for name, about in items(each)],
    )


def handover(facts: Facts) -> dict[str, Any]:
    """What stands between features and training: the training contract and the guards against leakage."""
    verdict, title = facts.handover, "Hand-over"
    if verdict is None:
        return missing(facts, "handover", title, "guard")
    every = (*verdict.guards, *verdict.checks)
    failed = sum(rule.outcome in ("fail", "insufficient") for rule in every)
    named = f"contract {verdict.contract} {verdict.version}" if verdict.contract else "no contract of its own"
    summary = (
        f"{words.number(verdict.rows)} rows were guarded by {len(verdict.guards)} rules of structure, time and leakage "
        f"and {len(verdict.checks)} of {named}."
    )
    if not verdict.passed:
        summary = f"Nothing was learned from these rows: {verdict.reason or f'{failed} rules failed'}. {summary}"
    return section(
        "handover",
        title,
        "good" if verdict.passed else "bad",
        summary,
        engine=verdict.engine,
        guards=rules(verdict.guards),
        checks=rules(verdict.checks),
        failed=failed,
    )


def training(facts: Facts) -> dict[str, Any]:
    """The learning curve and how the model was trained."""
    model, title = facts.model, "Training"
    if model is None:
        return missing(facts, "training", title, "train")
    resumed = f" It was resumed from step {model.resumed_from_step}." if model.resumed_from_step else ""
    summary = (
        f"{words.number(model.parameters)} parameters trained for {words.number(model.steps)} steps on "
        f"{model.world_size} ranks, ZeRO stage {model.zero_stage}.{resumed}"
    )
    best = _best(model.curve, "validation_loss")
    losses = [
        Series("training loss", points_of(model.curve, "loss"), "b"),
        Series("validation loss", points_of(model.curve, "validation_loss"), "a", dots=True),
    ]
    return section(
        "training",
        title,
        "good",
        summary,
        curve=line_chart(
            "Learning curve",
            "Training and validation loss over optimizer steps.",
            losses,
            "step",
            "loss",
            mark_x=best,
            mark_label="kept",
        ),
        ranks=line_chart(
            "Validation AUC",
            "Validation AUC over optimizer steps.",
            [Series("validation AUC", points_of(model.curve, "validation_auc"), "a", dots=True)],
            "step",
            "AUC",
            mark_x=best,
            mark_label="kept",
        ),
        metrics=[(words.plain(name), words.number(value, 4)) for name, value in sorted(model.metrics.items())],
    )


def points_of(curve: Sequence[Mapping[str, float]], name: str) -> list[tuple[object, object]]:
    return [(point.get("step"), point[name]) for point in curve if name in point]


def _best(curve: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The step with the smallest value."""
    seen = [(words.finite(value), words.finite(step)) for step, value in points_of(curve, name)]
    known = [(value, step) for value, step in seen if value is not None and step is not None]
    return min(known)[1] if known else None


def items(found: Any) -> list[tuple[str, Mapping[str, Any]]]:
    items = found.items() if isinstance(found, dict) else []
    return [(str(name), about) for name, about in items if isinstance(about, dict)]


def _values(row: Mapping[str, Any]) -> dict[str, str]:
    """An example row's values, each cut to a length that fits a table."""
    found = row.get("values")
    cut = {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
    return {name: value if len(value) <= 80 else f"{value[:79]}…" for name, value in cut.items()}


def _view(name: str, about: Mapping[str, Any], as_of: str) -> dict[str, str]:
    age = words.days_between(about.get("newest"), as_of)
    return {
        "name": name,
        "rows": words.number(about.get("rows")),
        "entities": words.number(about.get("entities")),
        "newest": words.moment(about.get("newest")) if about.get("newest") else words.NONE,
        "age": words.NONE if age is None else f"{words.number(round(age, 1), 1)} days",
    }


def _feature(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    train, test = (_part(about, split) for split in ("train", "test"))
    quantiles = _part(train, "quantiles")
    return {
        "name": name,
        "missing": words.share(train.get("null_share")),
        "missing_test": words.share(test.get("null_share")),
        "mean": words.number(train.get("mean")),
        "mean_test": words.number(test.get("mean")),
        "median": words.number(quantiles.get("0.5")),
        "chart": histogram_pair(
            f"{name}: training beside test", train.get("histogram") or [], test.get("histogram") or []
        ),
    }


def _part(about: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table inside another, empty where it is none."""
    found = about.get(name)
    return found if isinstance(found, dict) else {}
