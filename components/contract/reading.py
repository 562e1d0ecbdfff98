"""Texts as times and numbers: date patterns of the standard, and the check of a single value."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from functools import lru_cache

from components.contract.rules import Reading

LETTERS = {
    "yyyy": "%Y",
    "uuuu": "%Y",
    "yy": "%y",
    "MM": "%m",
    "M": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "d": "%d",
    "HH": "%H",
    "H": "%H",
    "hh": "%I",
    "h": "%I",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%f",
    "SSSSSS": "%f",
    "a": "%p",
    "X": "%z",
    "XX": "%z",
    "XXX": "%z",
    "Z": "%z",
}
PIECES = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>(?P<letter>[A-Za-z])(?P=letter)*)|(?P<other>.)", re.DOTALL)
OPTIONAL = re.compile(r"\[[^\[\]]*\]")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


def strptime_formats(pattern: str) -> tuple[str, ...]:
    """strptime formats of a JDK DateTimeFormatter pattern; `[...]` is optional, so `[A][B]` allows A or B.

    Raises:
        ValueError: letters that have no counterpart, or brackets that do not pair.
    """
    sections = [part for part in re.split(f"({OPTIONAL.pattern})", pattern) if part]
    optional = [bool(OPTIONAL.fullmatch(part)) for part in sections]
    if any(("[" in part or "]" in part) and not inside for part, inside in zip(sections, optional, strict=True)):
        raise ValueError(f"the brackets of {pattern!r} do not pair")
    read = [_translate(part[1:-1] if inside else part) for part, inside in zip(sections, optional, strict=True)]
    if all(optional):
        return tuple(dict.fromkeys(read))
    choices = [(text, "") if inside else (text,) for text, inside in zip(read, optional, strict=True)]
    return tuple(dict.fromkeys("".join(choice) for choice in itertools.product(*choices)))


def reads(text: str, reading: Reading) -> bool:
    """Whether the text reads as what is asked, within its bounds."""
    value: datetime | float | None
    if reading.kind == "time":
        value = read_time(text, reading.formats)
    else:
        value = float(text) if (INTEGER if reading.kind == "integer" else NUMBER).fullmatch(text) else None
    if value is None:
        return False
    low, high = bounds(reading)
    if low is not None and (value <= low if reading.open_low else value < low):  # type: ignore[operator]
        return False
    return high is None or (value < high if reading.open_high else value <= high)  # type: ignore[operator]


@lru_cache(maxsize=256)
def bounds(reading: Reading) -> tuple[datetime | float | None, datetime | float | None]:
    """The lowest and the highest value; ValueError where a bound cannot be read."""
    return _bound(reading.low, reading), _bound(reading.high, reading)


@lru_cache(maxsize=65_536)
def read_time(text: str, formats: tuple[str, ...]) -> datetime | None:
    """The time in UTC by the first format that fits; None where none does."""
    for time_format in formats:
        try:
            return _utc(datetime.strptime(text, time_format))
        except (ValueError, OverflowError):
            continue
    return None


def _bound(text: str, reading: Reading) -> datetime | float | None:
    if not text:
        return None
    if reading.kind == "time":
        return read_time(text, reading.formats) or _utc(datetime.fromisoformat(text))
    return float(text)


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _translate(text: str) -> str:
    parts = []
    for piece in PIECES.finditer(text):
        if letters := piece["letters"]:
            if letters not in LETTERS:
                raise ValueError(f"{letters!r} in {text!r} is not understood; known: {', '.join(LETTERS)}")
            parts.append(LETTERS[letters])
        else:
            literal = piece["other"] or (piece["quoted"] or "").replace("''", "'") or "'"
            parts.append(literal.replace("%", "%%"))
    return "".join(parts)
