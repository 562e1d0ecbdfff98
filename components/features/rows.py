"""Clean text rows become typed rows: event time, row id, label, text, entity keys, groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from components.core.errors import UserError
from components.core.recipe import Recipe
from components.features.repository import PREFIXES, REQUEST, RESERVED, nearest

EXAMPLES = 3
YEARS = range(1970, 2200)  # Feast counts time from 1970, and its engines in nanoseconds, which end in 2262


def read_clean(path: Path) -> pd.DataFrame:
    """The clean rows as text, a missing value as the empty string; shape (rows, columns)."""
    table = pq.read_table(path)
    frame = table.to_pandas()
    return frame.astype(object).where(frame.notna(), "").astype(str).reset_index(drop=True)


def typed_rows(clean: pd.DataFrame, recipe: Recipe) -> pd.DataFrame:
    """One typed row a clean row, in the same order.

    Columns: row_id (str), event_timestamp (UTC), label (int8), text (str), a str column an entity key, and a bool
    column `group:<name>` a group, a str column `slice:<column>` a column of evaluation.slices, and a str column
    `request:<name>` a request input.

    Raises:
        UserError: a column that the recipe names is absent, a date cannot be read, or a row has no label.
    """
    check_columns(clean.columns.tolist(), recipe)
    typed = pd.DataFrame(
        {
            "row_id": row_ids(clean, recipe.source.key),
            "event_timestamp": parse_times(clean[recipe.source.time_column], recipe.source.time_formats),
            "label": _labels(clean, recipe),
            "text": clean[recipe.model.text_column] if recipe.model.text_column else "",
        }
    )
    for key, column in recipe.features.entities.items():
        typed[key] = clean[column]
    for name, column in recipe.features.request.items():
        typed[REQUEST + name] = clean[column]
    for group in recipe.evaluation.groups:
        value = clean[group.column]
        inside = pd.Series(False, index=clean.index)
        if group.contains:
            inside |= value.str.contains(group.contains, regex=False)
        if group.equals:
            inside |= value == group.equals
        typed[f"group:{group.name}"] = inside.astype(bool)
    for column in recipe.evaluation.slices:
        typed[f"slice:{column}"] = clean[column]
    return typed


def check_columns(columns: Sequence[str], recipe: Recipe) -> None:
    """UserError where the recipe names a column that the clean rows do not have, with the nearest one."""
    asked = {"source.time_column": recipe.source.time_column, "model.label_column": recipe.model.label_column}
    asked |= {f"source.key[{at}]": column for at, column in enumerate(recipe.source.key)}
    asked |= {f"features.entities.{key}": column for key, column in recipe.features.entities.items()}
    asked |= {f"features.request.{name}": column for name, column in recipe.features.request.items()}
    if recipe.model.text_column:
        asked["model.text_column"] = recipe.model.text_column
    for group in recipe.evaluation.groups:
        asked[f"evaluation.groups {group.name!r}"] = group.column
        if not group.contains and not group.equals:
            raise UserError(f"evaluation.groups {group.name!r}: give `contains` or `equals`, or it holds no row")
    asked |= {f"evaluation.slices[{at}]": column for at, column in enumerate(recipe.evaluation.slices)}
    for key in recipe.features.entities:
        if key.lower() in RESERVED or key.lower().startswith(PREFIXES):
            raise UserError(f"features.entities: the name {key!r} is reserved; rename the join key")
        if key in recipe.features.request:
            raise UserError(f"features.request: {key!r} is an entity, which on-demand functions may take; leave it out")
    for where, column in asked.items():
        if column not in columns:
            raise UserError(f"{where}: the clean rows have no column {column!r}{nearest(column, columns)}")


def row_ids(clean: pd.DataFrame, key: Sequence[str]) -> pd.Series:
    """The key's value; several columns are joined by `|`, with `|` and backslash inside a value escaped."""
    if len(key) == 1:
        return clean[key[0]]
    parts = [
        clean[column].str.replace("\\", "\\\\", regex=False).str.replace("|", "\\|", regex=False) for column in key
    ]
    return parts[0].str.cat(parts[1:], sep="|")


def parse_times(values: pd.Series, formats: Sequence[str]) -> pd.Series:
    """Times in UTC (microseconds) by the first format that fits; a format with %z is converted, others are UTC.

    Raises:
        UserError: values that fit no format, or are of a year that the engines cannot count, with examples.
    """
    times = {value: parse_time(value, formats) for value in values.unique()}
    where = f"source.time_column {values.name!r}"
    if bad := [value for value, time in times.items() if time is None]:
        raise UserError(
            f"{where}: {int(values.isin(bad).sum())} dates fit none of {', '.join(formats)}, for example "
            f"{_shown(bad)}; add the format to source.time_formats"
        )
    if far := [value for value, time in times.items() if time is not None and time.year not in YEARS]:
        raise UserError(
            f"{where}: {int(values.isin(far).sum())} dates are not of the years {YEARS[0]} to {YEARS[-1]}, for example "
            f"{_shown(far)}; the engines count no further: mend them, or let the contract set such rows aside"
        )
    return pd.Series(values.map(times), index=values.index).astype("datetime64[us, UTC]")


def refuse_future(times: pd.Series, now: datetime) -> None:
    """Refuse events that have not happened: they would be the end of all that is known, and the test split.

    Args:
        times: as parse_times gives them.
        now: the present (UTC); a day more is allowed, for zones that are ahead.

    Raises:
        UserError: with examples.
    """
    ahead = times[times > pd.Timestamp(now) + pd.Timedelta(days=1)]
    if len(ahead):
        shown = ", ".join(f"{time:%Y-%m-%d}" for time in ahead.drop_duplicates()[:EXAMPLES])
        raise UserError(
            f"source.time_column {times.name!r}: {len(ahead)} rows lie in the future, for example {shown}; it is "
            f"{now:%Y-%m-%d}; mend them, or let the contract set such rows aside"
        )


def _shown(some: Sequence[str]) -> str:
    return ", ".join(repr(value[:40]) for value in some[:EXAMPLES])


def parse_time(value: str, formats: Sequence[str]) -> datetime | None:
    """A time in UTC: by the first format that gives a year in range; else by one that gives another year, else None."""
    far = None
    for form in formats:
        try:
            time = datetime.strptime(value.strip(), form)
        except ValueError:
            continue
        try:
            time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        except OverflowError:
            time = time.replace(tzinfo=UTC)
        if time.year in YEARS:
            return time
        far = time
    return far


def _labels(clean: pd.DataFrame, recipe: Recipe) -> np.ndarray:
    values = clean[recipe.model.label_column]
    empty = values.str.strip() == ""
    if empty.any():
        raise UserError(
            f"model.label_column {values.name!r}: empty in {int(empty.sum())} clean rows, first at row "
            f"{int(empty.to_numpy().argmax()) + 1}; let the contract require it, so that such rows are quarantined"
        )
    label: np.ndarray = values.isin(recipe.model.positive_values).to_numpy(dtype=np.int8)
    return label
