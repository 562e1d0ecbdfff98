"""Which date formats a column's texts are written in, told from tallies of their shapes.

Whether `08/01/25` is the first of August or the eighth of January is told by impossible values (a part above 12 is
the day), and where there are none by distribution: in a short interval the month stands still while the days pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from components.core.records import Record

MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
TIME = r"(?:([T ]+)\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?( ?[AaPp][Mm])?( ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?)?"
TWO_PARTS = rf"^(\d{{1,2}})([-/.])(\d{{1,2}})[-/.](\d{{4}}|\d{{2}}){TIME}$"
YEAR_FIRST = rf"^(\d{{4}})([-/.])(\d{{1,2}})[-/.](\d{{1,2}}){TIME}$"
COMPACT = rf"^((?:19|20)\d{{2}})((?:0[1-9]|1[0-2]))((?:0[1-9]|[12]\d|3[01])){TIME}$"
DAY_NAMED = rf"(?i)^(\d{{1,2}})([- ./]?)(?:{MONTHS})[a-z]*[- ,./]*(\d{{4}}|\d{{2}}){TIME}$"
NAMED_DAY = rf"(?i)^(?:{MONTHS})[a-z]*\.? (\d{{1,2}}),? (\d{{4}}){TIME}$"
DATES = (TWO_PARTS, YEAR_FIRST, COMPACT, DAY_NAMED, NAMED_DAY)
MIN_DISTINCT_DAYS = 5  # of the passing part, and MIN_ROWS rows, before the distribution tells the order
MIN_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class DateFormat(Record):
    """A format in the letters of JDK patterns, the rows written in it, and one of them.

    `certain` is False where the order of day and month was told by distribution only.
    """

    pattern: str
    count: int
    example: str
    certain: bool = True

    @property
    def ambiguous(self) -> bool:
        """Whether day and month cannot be told apart."""
        return " or " in self.pattern


@dataclass(frozen=True)
class DateTally:
    """Rows of one shape, their first and second part counted: how often above 12, how many distinct.

    kind: parts (two parts and the year), year (year first), compact, day_named or named_day. `examples` are of any
    row, of one whose first part is above 12, and of one whose second is.
    """

    kind: str
    separator: str
    year_digits: int
    time: str
    rows: int
    examples: tuple[str, str, str]
    first_over: int = 0
    second_over: int = 0
    first_distinct: int = 0
    second_distinct: int = 0


def date_formats(tallies: Sequence[DateTally]) -> tuple[DateFormat, ...]:
    """The formats behind the tallies, most frequent first; rows without evidence are shared out as those with it."""
    found: dict[str, DateFormat] = {}
    for tally in tallies:
        for item in _formats(tally):
            known = found.get(item.pattern)
            count = item.count + (known.count if known else 0)
            example = known.example if known else item.example
            certain = item.certain or bool(known and known.certain)
            found[item.pattern] = DateFormat(pattern=item.pattern, count=count, example=example, certain=certain)
    return tuple(sorted(found.values(), key=lambda item: (-item.count, item.pattern)))


def twin(pattern: str) -> str:
    """The pattern with day and month swapped."""
    return pattern.replace("MM", "\0").replace("dd", "MM").replace("\0", "dd")


def _formats(tally: DateTally) -> list[DateFormat]:
    separator, year = tally.separator, "y" * tally.year_digits
    if tally.kind == "parts":
        month_first = f"MM{separator}dd{separator}{year}{tally.time}"
    elif tally.kind == "year":
        month_first = f"yyyy{separator}MM{separator}dd{tally.time}"
    else:
        named = {"compact": "yyyyMMdd", "day_named": f"dd{separator}MMM{separator}{year}", "named_day": "MMM dd, yyyy"}
        return [DateFormat(pattern=named[tally.kind] + tally.time, count=tally.rows, example=tally.examples[0])]
    return _ordered(tally, month_first)


def _ordered(tally: DateTally, month_first: str) -> list[DateFormat]:
    """Month first or day first, or both side by side."""
    day_first = twin(month_first)
    evidence = tally.first_over + tally.second_over
    if evidence:
        day_rows = round(tally.rows * tally.first_over / evidence)
        parts = (
            (month_first, tally.rows - day_rows, tally.examples[2]),
            (day_first, day_rows, tally.examples[1]),
        )
        return [DateFormat(pattern=name, count=count, example=example) for name, count, example in parts if count]
    if tally.kind == "year":
        return [DateFormat(pattern=month_first, count=tally.rows, example=tally.examples[0])]
    pattern, certain = f"{month_first} or {day_first}", True
    if tally.rows >= MIN_ROWS and 1 in (tally.first_distinct, tally.second_distinct):
        if tally.second_distinct >= MIN_DISTINCT_DAYS:
            pattern, certain = month_first, False
        elif tally.first_distinct >= MIN_DISTINCT_DAYS:
            pattern, certain = day_first, False
    return [DateFormat(pattern=pattern, count=tally.rows, example=tally.examples[0], certain=certain)]
