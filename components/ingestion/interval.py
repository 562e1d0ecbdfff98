"""The rows of [since, until), in an order that does not depend on how they came."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.core.errors import UserError
from components.core.recipe import Source

TIME = "\0time"  # cannot be a column of a source: CSV headers with zero bytes are refused


@dataclass(frozen=True)
class Selection:
    """The selected rows in canonical order and their time range, ISO 8601 UTC; "" where there is no row."""

    table: pa.Table
    time_min: str
    time_max: str


def interval_ends(source: Source) -> tuple[datetime | None, datetime | None]:
    """`since` and `until` as UTC times, None where open; UserError where unreadable or in the wrong order."""
    since, until = (_end(source, name) for name in ("since", "until"))
    if since is not None and until is not None and since >= until:
        raise UserError(f"source.since={source.since} is not before source.until={source.until}; swap or widen them")
    return since, until


def select_interval(table: pa.Table, source: Source, shown: str) -> Selection:
    """Rows with since <= time < until, sorted by time, then key, then all other columns.

    Raises:
        UserError: no time column, or times that no format reads: how many, examples, the formats.
    """
    since, until = interval_ends(source)
    times = _times(table, source, shown)  # (rows,) microseconds since 1970, UTC
    keep = np.ones(len(times), dtype=bool)
    if since is not None:
        keep &= times >= _micros(since)
    if until is not None:
        keep &= times < _micros(until)
    selected, kept = table.filter(pa.array(keep)), times[keep]
    names = [name for name in source.key if name in table.column_names]
    names += [name for name in table.column_names if name not in names]
    keyed = selected.append_column(TIME, pa.array(kept, pa.int64()))
    order = pc.sort_indices(keyed, sort_keys=[(name, "ascending") for name in (TIME, *names)])
    if not len(kept):
        return Selection(selected, "", "")
    return Selection(selected.take(order), _iso(int(kept.min())), _iso(int(kept.max())))


def _times(table: pa.Table, source: Source, shown: str) -> np.ndarray:
    name = source.time_column
    if name not in table.column_names:
        near = difflib.get_close_matches(name, table.column_names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        columns = ", ".join(table.column_names[:20])
        raise UserError(f"{shown}: no time column {name!r}{hint} (columns: {columns}); set source.time_column")
    encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    texts = encoded.dictionary.to_pylist()
    distinct = [_parse(text, source.time_formats) for text in texts]
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    bad = np.array([time is None for time in distinct], dtype=bool)
    if len(codes) and bad[codes].any():
        examples = [repr(text) for text, time in zip(texts, distinct, strict=True) if time is None]
        raise UserError(
            f"{shown}: column {name!r}: {int(bad[codes].sum())} of {len(codes)} times are unreadable, for example "
            f"{', '.join(examples[:3])}; tried {', '.join(source.time_formats)}; set source.time_formats"
        )
    micros = np.array([_micros(time) for time in distinct if time is not None], dtype=np.int64)
    return micros[codes] if len(codes) else np.zeros(0, dtype=np.int64)


def _end(source: Source, name: str) -> datetime | None:
    text: str = getattr(source, name)
    if not text:
        return None
    time = _parse(text, source.time_formats)
    try:
        return time or _utc(datetime.fromisoformat(text))
    except ValueError as error:
        raise UserError(f"source.{name}={text!r}: not a time; write it as YYYY-MM-DD") from error


def _parse(text: str | None, formats: Sequence[str]) -> datetime | None:
    for time_format in formats if text else ():
        try:
            return _utc(datetime.strptime(str(text), time_format))
        except (ValueError, OverflowError):
            continue
    return None


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _micros(time: datetime) -> int:
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _iso(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest).isoformat()
