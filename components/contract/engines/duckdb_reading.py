"""The definition of `reading` in DuckDB's SQL: the value of a text as a time or a number, NULL where it has none."""

from __future__ import annotations

import math
import sys

from components.contract.standard.reading import INTEGER, NUMBER, ULPS, bounds
from components.contract.standard.rules import Reading
from components.contract.standard.time_formats import (
    ISO_CLOCK,
    ISO_LOCAL,
    ISO_TIME,
    ISO_ZONED,
    MONTHS,
    PIECES,
    ZONE,
    TimeFormat,
    time_format,
)

DIRECTIVES = {
    "yyyy": "%Y",
    "uuuu": "%Y",
    "yy": "%y",
    "MMM": "%b",
    "MMMM": "%B",
    "MM": "%m",
    "M": "%m",
    "dd": "%d",
    "d": "%d",
    "HH": "%H",
    "H": "%H",
    "hh": "%I",
    "h": "%I",
    "mm": "%M",
    "m": "%M",
    "ss": "%S",
    "s": "%S",
    "a": "%p",
}
SHORTEST_OFFSET = len("2025-01-02T03:04:05Z")  # an ISO 8601 time this long has none
MIDNIGHT_1900 = -2_208_988_800_000_000  # what strptime gives a time of day, in microseconds since 1970


def fits_sql(text: str, reading: Reading) -> str:
    """A condition: whether a text expression reads as asked; false for NULL. The value is computed once."""
    value = _double(text) if reading.kind == "number" else value_sql(text, reading)
    low, high = _closed_bounds(reading)
    cast = {"number": "DOUBLE", "integer": "HUGEINT"}.get(reading.kind, "BIGINT")
    if low is None and high is None:
        asked = f"{value} IS NOT NULL"
    elif low is None or high is None:
        asked = f"{value} >= '{low}'::{cast}" if high is None else f"{value} <= '{high}'::{cast}"
    else:
        asked = f"{value} BETWEEN '{low}'::{cast} AND '{high}'::{cast}"
    if reading.multiple_of:
        asked += f" AND {_multiple(value_sql(text, reading), reading)}"
    return f"coalesce({asked}, false)"


def _closed_bounds(reading: Reading) -> tuple[int | float | None, int | float | None]:
    """Bounds that belong to the range themselves; those of a number leave out infinity, which does not read."""
    low, high = bounds(reading)
    if reading.kind == "number":
        least, most = -sys.float_info.max if low is None else low, sys.float_info.max if high is None else high
        least = math.nextafter(least, math.inf) if reading.open_low else float(least)
        return least, math.nextafter(most, -math.inf) if reading.open_high else float(most)
    low = low + 1 if low is not None and reading.open_low else low
    return low, high - 1 if high is not None and reading.open_high else high


def value_sql(text: str, reading: Reading) -> str:
    """The value as `reading.read_values` counts: BIGINT microseconds, DOUBLE, or HUGEINT; NULL where none."""
    if reading.kind == "number":
        return f"(CASE WHEN isfinite({_double(text)}) THEN TRY_CAST({text} AS DOUBLE) END)"
    if reading.kind == "integer":
        short = f"regexp_matches({text}, '^[+-]?[0-9]{{1,18}}$') THEN TRY_CAST({text} AS BIGINT)::HUGEINT"
        whole = f"regexp_matches({text}, {literal(INTEGER)}) THEN TRY_CAST({text} AS HUGEINT)"
        return f"(CASE WHEN {short} WHEN {whole} END)"
    found = [_time(text, name, reading.kind) for name in reading.formats]
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def literal(text: str) -> str:
    """A text as an SQL literal."""
    parts = [f"'{part}'" for part in text.replace("'", "''").split("\0")]
    return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"


def _double(text: str) -> str:
    """The nearest double of a text that is shaped as a number; infinity where it overflows."""
    return f"(CASE WHEN regexp_matches({text}, {literal(NUMBER)}) THEN TRY_CAST({text} AS DOUBLE) END)"


def _multiple(value: str, reading: Reading) -> str:
    if reading.kind == "integer":
        return f"{value} % '{int(reading.multiple_of)}'::HUGEINT = 0"
    times = f"({value} / '{float(reading.multiple_of)!r}'::DOUBLE)"
    return f"abs({times} - round_even({times}, 0)) <= '{ULPS!r}'::DOUBLE * greatest('1'::DOUBLE, abs({times}))"


def _time(text: str, name: str, kind: str) -> str:
    """By a cast where DuckDB has one, by its strptime where a pattern has fixed parts, else part by part."""
    wanted = time_format(name)
    shaped = f"regexp_matches({text}, {literal(wanted.regex)})"
    if name in (ISO_TIME, ISO_ZONED, ISO_LOCAL):
        value = f"epoch_us(TRY_CAST({text} AS TIMESTAMP))"  # leaves the zone out
        if name != ISO_LOCAL:
            zone = f"regexp_extract({text}, {literal(f'({ZONE})$')})"
            value += f" + CASE WHEN length({text}) > {SHORTEST_OFFSET} THEN {_zone(zone)} ELSE 0 END"
        return f"(CASE WHEN {shaped} AND {text} >= '0001' THEN {value} END)"
    if name == "yyyy-MM-dd":
        return f"(CASE WHEN {shaped} AND {text} >= '0001' THEN epoch_us(TRY_CAST({text} AS DATE)) END)"
    if directive := "" if name == ISO_CLOCK else _strptime(name):
        parsed = f"TRY_STRPTIME({text}, {literal(directive)})"
        value = f"epoch_us({parsed}) - {MIDNIGHT_1900}" if kind == "clock" else f"epoch_us({parsed})"
        return f"(CASE WHEN {shaped} AND year({parsed}) >= 1 THEN {value} END)"
    return _parts(text, wanted)


def _strptime(name: str) -> str:
    """The strptime format of a pattern, "" where the two could part: fractions, zones, digits next to one letter."""
    parts: list[str] = []
    loose = False  # the part before takes one or two digits
    for piece in PIECES.finditer(name):
        if letters := piece["letters"]:
            if letters not in DIRECTIVES or loose:
                return ""
            parts.append(DIRECTIVES[letters])
            loose = letters in ("M", "d", "H", "h", "m", "s")
        else:
            text = piece["other"] or (piece["quoted"] or "").replace("''", "'") or "'"
            if loose and text[0].isdigit():
                return ""
            parts.append(text.replace("%", "%%"))
            loose = False
    return "".join(parts)


def _parts(text: str, wanted: TimeFormat) -> str:
    """From the captured parts, each taken once: `p` is their struct, all empty where the text does not match."""
    names = ", ".join(f"'{group}'" for group in wanted.groups)
    captured = f"regexp_extract({text}, {literal(wanted.regex)}, [{names}])"
    value = " + ".join([*_day_parts(wanted), *_clock_parts(wanted)])
    value = f"CASE WHEN regexp_matches({text}, {literal(wanted.regex)}) THEN {value} END"
    return f"list_transform([{captured}], lambda p: {value})[1]"


def _day_parts(wanted: TimeFormat) -> list[str]:
    if "day" not in wanted.groups:
        return []
    short = "p.year2::BIGINT"
    year = f"({short} + CASE WHEN {short} >= 69 THEN 1900 ELSE 2000 END)" if "year2" in wanted.groups else "p.year"
    listed = ", ".join(f"'{month[:3]}'" for month in MONTHS)
    month = f"list_position([{listed}], left(p.month_name, 3))" if "month_name" in wanted.groups else "p.month"
    date = f"TRY_CAST({year} || '-' || {month} || '-' || p.day AS DATE)"
    return [f"CASE WHEN {year}::BIGINT >= 1 THEN epoch_us({date}) END"]


def _clock_parts(wanted: TimeFormat) -> list[str]:
    sizes = (("hour", 3600), ("minute", 60), ("second", 1))
    parts = [f"p.{group}::BIGINT * {size * 1_000_000}" for group, size in sizes if group in wanted.groups]
    if "hour12" in wanted.groups:
        half = "CASE WHEN upper(p.half) = 'PM' THEN 12 ELSE 0 END"
        parts.append(f"(p.hour12::BIGINT % 12 + {half}) * {3600 * 1_000_000}")
    if "fraction" in wanted.groups:
        parts.append("left(rpad(p.fraction, 6, '0'), 6)::BIGINT")
    if "zone" in wanted.groups:
        parts.append(_zone("p.zone"))
    return parts or ["0"]


def _zone(zone: str) -> str:
    """Microseconds to add for a zone: the negative of its offset."""
    digits = f"rpad(regexp_replace({zone}, '[^0-9]', '', 'g'), 4, '0')"
    minutes = f"(left({digits}, 2)::BIGINT * 60 + right({digits}, 2)::BIGINT)"
    return f"{minutes} * CASE WHEN left({zone}, 1) = '-' THEN 60000000 ELSE -60000000 END"
