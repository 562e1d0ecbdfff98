"""The standard's date patterns (JDK DateTimeFormatter) as strict regular expressions that every engine can run."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
ISO_TIME, ISO_CLOCK = "ISO 8601", "ISO 8601 time of day"
ISO_ZONED, ISO_LOCAL = "ISO 8601 with zone", "ISO 8601 without zone"

DAY_OF_MONTH = "0[1-9]|[12][0-9]|3[01]"
ZONE = "Z|[+-](?:0[0-9]|1[0-8])(?::?[0-5][0-9])?"
SHAPES = {
    "yyyy": ("year", "[0-9]{4}"),
    "uuuu": ("year", "[0-9]{4}"),
    "yy": ("year2", "[0-9]{2}"),
    "MM": ("month", "0[1-9]|1[0-2]"),
    "M": ("month", "0?[1-9]|1[0-2]"),
    "MMM": ("month_name", "|".join(name[:3] for name in MONTHS)),
    "MMMM": ("month_name", "|".join(MONTHS)),
    "dd": ("day", DAY_OF_MONTH),
    "d": ("day", f"{DAY_OF_MONTH}|[1-9]"),
    "HH": ("hour", "[01][0-9]|2[0-3]"),
    "H": ("hour", "[01]?[0-9]|2[0-3]"),
    "hh": ("hour12", "0[1-9]|1[0-2]"),
    "h": ("hour12", "0?[1-9]|1[0-2]"),
    "mm": ("minute", "[0-5][0-9]"),
    "m": ("minute", "[0-5]?[0-9]"),
    "ss": ("second", "[0-5][0-9]"),
    "s": ("second", "[0-5]?[0-9]"),
    "a": ("half", "AM|PM|am|pm"),
    **{"S" * digits: ("fraction", f"[0-9]{{{digits}}}") for digits in range(1, 10)},
    **dict.fromkeys(("X", "XX", "XXX", "Z"), ("zone", ZONE)),
}
PIECES = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>(?P<letter>[A-Za-z])(?P=letter)*)|(?P<other>.)", re.DOTALL)
OPTIONAL = re.compile(r"\[[^\[\]]*\]")
MAX_FORMATS = 64


@dataclass(frozen=True)
class TimeFormat:
    """One way to write a time: a text fits when the whole of it matches and the day is in the calendar.

    regex: RE2 with one plain capture group a name of `groups`, anchored at both ends.
    groups: in the order of the captures; each of year (0001 to 9999), year2 (69 to 99 are 1969 to 1999, 00 to 68 are
        2000 to 2068), month, month_name (English, the first three letters tell it), day, hour, hour12 with half,
        minute, second, fraction (zero to nine digits, filled up with zeros and cut to microseconds), zone (empty or
        UTC: Z, or an offset in hours and minutes). What a format leaves out is zero.
    """

    regex: str
    groups: tuple[str, ...]

    @property
    def named(self) -> str:
        """The regex with named groups, as pyarrow.compute.extract_regex wants them."""
        names = iter(self.groups)
        pieces = re.findall(r"\\.|\(\?:|.", self.regex, re.DOTALL)
        return "".join(f"(?P<{next(names)}>" if piece == "(" else piece for piece in pieces)


_DAY = f"([0-9]{{4}})-(0[1-9]|1[0-2])-({DAY_OF_MONTH})"
_CLOCK = r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,9}))?"
_GROUPS = ("year", "month", "day", "hour", "minute", "second", "fraction")
BUILT_IN = {
    ISO_TIME: TimeFormat(f"^{_DAY}[T ]{_CLOCK}({ZONE}|)$", (*_GROUPS, "zone")),
    ISO_ZONED: TimeFormat(f"^{_DAY}[T ]{_CLOCK}({ZONE})$", (*_GROUPS, "zone")),
    ISO_LOCAL: TimeFormat(f"^{_DAY}[T ]{_CLOCK}$", _GROUPS),
    ISO_CLOCK: TimeFormat(f"^{_CLOCK}$", _GROUPS[3:]),
}


def formats_of(pattern: str, kind: str) -> tuple[str, ...]:
    """The patterns without optional sections that a pattern stands for; `[...]` is optional, so `[A][B]` is A or B.

    Args:
        pattern: letters as in JDK DateTimeFormatter; one letter takes one or two digits, two letters exactly two.
        kind: time (a day is needed) or clock (an hour is needed, no day and no zone).

    Raises:
        ValueError: letters without a counterpart, brackets that do not pair, a part that is missing or given twice.
    """
    sections = [part for part in re.split(f"({OPTIONAL.pattern})", pattern) if part]
    optional = [bool(OPTIONAL.fullmatch(part)) for part in sections]
    if any(("[" in part or "]" in part) and not inside for part, inside in zip(sections, optional, strict=True)):
        raise ValueError(f"the brackets of {pattern!r} do not pair")
    if sections and all(optional):
        found = [part[1:-1] for part in sections]
    else:
        pairs = zip(sections, optional, strict=True)
        choices = [(part[1:-1], "") if inside else (part,) for part, inside in pairs]
        if 2 ** sum(optional) > MAX_FORMATS:
            raise ValueError(f"{pattern!r} has {sum(optional)} optional sections; write at most 6")
        found = ["".join(choice) for choice in itertools.product(*choices)]
    for text in found:
        _check(_compile(text).groups, text, kind)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=256)
def time_format(pattern: str) -> TimeFormat:
    """The strict form of a pattern without optional sections, or of a built-in one; ValueError for unknown letters."""
    return BUILT_IN.get(pattern) or _compile(pattern)


def _compile(pattern: str) -> TimeFormat:
    parts, groups = [], []
    for piece in PIECES.finditer(pattern):
        if letters := piece["letters"]:
            if letters not in SHAPES:
                raise ValueError(f"{letters!r} in {pattern!r} is not understood; known: {', '.join(SHAPES)}")
            name, shape = SHAPES[letters]
            groups.append(name)
            parts.append(f"({shape})")
        else:
            literal = piece["other"] or (piece["quoted"] or "").replace("''", "'") or "'"
            parts.append(re.escape(literal))
    return TimeFormat(f"^{''.join(parts)}$", tuple(groups))


def _check(groups: tuple[str, ...], pattern: str, kind: str) -> None:
    given = set(groups)
    twice = [name for name in groups if groups.count(name) > 1]
    years, months = given & {"year", "year2"}, given & {"month", "month_name"}
    hours = given & {"hour", "hour12"}
    if twice or len(years) > 1 or len(months) > 1 or len(hours) > 1:
        raise ValueError(f"{pattern!r} gives one part of a time twice")
    if ("half" in given) != ("hour12" in given):
        raise ValueError(f"{pattern!r}: hh and a belong together; write both, or HH")
    if (given & {"second", "fraction"} and "minute" not in given) or ("minute" in given and not hours):
        raise ValueError(f"{pattern!r} gives a small part of the time of day without the larger one")
    if "fraction" in given and "second" not in given:
        raise ValueError(f"{pattern!r} gives a fraction without its second")
    if kind == "time" and not (years and months and "day" in given):
        raise ValueError(f"{pattern!r} names no day; write year, month and day")
    if kind == "clock" and (not hours or years or months or given & {"day", "zone"}):
        raise ValueError(f"{pattern!r} is no time of day; write hours (HH), minutes, seconds and nothing else")
