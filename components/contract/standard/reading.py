"""What a text is as a time or a number: one definition for every engine.

A time fits one of its formats (`time_formats.TimeFormat`; the first that fits counts) and is a whole number of
microseconds: since 1970 in UTC, or since midnight for a time of day. A number matches NUMBER and is the nearest double;
what overflows does not read. An integer matches INTEGER and is exact. Texts are taken as they stand: no space is cut,
digits are ASCII. A number is a multiple of m when x / m is within four units in the last place of a whole number, as
doubles tell no more; an integer is one exactly.

These functions compute it with Arrow and NumPy on whole columns; the DuckDB engine writes the same in SQL.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.contract.standard.rules import Reading
from components.contract.standard.time_formats import MONTHS, time_format

NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
INTEGER = r"^[+-]?0*[0-9]{1,38}$"
FAST_DIGITS = 18
ULPS = 4 * 2.0**-52
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
Bound = int | float


def fits(texts: pa.Array | pa.ChunkedArray, reading: Reading) -> np.ndarray:
    """Whether each text (n) reads as asked, within its bounds and steps; shape (n,), False for null."""
    values, known = read_values(texts, reading)
    low, high = bounds(reading)
    with np.errstate(invalid="ignore"):
        if low is not None:
            known &= (values > low if reading.open_low else values >= low).astype(bool)
        if high is not None:
            known &= (values < high if reading.open_high else values <= high).astype(bool)
    if reading.multiple_of:
        known[known] = _is_multiple(values[known], reading)
    return known


def read_values(texts: pa.Array | pa.ChunkedArray, reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """The values of texts (n) and which of them read; shapes (n,), values of the others mean nothing.

    Times are int64 microseconds, numbers float64, integers int64, or Python's where one has more than 18 digits.
    """
    coded = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    coded = coded.cast(pa.string()).dictionary_encode()
    values, known = _read(coded.dictionary, reading)
    codes = coded.indices
    present = pc.is_valid(codes).to_numpy(zero_copy_only=False)
    positions = codes.fill_null(0).to_numpy(zero_copy_only=False)
    if not len(values):
        return np.zeros(len(coded), np.int64), np.zeros(len(coded), bool)
    return values[positions], known[positions] & present


def reads(text: str, reading: Reading) -> bool:
    """Whether the text reads as asked, within its bounds."""
    return bool(fits(pa.array([text], pa.string()), reading)[0])


@lru_cache(maxsize=256)
def bounds(reading: Reading) -> tuple[Bound | None, Bound | None]:
    """The lowest and the highest value as `read_values` counts; ValueError where a bound cannot be read."""
    return bound(reading.low, reading), bound(reading.high, reading)


def bound(text: str, reading: Reading) -> Bound | None:
    """A bound as `read_values` counts; a time may be written in a format of the reading or in ISO 8601."""
    if not text:
        return None
    if reading.kind == "integer":
        return int(text)
    if reading.kind == "number":
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"{text!r} is no finite number")
        return value
    values, known = _read(pa.array([text], pa.string()), reading)
    if known[0]:
        return int(values[0])
    if reading.kind == "clock":
        clock = time.fromisoformat(text)
        return microseconds(datetime.combine(EPOCH.date(), clock))
    return microseconds(datetime.fromisoformat(text))


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, taken as UTC where it names no zone."""
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (aware - EPOCH) // MICROSECOND


def _read(texts: pa.Array, reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    if reading.kind == "number":
        return _numbers(texts)
    if reading.kind == "integer":
        return _integers(texts)
    values, known = np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)
    for name in reading.formats:
        if known.all():
            break
        found, fitting = _times(texts, name)
        new = fitting & ~known
        values[new], known = found[new], known | new
    return values, known


def _numbers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    shaped = pc.match_substring_regex(texts, NUMBER)
    values = _column(pc.if_else(shaped, texts, "0").cast(pa.float64()))
    return values, _column(shaped) & np.isfinite(values)


def _integers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    shaped = pc.match_substring_regex(texts, INTEGER)
    plain = pc.if_else(shaped, texts, "0")
    digits = pc.replace_substring_regex(plain, r"^[+-]?0*", "")
    if not len(texts) or (pc.max(pc.utf8_length(digits)).as_py() or 0) <= FAST_DIGITS:
        return _column(pc.replace_substring_regex(plain, r"^\+?(-?)0*([0-9])", r"\1\2").cast(pa.int64())), _column(
            shaped
        )
    return np.array([int(text) for text in plain.to_pylist()], object), _column(shaped)


def _times(texts: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray]:
    wanted = time_format(name)
    found = pc.extract_regex(texts, wanted.named)
    known = _column(pc.is_valid(found))
    parts = {group: pc.fill_null(pc.struct_field(found, group), "") for group in wanted.groups}
    day, in_calendar = _days(parts, len(texts))
    moment = day * 86_400_000_000 + _of_day(parts, len(texts)) - _offset(parts, len(texts))
    return moment, known & in_calendar


def _days(parts: dict[str, pa.Array], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Days since 1970 and whether the calendar has them."""
    if "day" not in parts:
        return np.zeros(count, np.int64), np.ones(count, bool)
    if "year2" in parts:
        short = _whole(parts["year2"])
        year = short + np.where(short >= 69, 1900, 2000)
    else:
        year = _whole(parts["year"])
    month = _months(parts["month_name"]) if "month_name" in parts else _whole(parts["month"])
    day = _whole(parts["day"])
    months = (np.maximum(year, 1) - 1970) * 12 + np.maximum(month, 1) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    after = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return first + day - 1, (year >= 1) & (day <= after - first)


def _months(names: pa.Array) -> np.ndarray:
    starts = pa.array([name[:3] for name in MONTHS])
    return _column(pc.fill_null(pc.index_in(pc.utf8_slice_codeunits(names, 0, 3), starts), 0)).astype(np.int64) + 1


def _of_day(parts: dict[str, pa.Array], count: int) -> np.ndarray:
    """Microseconds since midnight."""
    seconds = np.zeros(count, np.int64)
    for group, size in (("hour", 3600), ("minute", 60), ("second", 1)):
        if group in parts:
            seconds += _whole(parts[group]) * size
    if "hour12" in parts:
        afternoon = _column(pc.equal(pc.ascii_upper(parts["half"]), "PM"))
        seconds += (_whole(parts["hour12"]) % 12 + 12 * afternoon) * 3600
    micros = seconds * 1_000_000
    if "fraction" in parts:
        micros += _whole(pc.utf8_slice_codeunits(pc.utf8_rpad(parts["fraction"], 6, "0"), 0, 6))
    return micros


def _offset(parts: dict[str, pa.Array], count: int) -> np.ndarray:
    """Microseconds that the zone is ahead of UTC."""
    if "zone" not in parts:
        return np.zeros(count, np.int64)
    digits = pc.replace_substring_regex(parts["zone"], "[^0-9]", "")
    minutes = _whole(pc.utf8_slice_codeunits(digits, 0, 2)) * 60 + _whole(pc.utf8_slice_codeunits(digits, 2, 4))
    west = _column(pc.starts_with(parts["zone"], "-"))
    return np.where(west, -minutes, minutes) * 60_000_000


def _whole(digits: pa.Array) -> np.ndarray:
    """Texts of ASCII digits as int64; the empty one is zero."""
    return _column(pc.if_else(pc.equal(digits, ""), "0", digits).cast(pa.int64()))


def _column(array: Any) -> np.ndarray:
    """An Arrow array as NumPy; null is False or zero."""
    filled = array.fill_null(False) if pa.types.is_boolean(array.type) else array.fill_null(0)
    return np.array(filled.to_numpy(zero_copy_only=False))


def _is_multiple(values: np.ndarray, reading: Reading) -> np.ndarray:
    if reading.kind == "integer":
        return np.asarray(values % int(reading.multiple_of) == 0, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        times = values / float(reading.multiple_of)
        return np.abs(times - np.round(times)) <= ULPS * np.maximum(1.0, np.abs(times))
