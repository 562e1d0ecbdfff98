"""Cron expressions as Kubeflow Pipelines reads them: six fields, seconds first, times in the cluster's time zone.

The scheduler parses with robfig/cron v1 and tells a bad expression only by never starting a run, so it is checked
before anything is sent.
"""

from __future__ import annotations

import re

from components.core.errors import UserError

MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
MONTHS = {name: number for number, name in enumerate(MONTH_NAMES, 1)}
DAYS = {name: number for number, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])}
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("seconds", 0, 59, {}),
    ("minutes", 0, 59, {}),
    ("hours", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 6, DAYS),
)
PART = re.compile(r"(?:(\*|\?)|([0-9A-Z]+)(?:-([0-9A-Z]+))?)(?:/([0-9]+))?")
HELP = "write six fields: seconds minutes hours day-of-month month day-of-week, for example '0 0 6 * * 1'"


def check_cron(expression: str) -> str:
    """The expression with single spaces.

    Raises:
        UserError: not six fields, a value out of range, a step of zero, or more than one start a minute.
    """
    fields = expression.upper().split()
    if len(fields) != len(FIELDS):
        raise UserError(f"cron {expression!r}: {len(fields)} fields; {HELP}")
    for text, (name, low, high, names) in zip(fields, FIELDS, strict=True):
        for part in text.split(","):
            if reason := _wrong(part, low, high, names):
                raise UserError(f"cron {expression!r}: {name} {text!r} {reason}; {HELP}")
    if not fields[0].isdigit():
        raise UserError(f"cron {expression!r}: seconds {fields[0]!r} would start more than one run a minute; {HELP}")
    return " ".join(fields)


def _wrong(part: str, low: int, high: int, names: dict[str, int]) -> str:
    """What is wrong with one part of a field; empty where nothing is."""
    match = PART.fullmatch(part)
    if not match:
        return "is not a number, name, range, list or step"
    _, first, last, step = match.groups()
    values = [_number(text, names) for text in (first, last) if text is not None]
    if any(value is None for value in values):
        return "names something unknown"
    numbers = [value for value in values if value is not None]
    if any(not low <= number <= high for number in numbers):
        return f"is outside {low}-{high}"
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        return "runs backwards"
    return "has a step of zero" if step is not None and int(step) == 0 else ""


def _number(text: str, names: dict[str, int]) -> int | None:
    return int(text) if text.isdigit() else names.get(text)
