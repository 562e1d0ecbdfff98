"""What a contract asks for, in words that no engine owns: rules, their limits, and what an engine saw."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from components.contract.meaning.drift_settings import DriftSettings

ROW_KINDS = (
    "present",
    "values",
    "pattern",
    "length",
    "reading",
    "unique",
    "reference",
    "retention",
    "latency",
    "expectation",
)
SINGLE_KINDS = ("rows", "freshness", "frequency", "sql")
OPERATORS = (
    "mustBe",
    "mustNotBe",
    "mustBeGreaterThan",
    "mustBeGreaterOrEqualTo",
    "mustBeLessThan",
    "mustBeLessOrEqualTo",
    "mustBeBetween",
    "mustNotBeBetween",
)


@dataclass(frozen=True)
class Limit:
    """What an observed number must be; `high` is the upper end of a between.

    unit: rows, percent (of all rows), seconds, or "" for the number that a query gives.
    """

    operator: str = "mustBe"
    value: float = 0.0
    high: float = 0.0
    unit: str = "rows"

    def holds(self, observed: float) -> bool:
        """Whether the number is within the limit; never for NaN or infinity."""
        if not math.isfinite(observed):
            return False
        within = self.value <= observed <= self.high
        outcomes = {
            "mustBe": observed == self.value,
            "mustNotBe": observed != self.value,
            "mustBeGreaterThan": observed > self.value,
            "mustBeGreaterOrEqualTo": observed >= self.value,
            "mustBeLessThan": observed < self.value,
            "mustBeLessOrEqualTo": observed <= self.value,
            "mustBeBetween": within,
            "mustNotBeBetween": not within,
        }
        return outcomes[self.operator]

    @property
    def text(self) -> str:
        """For people: `= 0 rows`, `< 5 %`."""
        signs = dict(zip(OPERATORS, ("=", "≠", ">", "≥", "<", "≤", "between", "not between"), strict=True))
        numbers = [self.value, self.high] if self.operator.endswith("Between") else [self.value]
        told = [duration_text(number) if self.unit == "seconds" else f"{number:g}" for number in numbers]
        unit = {"rows": " rows", "percent": " %"}.get(self.unit, "")
        return f"{signs[self.operator]} {' and '.join(told)}{unit}"


@dataclass(frozen=True)
class Reading:
    """A text that must read as a time or a number within bounds; components/contract/standard/reading.py defines how.

    kind: time (a point in time, UTC where no zone stands), clock (a time of day), number or integer.
    formats: the standard's date patterns without optional sections (time and clock only); the first that fits counts.
    Bounds are inclusive unless `open_low`/`open_high`; for times they are ISO 8601.
    multiple_of: "" or the number whose multiples are allowed.
    """

    kind: str
    formats: tuple[str, ...] = ()
    low: str = ""
    high: str = ""
    open_low: bool = False
    open_high: bool = False
    multiple_of: str = ""


@dataclass(frozen=True)
class Rule:
    """One declared rule.

    kind: one of
        column (it exists), rows (row count), note (for people);
        ROW_KINDS, which count broken rows: present (a value that is not missing), values (one of `values`), pattern
            (RE2 search), length (code points), reading, unique (all rows that share a key break it), reference (the
            key is found in `targets` of some row of the table), retention (a `reading` whose low bound is `now` less
            the agreed time), latency (columns[1] is from 0 to `seconds` after columns[0]), expectation (Great
            Expectations' own). Missing values break `present` only; of several columns, one missing is enough to be
            left out (of `unique`: all).
        SINGLE_KINDS, which measure one number: freshness (seconds from the newest time to `now`), frequency (seconds
            of the longest gap between successive times), sql (what the query gives).
    engine: any, duckdb (kind sql) or great_expectations (kind expectation).
    missing: texts that count as missing beside null.
    severity: error refuses the batch; warning sets the rows aside; info is only told.
    where: path in the YAML.
    reading: how the column's texts are read: kinds reading, retention, freshness, frequency.
    readings: one a column, None for text: kinds latency and expectation.
    targets: kind reference: the columns in which the key is looked up.
    seconds, now: kinds of the SLA: the agreed time, and the time of reading (ISO 8601, UTC); `sla.at_time` fills
        `now`, and a rule without it has no result.
    query: kind sql: one SELECT over the view named by the contract's `table`.
    expectation, arguments: kind expectation: its name in snake case and its arguments as JSON.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    where: str
    severity: str = "error"
    limit: Limit = Limit()
    missing: tuple[str, ...] = ("",)
    values: tuple[str, ...] = ()
    pattern: str = ""
    low: int | None = None
    high: int | None = None
    reading: Reading | None = None
    description: str = ""
    engine: str = "any"
    readings: tuple[Reading | None, ...] = ()
    targets: tuple[str, ...] = ()
    seconds: float = 0.0
    now: str = ""
    query: str = ""
    expectation: str = ""
    arguments: str = ""
    format: str = ""

    @property
    def subject(self) -> str:
        """The column or columns."""
        return ", ".join(self.columns)

    @property
    def of_rows(self) -> bool:
        """Whether single rows can break it."""
        return self.kind in ROW_KINDS

    @property
    def asks(self) -> str:
        """What it asks of a value, for people."""
        asked = {
            "column": "the column exists",
            "rows": "number of rows",
            "present": "has a value",
            "values": f"is one of {', '.join(self.values[:12])}{' …' if len(self.values) > 12 else ''}",
            "pattern": f"is a {self.format}" if self.format else f"matches {self.pattern}",
            "length": f"has {self.low or 0} to {self.high if self.high is not None else 'any number of'} characters",
            "reading": _asked(self.reading),
            "unique": "is unique",
            "reference": f"is found in {', '.join(self.targets)}",
            "retention": f"is at most {duration_text(self.seconds)} old",
            "latency": f"follows {self.columns[0] if self.columns else ''} within {duration_text(self.seconds)}",
            "freshness": f"the newest is at most {duration_text(self.seconds)} old",
            "frequency": f"no gap is longer than {duration_text(self.seconds)}",
            "sql": self.description or self.query,
            "expectation": f"{self.expectation} {self.arguments}",
            "note": self.description,
        }
        return asked[self.kind]


@dataclass(frozen=True)
class Column:
    """A declared column. `masked` values (tag pii) are not shown on pages.

    logical_type: the standard's; `reading` is how its texts are read, None for string and boolean; `missing` are the
    texts that count as missing. `custom`: its customProperties.
    """

    name: str
    optional: bool = False
    masked: bool = False
    protected: bool = False
    logical_type: str = "string"
    physical_type: str = ""
    reading: Reading | None = None
    missing: tuple[str, ...] = ("",)
    description: str = ""
    custom: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class DataContract:
    """A contract as a frozen list of rules; `digest` is the sha256 of its file, `table` the schema object's name."""

    identity: str
    name: str
    version: str
    status: str
    digest: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    max_quarantine_percent: float
    table: str = ""
    owner: str = ""
    key: tuple[str, ...] = ()
    drift: DriftSettings = field(default_factory=DriftSettings)

    def column(self, name: str) -> Column:
        """The declared column, or an undeclared one of that name."""
        return next((column for column in self.columns if column.name == name), Column(name))


@dataclass(frozen=True)
class Observation:
    """What an engine saw of one rule.

    value: rows that break it, or the row count. bad_rows: their positions. looked_at: rows with a value to look at.
    error: why there is no result; then nothing else counts.
    """

    value: float = math.nan
    bad_rows: tuple[int, ...] = ()
    looked_at: int = 0
    error: str = ""


def _asked(reading: Reading | None) -> str:
    if reading is None:
        return ""
    named = {"time": "a time", "clock": "a time of day", "number": "a number", "integer": "an integer"}[reading.kind]
    shown = ", ".join(reading.formats[:4]) + (", …" if len(reading.formats) > 4 else "")
    kind = f"{named} ({shown})" if reading.formats else named
    low = f" {'above' if reading.open_low else 'from'} {reading.low}" if reading.low else ""
    high = f" {'below' if reading.open_high else 'to'} {reading.high}" if reading.high else ""
    multiple = f", a multiple of {reading.multiple_of}" if reading.multiple_of else ""
    return f"reads as {kind}{low}{high}{multiple}"


def duration_text(seconds: float) -> str:
    """A duration for people: `2 d`, `1 h 30 min`, `5 s`."""
    left, parts = abs(seconds), []
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        count, left = divmod(left, size)
        parts += [f"{count:g} {name}"] if count else []
    parts += [f"{left:g} s"] if left or not parts else []
    return ("-" if seconds < 0 else "") + " ".join(parts)
