"""What a contract asks for, in words that no engine owns: rules, their limits, and what an engine saw."""

from __future__ import annotations

import math
from dataclasses import dataclass

ROW_KINDS = ("present", "values", "pattern", "length", "reading", "unique")
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
    """What an observed number must be; `unit` is rows or percent (of all rows), `high` the upper end of a between."""

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
        number = f"{self.value:g}" + (f" and {self.high:g}" if self.operator.endswith("Between") else "")
        return f"{signs[self.operator]} {number} {'%' if self.unit == 'percent' else 'rows'}"


@dataclass(frozen=True)
class Reading:
    """A text that must read as a time or a number within bounds.

    kind: time, number or integer. `formats` are strptime formats (time only). Bounds are inclusive unless
    `open_low`/`open_high`; for times they are ISO 8601.
    """

    kind: str
    formats: tuple[str, ...] = ()
    low: str = ""
    high: str = ""
    open_low: bool = False
    open_high: bool = False


@dataclass(frozen=True)
class Rule:
    """One declared rule.

    kind: column (it exists), rows (row count), note (for people), or one of ROW_KINDS, which count broken rows:
        present (a value that is not missing), values (one of `values`), pattern (search, ECMAScript style), length
        (code points), reading, unique (all rows that share a key break it). Missing values break `present` only.
    missing: texts that count as missing beside null.
    severity: error refuses the batch; warning sets the rows aside; info is only told.
    where: path in the YAML.
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
            "pattern": f"matches {self.pattern}",
            "length": f"has {self.low or 0} to {self.high if self.high is not None else 'any number of'} characters",
            "reading": _asked(self.reading),
            "unique": "is unique",
            "note": self.description,
        }
        return asked[self.kind]


@dataclass(frozen=True)
class Column:
    """A declared column. `masked` values (tag pii) are not shown on pages."""

    name: str
    optional: bool = False
    masked: bool = False
    protected: bool = False


@dataclass(frozen=True)
class DataContract:
    """A contract as a frozen list of rules; `digest` is the sha256 of its file."""

    identity: str
    name: str
    version: str
    status: str
    digest: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    max_quarantine_percent: float

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
    kind = f"a time ({', '.join(reading.formats)})" if reading.kind == "time" else f"a {reading.kind}"
    low = f" {'above' if reading.open_low else 'from'} {reading.low}" if reading.low else ""
    high = f" {'below' if reading.open_high else 'to'} {reading.high}" if reading.high else ""
    return f"reads as {kind}{low}{high}"
