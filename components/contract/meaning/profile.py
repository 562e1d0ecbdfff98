"""What a batch looks like: a small record of each column, to compare the next batch with.

Counts of rows, nulls and lengths are of all rows. Categories, formats and numbers are of at most SAMPLE_ROWS rows taken
at even distances, so that a profile costs the same for any size. Of columns with personal data no value is kept: their
categories and examples are shapes (`Aaaa 99`), their quantiles are rounded to tenths of a power of ten.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.contract.engines.batch import Batch
from components.contract.meaning.profile_dates import DateFormat
from components.contract.standard.rules import DataContract
from components.core.engine_time import engine_time
from components.core.errors import IntegrityError
from components.core.records import Record

PROFILE = "profile.json"
SAMPLE_ROWS = 100_000
CATEGORIES, SINGLES = 500, 20  # values kept of a column; of one whose values are mostly single
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
PLACEHOLDERS = ("none", "n/a", "na", "null", "nan", "nil", "-", "--", "?", "unknown", "")


@dataclass(frozen=True, kw_only=True)
class Category(Record):
    """A value (its first 120 characters, or its shape) and the rows that have it."""

    value: str
    count: int


@dataclass(frozen=True, kw_only=True)
class ColumnProfile(Record):
    """One column.

    rows, nulls and missing (null, or a text that the contract counts as missing) are of all rows. looked_at are the
    values in the sample; of these placeholders read `N/A`, `none` and the like, distinct are different, numbers read
    as a number, nonzero are numbers other than 0. quantiles are of the numbers and magnitudes of the nonzero ones'
    absolute values, at QUANTILES. `constant`: one value stands in all rows that have one.
    """

    name: str
    masked: bool
    rows: int
    nulls: int
    missing: int
    looked_at: int
    placeholders: int
    distinct: int
    constant: bool
    shortest: int
    longest: int
    categories: tuple[Category, ...]
    formats: tuple[DateFormat, ...]
    numbers: int
    nonzero: int
    quantiles: tuple[float, ...] = ()
    magnitudes: tuple[float, ...] = ()

    @property
    def absent_share(self) -> float:
        """Share of the rows without a value: missing, or a placeholder's text."""
        missing = self.missing / self.rows if self.rows else 0.0
        return missing + (1 - missing) * self.placeholders / self.looked_at if self.looked_at else missing

    @property
    def date_share(self) -> float:
        """Share of the values that are written as a date."""
        return sum(item.count for item in self.formats) / self.looked_at if self.looked_at else 0.0

    @property
    def number_share(self) -> float:
        """Share of the values that read as a number."""
        return self.numbers / self.looked_at if self.looked_at else 0.0

    @property
    def examples(self) -> str:
        """Up to three frequent values, for people."""
        return ", ".join(repr(item.value[:60]) for item in self.categories[:3])


@dataclass(frozen=True, kw_only=True)
class Profile(Record):
    """A batch: the contract it was read by, where it came from, its time range (ISO 8601 UTC), its columns."""

    contract: str
    version: str
    snapshot_digest: str
    rows: int
    sampled_rows: int
    columns: tuple[ColumnProfile, ...]
    stream: str = ""
    source: str = ""
    time_column: str = ""
    time_min: str = ""
    time_max: str = ""
    since: str = ""
    until: str = ""

    def column(self, name: str) -> ColumnProfile | None:
        """The column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    def write_beside(self, folder: Path) -> None:
        """Write `profile.json` into a (staging) folder."""
        (folder / PROFILE).write_text(json.dumps(self.to_dict(), indent=1, sort_keys=True))


def profile(
    data: pa.Table | Batch,
    contract: DataContract,
    snapshot_digest: str = "",
    first_row: int = 0,
    scratch: Path | None = None,
    **about: str,
) -> Profile:
    """The profile of a batch, or of a table of texts.

    Args:
        data: the batch.
        contract: says which texts count as missing, and which columns hold personal data.
        snapshot_digest: names the batch.
        first_row: rows before it are left out.
        scratch: folder for what does not fit into memory.
        about: further fields of the record: stream, source, time_column, time_min, time_max, since, until.
    """
    known = [contract.column(name) for name in (data.column_names if isinstance(data, pa.Table) else data.names)]
    masked, missing = [column.masked for column in known], [column.missing for column in known]
    with engine_time("duckdb"):
        from components.contract.meaning.profile_duckdb import measure

        rows, sampled, columns = measure(data, masked, missing, first_row, SAMPLE_ROWS, scratch)
    return Profile(
        contract=contract.identity,
        version=contract.version,
        snapshot_digest=snapshot_digest,
        rows=rows,
        sampled_rows=sampled,
        columns=columns,
        **about,
    )


def read_profile(folder: Path) -> Profile:
    """The profile that lies in a published folder; IntegrityError where it is not readable."""
    try:
        values: dict[str, Any] = json.loads((folder / PROFILE).read_text())
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder}: no readable {PROFILE}; run the step that wrote it again") from error
    return Profile.from_dict(values)
