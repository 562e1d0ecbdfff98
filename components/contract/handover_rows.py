"""What every training set is, contract or not: its columns, labels and times, recomputed from its rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.core.recipe import Recipe
from components.core.records import RuleResult, TrainingSetRef

SPLITS = ("train", "validation", "test")
TIME, LABEL, KEY = "event_timestamp", "label", "row_id"


def structure(recipe: Recipe, record: TrainingSetRef, training_set: Path) -> list[RuleResult]:
    """Columns and types, keys and labels, and the counts that the record tells, for each split."""
    results = []
    for name in SPLITS:
        told = [split for split in record.splits if split.name == name]
        if not told:
            results.append(_rule("split is there", name, False, "missing", "present", "the record names no such split"))
            continue
        file = pq.ParquetFile(training_set / f"{name}.parquet")
        odd = _odd_columns(recipe, record, file.schema_arrow)
        results.append(_rule("columns and types", name, not odd, odd or "as recorded", "as recorded", odd))
        if odd:
            continue
        rows = file.read(columns=[KEY, TIME, LABEL])
        split = told[0]
        empty = sum(rows[column].null_count for column in (KEY, TIME, LABEL))
        empty += pc.sum(pc.equal(rows[KEY], "")).as_py() or 0
        results.append(_rule("key, time and label are there", name, not empty, float(empty), "0 empty", ""))
        labels = sorted(label for label in pc.unique(rows[LABEL]).to_pylist() if label is not None)
        results.append(_rule("both outcomes, 0 and 1", name, labels == [0, 1], f"{labels}", "[0, 1]", ""))
        counted = (rows.num_rows, pc.sum(rows[LABEL]).as_py() or 0)
        results.append(
            _rule(
                "rows as recorded",
                name,
                counted == (split.rows, split.positives),
                f"{counted[0]} rows, {counted[1]} positive",
                f"{split.rows} rows, {split.positives} positive",
                "the record tells other numbers",
            )
        )
    return results


def times(recipe: Recipe, record: TrainingSetRef, training_set: Path) -> list[RuleResult]:
    """Every outcome of a split was known before the next one began, and all were when the set was made.

    Recomputed from the rows, the recipe's label delay and the record's `as_of`; how the split was made plays no part.
    """
    spans = {name: _span(training_set / f"{name}.parquet") for name in SPLITS}
    delay = timedelta(days=recipe.features.label_delay_days)
    results = []
    for before, after in (("train", "validation"), ("validation", "test")):
        gap = spans[after][0] - spans[before][1]
        asked = max(delay, timedelta(days=record.embargo_days))
        why = (
            f"the last {before} row is of {spans[before][1]:%Y-%m-%d %H:%M} and the first {after} row of "
            f"{spans[after][0]:%Y-%m-%d %H:%M}; its outcome was not known by then; keep the embargo"
        )
        days = f"{gap / timedelta(days=1):.2f} days"
        limit = f"at least {asked.days} days"
        results.append(_rule("outcomes known before", f"{before}, {after}", gap >= asked, days, limit, why))
    last = max(end for _, end in spans.values())
    as_of = datetime.fromisoformat(record.as_of)
    as_of = (as_of if as_of.tzinfo else as_of.replace(tzinfo=UTC)) + timedelta(
        days=1
    )  # `as_of` is a day, its end counts
    why = f"the last row is of {last:%Y-%m-%d %H:%M}, and its outcome was not known when the set was made"
    known = f"{record.as_of} (that day's end)"
    results.append(
        _rule(
            "outcomes known when made", "all splits", last + delay <= as_of, known, f"{(last + delay).isoformat()}", why
        )
    )
    return results


def _span(path: Path) -> tuple[datetime, datetime]:
    """First and last event time."""
    ends = pc.min_max(pq.read_table(path, columns=[TIME])[TIME]).as_py()
    return ends["min"], ends["max"]


def _odd_columns(recipe: Recipe, record: TrainingSetRef, schema: pa.Schema) -> str:
    """The first column that is missing or of another type, in words; "" where all are right."""
    wanted: dict[str, pa.DataType] = {
        KEY: pa.string(),
        TIME: pa.timestamp("us", tz="UTC"),
        LABEL: pa.int8(),
        "text": pa.string(),
    }
    wanted |= dict.fromkeys(record.entities, pa.string())
    wanted |= dict.fromkeys([*record.features, *recipe.features.model_inputs], pa.float64())
    wanted |= {f"group:{group.name}": pa.bool_() for group in recipe.evaluation.groups}
    wanted |= {f"slice:{column}": pa.string() for column in recipe.evaluation.slices}
    for name, kind in wanted.items():
        if name not in schema.names:
            return f"no column {name!r}"
        if schema.field(name).type != kind:
            return f"{name!r} is {schema.field(name).type}, not {kind}"
    return ""


def _rule(rule: str, subject: str, held: bool, observed: float | str, limit: str, why: str) -> RuleResult:
    reason = "" if held else why or f"{observed}, asked is {limit}"
    return RuleResult(
        rule=rule, outcome="pass" if held else "fail", observed=observed, limit=limit, subject=subject, reason=reason
    )
