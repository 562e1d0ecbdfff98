"""Featurise: clean rows → a training set that is right in time, its split, its statistics and its online store."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from components.core.digest import file_digest, value_digest
from components.core.engine_time import engine_time
from components.core.errors import ContractViolation, IntegrityError, PolicyRefusal, UserError
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, SplitRef, TrainingSetRef
from components.features.describe import describe
from components.features.feast_store import FeatureProject, join_history, load_project, write_registry
from components.features.history import Rows, write_history
from components.features.known import Versions, first_versions, remember
from components.features.known_past import Asked, Restated
from components.features.latest.sqlite import SqliteLatest
from components.features.on_demand import utc
from components.features.online import HISTORY, ONLINE, write_online
from components.features.parity import Parity, measure_parity, measure_served
from components.features.repository import REQUEST, Service, check_service, locate
from components.features.rows import (
    check_columns,
    parse_time,
    parse_times,
    read_clean,
    refuse_future,
    row_ids,
    typed_rows,
)
from components.features.split import TimeSplit, check_classes, known_in_time, split_by_time

CLEAN = "clean.parquet"
NOON = pd.Timedelta(hours=12, minutes=37)
STATISTICS, PARITY = "statistics.json", "parity.json"


def featurise(recipe: Recipe, clean: Path, out: Path, known: Path | None = None) -> TrainingSetRef:
    """Publish a training set: features as known when each row was received, split in time with an embargo.

    Args:
        recipe: sections source, features, model (label and text) and evaluation (split and groups).
        clean: folder published by validate: clean.parquet (all columns text) and its ContractVerdict.
        known: the home's folder of what earlier exports held (see known.py); None: all is known from its event.
        out: folder to publish, see TrainingSetRef; also `history/` (what became known when) and Feast's registry.

    Raises:
        UserError: the recipe names something that is not there, a date cannot be read, a split is empty or has one
            label only, events lie in the future, a history table looks there, or a model input never has a value.
        ContractViolation: the contract did not pass.
        PolicyRefusal: online reads as of then differ from the training rows by more than features.max_skew, or the
            source is restated and features.restated = refuse.
        IntegrityError: the input folder's bytes differ from its manifest.
    """
    verify(clean)
    verdict = ContractVerdict.read(clean)
    if not verdict.passed:
        raise ContractViolation(f"{clean}: contract {verdict.contract} did not pass; nothing is made from its rows")
    _refuse_outcomes(recipe, verdict.after_outcome)
    folder = locate(recipe.features.repo)
    _check_embargo(recipe)
    raw = read_clean(clean / CLEAN)
    if len(raw) != verdict.clean:
        raise IntegrityError(f"{clean}: {len(raw)} rows but the verdict counts {verdict.clean}; run validate again")
    versions = _versions(recipe, raw, verdict, known)
    every = typed_rows(versions.clean, recipe)
    typed = every.iloc[versions.current].reset_index(drop=True)
    evaluation = recipe.evaluation
    split = split_by_time(
        typed["event_timestamp"], evaluation.test_share, evaluation.validation_share, evaluation.embargo_days
    )
    by_event, split = split, known_in_time(split, versions.recorded.iloc[versions.current])
    check_classes(typed["label"].to_numpy(), split, by_event)

    with engine_time("feast"):
        project = load_project(folder, recipe.features.ttl_days)
        service = project.service(recipe.features.service)
    asked = recipe.features
    check_service(service, asked.entities, asked.model_inputs, asked.request, recipe.model.text_column)
    rows = Rows(
        versions.clean,
        every,
        recipe.model.label_column,
        recipe.features.label_delay_days,
        recipe.source.time_formats,
        versions.recorded,
        versions.superseded,
        verdict.after_outcome,
    )
    with publishing(out) as staging:
        write_history(folder, service.views, rows, staging / HISTORY, _cuts(split, rows))
        with engine_time("feast"):
            features = join_history(project, service, staging / HISTORY, typed)
            write_registry(project, staging)
        code = project.code if service.on_demand else None
        write_online(staging, project.project, service, rows.as_of.to_pydatetime(), code.digest if code else "")
        frame = pd.concat([typed, features], axis=1)[_columns(recipe, service)]
        _refuse_empty(recipe, service, frame, staging / HISTORY)
        parity = _parity(recipe, frame, project, service, staging)
        splits = tuple(_write_split(staging, name, frame.iloc[at]) for name, at in split.positions.items())
        statistics = describe(frame, split, service.features, staging / HISTORY, service.views)
        statistics |= {"as_of": rows.as_of.isoformat()}
        (staging / STATISTICS).write_text(json.dumps(statistics, indent=1, allow_nan=False))
        record = _record(recipe, verdict, service, rows, splits, code.digest if code else "")
        record = replace(record, skew=parity.skew, notes=versions.past.notes(_restated(recipe)))
        record.write(staging)
    return record


def _versions(recipe: Recipe, raw: pd.DataFrame, verdict: ContractVerdict, known: Path | None) -> Versions:
    """What was known, as of the recipe's moment."""
    check_columns(raw.columns.tolist(), recipe)
    keys, event = (
        row_ids(raw, recipe.source.key),
        parse_times(raw[recipe.source.time_column], recipe.source.time_formats),
    )
    name = verdict.clean_digest or value_digest(
        {"snapshot": verdict.snapshot_digest, "contract": verdict.contract_digest}
    )
    refuse_future(event, datetime.now(UTC))
    if known is None or raw.empty:
        versions = first_versions(raw, keys, event)
    else:
        store = known / value_digest(verdict.contract)[:16]
        versions = remember(store, name, raw, keys, event, _restated(recipe), _asked(recipe))
    if not recipe.features.as_of:
        return versions
    seen = versions.as_of(_end_of_day(recipe.features.as_of))
    if not len(seen.current):
        first = f"{event.min():%Y-%m-%d}" if len(event) else "never"
        raise UserError(f"features.as_of {recipe.features.as_of}: nothing was known then; the rows begin {first}")
    return seen


def _restated(recipe: Recipe) -> Restated:
    return Restated(recipe.features.restated, recipe.features.restated_share)


def _asked(recipe: Recipe) -> Asked:
    """The interval that the recipe's source was read for, and as of when the set is made."""
    source, as_of = recipe.source, recipe.features.as_of
    since, until = (_end(text, source.time_formats) for text in (source.since, source.until))
    return Asked(since, until, _end_of_day(as_of) if as_of else None)


def _end(text: str, formats: Sequence[str]) -> pd.Timestamp | None:
    """An end of the source's interval, which ingestion has read and checked by the same formats."""
    if not text:
        return None
    return pd.Timestamp(utc(parse_time(text, formats) or datetime.fromisoformat(text))).as_unit("us")


def _end_of_day(text: str) -> pd.Timestamp:
    try:
        day = pd.Timestamp(date.fromisoformat(text), tz="UTC")
    except ValueError as error:
        raise UserError(f"features.as_of {text!r}: write a day as YYYY-MM-DD") from error
    return day + pd.Timedelta(days=1) - pd.Timedelta(microseconds=1)


def _cuts(split: TimeSplit, rows: Rows) -> list[pd.Timestamp]:
    """Moments at which no history table may know more than was known: where splits begin, off midnight one in each
    quarter of the time before validation, drawn by the number of rows, two within test, and one after the last event,
    when the last outcomes are not known yet."""
    first, last = rows.typed["event_timestamp"].min(), rows.typed["event_timestamp"].max()
    draw = random.Random(len(rows.typed))  # noqa: S311 - moments that can be repeated, not a secret
    early = [(split.validation_from - first) * ((quarter + draw.random()) / 4) for quarter in range(4)]
    within = [split.test_from + (last - split.test_from) * share for share in (0.35, 0.7)]
    after = last + pd.Timedelta(days=rows.label_delay_days) / 2
    moments = [*(first + share for share in early), *within, after]
    return [split.validation_from, split.test_from, *(moment.floor("D") + NOON for moment in moments)]


def _refuse_outcomes(recipe: Recipe, after_outcome: Sequence[str]) -> None:
    """No request carries the outcome, or what is known with it: it would be an input of the model in training only."""
    asked = {f"features.request.{name}": column for name, column in recipe.features.request.items()}
    asked |= {f"features.entities.{key}": column for key, column in recipe.features.entities.items()}
    asked |= {f"features.model_inputs[{at}]": name for at, name in enumerate(recipe.features.model_inputs)}
    asked["model.text_column"] = recipe.model.text_column
    late = {column.lower() for column in after_outcome}
    for where, column in asked.items():
        why = "is the label's column" if column.lower() == recipe.model.label_column.lower() else ""
        why = why or ("is known only after the outcome, by the contract" if column.lower() in late else "")
        if why:
            raise UserError(f"{where}: {column!r} {why}, so no request carries it; name another column")


def _check_embargo(recipe: Recipe) -> None:
    delay, embargo = recipe.features.label_delay_days, recipe.evaluation.embargo_days
    if embargo < delay:
        raise UserError(
            f"evaluation.embargo_days {embargo} is shorter than features.label_delay_days {delay}: outcomes of one "
            "split would not be known when the next begins; raise it"
        )


def _refuse_empty(recipe: Recipe, service: Service, frame: pd.DataFrame, history: Path) -> None:
    """A model input that no row has a value of teaches nothing, and shows that its view is broken."""
    for name in recipe.features.model_inputs:
        if frame[name].notna().any():
            continue
        view = next((view for view in service.views if name in view.features), None)
        if view is None:
            raise UserError(
                f"features.model_inputs: {name!r} has no value in any row; see its function in on_demand.py"
            )
        rows = pq.ParquetFile(history / f"{view.table}.parquet").metadata.num_rows
        why = "is empty, or was made later than all that is known"
        if rows:
            why = f"holds {rows} rows, none of them known of a row's {', '.join(view.join_keys)} when it was received"
        raise UserError(
            f"features.model_inputs: {name!r} has no value in any row: the history of {view.table}.sql {why}; mend the "
            "SQL, or read a longer interval of the source"
        )


def _parity(recipe: Recipe, frame: pd.DataFrame, project: FeatureProject, service: Service, folder: Path) -> Parity:
    """Compare with online reads, in replay and of the store that is published; keep the comparison, and refuse skew.

    Raises:
        PolicyRefusal: more values differ than the recipe allows.
    """
    asked = recipe.features
    ttl, code = timedelta(days=asked.ttl_days), project.code if service.on_demand else None
    given = (project.project, service, asked.model_inputs)
    parity = measure_parity(frame, *given, folder / HISTORY, ttl, code)

    def offline(rows: pd.DataFrame) -> pd.DataFrame:
        with engine_time("feast"):
            return join_history(project, service, folder / HISTORY, rows)

    store = SqliteLatest(folder / ONLINE, read_only=True)
    served = measure_served(store, "of the training set", frame, *given, datetime.now(UTC), ttl, offline, code)
    parity = parity.with_served(*served)
    (folder / PARITY).write_text(json.dumps(parity.to_dict(), indent=1, allow_nan=False))
    if not parity.skew <= asked.max_skew:
        about = "no value could be compared"
        if parity.examples:
            first = parity.examples[0]
            about = f"for example {first.feature} of {first.entities} at {first.moment}: {first.offline} in training, "
            about += f"{first.online} online"
        values, differing = parity.compared
        raise PolicyRefusal(
            f"features.max_skew: {differing} of {values} values read online differ from those in training "
            f"({parity.skew:.1%}, limit {asked.max_skew:.1%}); {about}"
        )
    return parity


def _columns(recipe: Recipe, service: Service) -> list[str]:
    groups = [f"group:{group.name}" for group in recipe.evaluation.groups]
    groups += [f"slice:{column}" for column in recipe.evaluation.slices]
    request = [REQUEST + name for name in recipe.features.request]
    return ["row_id", "event_timestamp", "label", "text", *service.join_keys, *service.features, *request, *groups]


def _write_split(folder: Path, name: str, part: pd.DataFrame) -> SplitRef:
    """Write one split in order of time; NaN stays NaN."""
    path = folder / f"{name}.parquet"
    kinds = {"label": pa.int8(), "event_timestamp": pa.timestamp("us", tz="UTC")}
    arrays = {}
    for column in part.columns:
        kind = kinds.get(column)
        if kind is None:
            kind = {"f": pa.float64(), "b": pa.bool_()}.get(part[column].dtype.kind, pa.string())
        arrays[column] = pa.array(part[column].to_numpy() if kind == pa.float64() else part[column], kind)
    pq.write_table(pa.table(arrays), path)
    return SplitRef(
        name=name,
        rows=len(part),
        positives=int(part["label"].sum()),
        digest=file_digest(path),
        time_min=part["event_timestamp"].min().isoformat(),
        time_max=part["event_timestamp"].max().isoformat(),
    )


def _record(
    recipe: Recipe,
    verdict: ContractVerdict,
    service: Service,
    rows: Rows,
    splits: Sequence[SplitRef],
    on_demand_digest: str,
) -> TrainingSetRef:
    named: dict[str, Any] = {
        "features": list(service.features),
        "entities": list(service.join_keys),
        "feature_service": service.name,
        "as_of": rows.as_of.isoformat(),
        "splits": {split.name: split.digest for split in splits},
    }
    if on_demand_digest:
        named["on_demand"] = on_demand_digest
    return TrainingSetRef(
        digest=value_digest(named),
        snapshot_digest=verdict.snapshot_digest,
        clean_digest=verdict.clean_digest,
        feature_repo=recipe.features.repo,
        feature_service=service.name,
        features=service.features,
        entities=service.join_keys,
        as_of=rows.as_of.isoformat(),
        embargo_days=recipe.evaluation.embargo_days,
        splits=tuple(splits),
        on_demand=tuple(name for view in service.on_demand for name in view.features),
        on_demand_digest=on_demand_digest,
    )
