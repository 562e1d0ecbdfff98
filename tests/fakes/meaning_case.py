"""Batches drawn from one world, and the changes of meaning that can be planted in them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from components.contract.meaning.drift_settings import DriftSettings
from components.contract.meaning.findings import findings
from components.contract.meaning.profile import (
    CATEGORIES,
    PLACEHOLDERS,
    QUANTILES,
    SINGLES,
    Category,
    ColumnProfile,
    Profile,
    profile,
)
from components.contract.meaning.profile_dates import DateTally, date_formats
from components.contract.standard.rules import Column, DataContract, Reading, Rule
from components.core.records import RuleResult

Batch = dict[str, list[str]]
Plant = Callable[[Batch], Batch]
STATUSES = ("Closed with explanation", "Closed with relief", "In progress", "Untimely", "Withdrawn")
CITIES = tuple(
    f"{first}{second}"
    for first in ("North", "South", "East", "West", "New ")
    for second in ("ham", "field", "port", "bridge", "mouth", "wick", "stead", "ford")
)
START = date(2025, 1, 1)
DAY = "%m/%d/%y"
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def contract_of(**settings: Any) -> DataContract:
    """A contract of the batches' columns; `settings` are of DriftSettings."""
    names = ("day", "amount", "status", "city", "flag", "comment", "person", "id")
    columns = tuple(Column(name, masked=name == "person", missing=("",)) for name in names)
    rules = (
        *(Rule("column", "column", (name,), "") for name in names),
        Rule("unique", "unique", ("id",), ""),
        Rule("date", "reading", ("day",), "", reading=Reading("time", ("MM/dd/yy",))),
    )
    return DataContract("case", "case", "1.0.0", "", "c" * 64, columns, rules, 10.0, drift=DriftSettings(**settings))


def draw(seed: int, rows: int = 2000, first_day: int = 0, days: int = 90) -> Batch:
    """An ordinary batch: dates, heavy-tailed amounts (one in five zero), categories rare and common, absent cells."""
    stream = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(CITIES) + 1)
    offsets = np.sort(stream.integers(first_day, first_day + days, rows))
    amounts = np.where(stream.random(rows) < 0.2, 0.0, stream.lognormal(5, 1.2, rows))
    status = stream.choice(STATUSES, rows, p=(0.7, 0.15, 0.08, 0.05, 0.02))
    first = int(stream.integers(1_000_000, 2_000_000))
    return {
        "day": [(START + timedelta(days=int(offset))).strftime(DAY) for offset in offsets],
        "amount": [f"{amount:.2f}" for amount in amounts],
        "status": [str(name) for name in status],
        "city": [str(name) for name in stream.choice(CITIES, rows, p=weights / weights.sum())],
        "flag": ["Yes" if number < 0.9 else "No" for number in stream.random(rows)],
        "comment": ["" if number < 0.3 else f"comment {int(number * 1e6)}" for number in stream.random(rows)],
        "person": [("TX", "CA", "None")[int(number * 2.1)] for number in stream.random(rows)],
        "id": [str(first + number) for number in range(rows)],
    }


def profile_of(batch: Mapping[str, list[str]], contract: DataContract, digest: str = "d" * 64) -> Profile:
    """The profile of a batch, with the time range of its days."""
    table = pa.table({name: pa.array(values, pa.string()) for name, values in batch.items()})
    return profile(table, contract, digest, 0, None, **_range(batch))


def plain_profile(batch: Mapping[str, list[str]], contract: DataContract, digest: str = "d" * 64) -> Profile:
    """The same in plain Python: the oracle for the real one, and quicker for few rows."""
    columns = tuple(_column(name, values, contract.column(name)) for name, values in batch.items())
    rows = len(columns and batch[columns[0].name])
    return Profile(
        contract=contract.identity,
        version=contract.version,
        snapshot_digest=digest,
        rows=rows,
        sampled_rows=rows,
        columns=columns,
        **_range(batch),
    )


def _column(name: str, values: list[str], column: Column) -> ColumnProfile:
    present = [value for value in values if value not in column.missing]
    numbers = sorted(float(value) for value in present if NUMBER.fullmatch(value))
    sizes = sorted(abs(number) for number in numbers if number)
    measured = len(numbers) > len(present) / 2
    shown = Counter(_shape(value) if column.masked else value for value in present)
    kept = sorted(shown.items(), key=lambda item: (-item[1], item[0]))
    kept = kept[: SINGLES if len(kept) > len(present) / 2 else CATEGORIES]
    return ColumnProfile(
        name=name,
        masked=column.masked,
        rows=len(values),
        nulls=0,
        missing=len(values) - len(present),
        looked_at=len(present),
        placeholders=sum(value.strip(" ").lower() in PLACEHOLDERS for value in present),
        distinct=len(set(present)),
        constant=len(set(present)) == 1,
        shortest=min(map(len, present), default=0),
        longest=max(map(len, present), default=0),
        categories=tuple(Category(value=value, count=count) for value, count in kept),
        formats=date_formats(_tallies(present, column.masked)),
        numbers=len(numbers),
        nonzero=len(sizes) if measured else 0,
        quantiles=_quantiles(numbers, column.masked) if measured else (),
        magnitudes=_quantiles(sizes, column.masked) if measured else (),
    )


def _quantiles(ordered: list[float], masked: bool) -> tuple[float, ...]:
    """The first value up to which the share lies."""
    found = [next(v for n, v in enumerate(ordered, 1) if n >= share * len(ordered)) for share in QUANTILES if ordered]
    return tuple(
        math.copysign(float(f"{10 ** (round(10 * math.log10(abs(v))) / 10):.3g}"), v) if masked and v else v
        for v in found
    )


def _tallies(present: list[str], masked: bool) -> list[DateTally]:
    """Dates with slashes and ISO dates."""
    shapes = (
        ("parts", re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})"), "/"),
        ("year", re.compile(r"\d{4}-(\d{1,2})-(\d{1,2})"), "-"),
    )
    found = []
    for kind, expression, separator in shapes:
        read = [(text, match) for text in present if (match := expression.fullmatch(text))]
        by_year: dict[int, list[tuple[str, int, int]]] = {}
        for text, match in read:
            a, b = int(match[1]), int(match[2])
            if 1 <= a <= 31 and 1 <= b <= 31 and min(a, b) <= 12:
                by_year.setdefault(len(match[3]) if kind == "parts" else 4, []).append((text, a, b))
        for year, items in by_year.items():
            over_a, over_b = [i for i in items if i[1] > 12], [i for i in items if i[2] > 12]
            shown = [
                min((_shape(t) if masked else t for t, _, _ in some), default="") for some in (items, over_a, over_b)
            ]
            counts = (len(over_a), len(over_b), len({i[1] for i in items}), len({i[2] for i in items}))
            found.append(DateTally(kind, separator, year, "", len(items), (shown[0], shown[1], shown[2]), *counts))
    return found


def _shape(text: str) -> str:
    if len(text) > 24:
        return "text of more than 24"
    signs = {"Lu": "A", "Ll": "a", "Lo": "a", "Nd": "9", "Nl": "9", "No": "9"}
    return "".join(signs.get(unicodedata.category(sign), sign) for sign in text)


def compared(batch: Batch, *history: Batch, contract: DataContract | None = None) -> tuple[RuleResult, ...]:
    """The findings on a batch after others."""
    contract = contract or contract_of()
    return findings(contract, plain_profile(batch, contract), [plain_profile(item, contract) for item in history])


def failed(results: tuple[RuleResult, ...]) -> set[tuple[str, str]]:
    """(kind, column) of the failing findings."""
    return {(item.rule.removeprefix("meaning: "), item.subject) for item in results if item.outcome == "fail"}


def mapped(column: str, change: Callable[[str], str], share: float = 1.0) -> Plant:
    """A plant that changes the values of a column, in the last `share` of the rows."""

    def plant(batch: Batch) -> Batch:
        values = batch[column]
        first = round(len(values) * (1 - share))
        return batch | {column: [*values[:first], *map(change, values[first:])]}

    return plant


def renamed(column: str, old: str, new: str, share: float = 1.0) -> Plant:
    """A plant that renames a category."""
    return mapped(column, lambda text: new if text == old else text, share)


def swapped(text: str) -> str:
    """Day and month of MM/dd/yy in each other's place."""
    month, day, year = text.split("/")
    return f"{day}/{month}/{year}"


def iso(text: str) -> str:
    """MM/dd/yy as yyyy-MM-dd."""
    month, day, year = text.split("/")
    return f"20{year}-{month}-{day}"


def _range(batch: Mapping[str, list[str]]) -> dict[str, str]:
    """The first and the last day."""
    days = sorted(day for text in batch.get("day", []) if (day := _day(text)))
    return {"time_min": f"{days[0]}T00:00:00+00:00", "time_max": f"{days[-1]}T00:00:00+00:00"} if days else {}


def _day(text: str) -> str:
    parts = text.split("/")
    return f"20{parts[2]}-{parts[0]}-{parts[1]}" if len(parts) == 3 and int(parts[0]) <= 12 else ""
