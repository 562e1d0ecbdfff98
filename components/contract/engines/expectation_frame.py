"""The columns that expectations look at: texts, with missing ones null, read as times or numbers where asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from components.contract.standard.reading import microseconds, read_values
from components.contract.standard.rules import Reading, Rule

Texts: TypeAlias = "pa.ChunkedArray"


class Frame:
    """A pandas frame (rows, columns made so far) over a table of texts; each distinct column is made once.

    A column is named as in the table where no other use of it came first, so that evidence reads well.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._columns: dict[str, pd.Series] = {}
        self._names: dict[Any, str] = {}
        self._nulled: dict[tuple[str, tuple[str, ...]], Texts] = {}

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def frame(self) -> pd.DataFrame:
        """All columns made, in one block a type: Great Expectations copies the frame for each column it looks at."""
        return pd.DataFrame(self._columns, index=pd.RangeIndex(self.rows))

    def exists(self, column: str) -> None:
        """Make sure that the frame has the table's column under its own name."""
        if column not in self._columns:
            self._add((column, ()), column, lambda: self._table.column(column).to_pandas())

    def texts(self, column: str, missing: tuple[str, ...]) -> str:
        """The name of a column of texts in which missing ones are null."""
        return self._add((column, missing), column, lambda: self.nulled(column, missing).to_pandas())

    def typed(self, column: str, missing: tuple[str, ...], reading: Reading | None) -> str:
        """The name of a column read as the contract says; what does not read is null."""
        if reading is None:
            return self.texts(column, missing)
        return self._add((column, missing, reading), column, lambda: self._read(column, missing, reading))

    def holds_value(self, column: str, missing: tuple[str, ...], reading: Reading | None) -> bool:
        """Whether a column of `typed` has a value that is not null."""
        return bool(self._columns[self.typed(column, missing, reading)].notna().any())

    def made(self, rule: Rule, label: str, values: np.ndarray) -> str:
        """The name of a column of values (rows,) that were computed for a rule."""
        return self._add((rule, label), f"{label} of {rule.subject}", lambda: pd.Series(values))

    def nulled(self, column: str, missing: tuple[str, ...]) -> Texts:
        """The texts of a column, null where missing."""
        key = (column, missing)
        if key not in self._nulled:
            texts = self._table.column(column)
            out = pc.is_in(texts, value_set=pa.array(missing, pa.string()), skip_nulls=True)
            any_out = bool(missing) and pc.any(out).as_py()
            self._nulled[key] = pc.if_else(out, pa.scalar(None, pa.string()), texts) if any_out else texts
        return self._nulled[key]

    def _read(self, column: str, missing: tuple[str, ...], reading: Reading) -> pd.Series:
        values, known = read_values(self.nulled(column, missing), reading)
        if reading.kind == "time":
            return pd.Series(np.where(known, values, np.iinfo(np.int64).min).astype("datetime64[us]"))
        if reading.kind == "integer" and known.all():
            return pd.Series(values)
        return pd.Series(np.where(known, values, np.nan).astype(float))

    def _add(self, key: Any, wanted: str, make: Any) -> str:
        if key in self._names:
            return self._names[key]
        name, count = wanted, 2
        while name in self._columns or (name != wanted and name in self._table.column_names):
            name, count = f"{wanted} ({count})", count + 1
        self._columns[name] = make()
        self._names[key] = name
        return name


def delays(rule: Rule, frame: Frame) -> np.ndarray:
    """Of a `latency` rule: whether each row (rows,) keeps it, None where a time is missing; object array."""
    texts = [frame.nulled(column, rule.missing) for column in rule.columns]
    present = _present(texts)
    times = [
        read_values(text, reading) for text, reading in zip(texts, rule.readings, strict=True) if reading is not None
    ]
    (event, event_known), (available, available_known) = times
    delay = available - event
    kept = event_known & available_known & (delay >= 0) & (delay <= rule.seconds * 1e6)
    return _or_none(kept, present)


def references(rule: Rule, frame: Frame) -> np.ndarray:
    """Of a `reference` rule: whether each row's key (rows,) is found, None where a part is missing; object array."""
    sources = [frame.nulled(column, rule.missing) for column in rule.columns]
    targets = [frame.nulled(column, rule.missing) for column in rule.targets]
    present = _present(sources)
    if len(sources) == 1:
        found = pc.is_in(sources[0], value_set=targets[0].combine_chunks(), skip_nulls=True)
        return _or_none(found.to_numpy(zero_copy_only=False).astype(bool), present)
    known = set(zip(*(column.to_pylist() for column in targets), strict=True))
    keys = zip(*(column.to_pylist() for column in sources), strict=True)
    return _or_none(np.fromiter((key in known for key in keys), bool, frame.rows), present)


def seconds_of(rule: Rule, frame: Frame) -> float | str:
    """Of a `freshness` or `frequency` rule: its number in seconds, or why there is none."""
    if not rule.now:
        return "no time of reading is given"
    assert rule.reading is not None, rule
    values, known = read_values(frame.nulled(rule.columns[0], rule.missing), rule.reading)
    times = np.unique(values[known])
    if rule.kind == "freshness":
        return _age(rule, times) if len(times) else "no value reads as a time"
    return float(np.diff(times).max() / 1e6) if len(times) > 1 else "fewer than two times are there"


def _age(rule: Rule, times: np.ndarray) -> float:
    return (microseconds(datetime.fromisoformat(rule.now)) - int(times[-1])) / 1e6


def _present(columns: Sequence[Texts]) -> np.ndarray:
    return np.logical_and.reduce([pc.is_valid(column).to_numpy(zero_copy_only=False) for column in columns])


def _or_none(kept: np.ndarray, present: np.ndarray) -> np.ndarray:
    values = kept.astype(object)
    values[~present] = None
    return values
