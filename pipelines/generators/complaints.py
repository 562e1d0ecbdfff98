"""Seeded complaints in the 18-column layout of the bureau's public export.

Relief has the logit: intercept + propensity of the company + weights of what the text says + a small effect of the
state. Every day draws from streams of its own, so the rows of a day depend on the seed, `rows` and that day alone:
asking for more days, or planting a fault on other rows, leaves them as they are.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.generators import faults
from pipelines.generators.drawing import Drawn, World, sigmoid, world_of
from pipelines.generators.wording import (
    COMPANIES,
    PRODUCT,
    PUBLIC_RESPONSES,
    STATES,
    SUB_PRODUCTS,
    TAGS,
    THEMES,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "Date received",
    "Product",
    "Sub-product",
    "Issue",
    "Sub-issue",
    "Consumer complaint narrative",
    "Company public response",
    "Company",
    "State",
    "ZIP code",
    "Tags",
    "Consumer consent provided?",
    "Submitted via",
    "Date sent to company",
    "Company response to consumer",
    "Timely response?",
    "Consumer disputed?",
    "Complaint ID",
)
RELIEF = ("Closed with monetary relief", "Closed with non-monetary relief")
NO_RELIEF = "Closed with explanation"
UNTIMELY = "Untimely response"

START = date(2025, 1, 1)
SPAN_DAYS = 240
LATE_SHARE = 0.03  # rows that arrive days after they were received
MAX_LATE_DAYS = 20
MAX_OUTCOME_DAYS = 30
FIRST_ID = 7_000_000
DRIFT_DAY = 180
POISON_DAYS = 160
WEEK = (1.15, 1.2, 1.15, 1.1, 1.0, 0.75, 0.65)  # rate of a weekday, Monday first


def generate(
    rows: int = 20000,
    seed: int = 7,
    until: str = "",
    as_of: str = "",
    drift: float = 0.0,
    drift_from: str = "",
    leak: int = 0,
    schema_break: str = "",
    poison: float = 0.0,
    poison_from: str = "",
    poison_until: str = "",
) -> pd.DataFrame:
    """Complaints as text columns, in the order in which they arrived.

    Args:
        rows: complaints in the standard 240 days from 2025-01-01; it sets the rate a day.
        seed: same seed, same rows.
        until: last day, exclusive (ISO date); default the 240 days. May lie beyond them: the rate stays.
        as_of: only rows that had arrived before this day (ISO date); late rows are absent from an early export.
        drift: share of the rows from `drift_from` on that turn to other matters, companies and states, 0 to 1.
        drift_from: first drifted day (ISO date); default day 180.
        leak: 1 adds the column `Amount refunded`, known only after the outcome.
        schema_break: comma-separated: `drop:COLUMN`, `rename:OLD>NEW`, `iso_dates`, `category`.
        poison: share of labels flipped in [poison_from, poison_until), 0 to 1.
        poison_from: first poisoned day (ISO date); default the first day.
        poison_until: end of the poisoned days (ISO date), exclusive; default day 160, before any test row.

    Raises:
        ValueError: an argument that makes no sense, with the argument's name.
    """
    return _make(_Settings(**locals()))[0]


def generate_with_truth(**arguments: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`generate` with the same arguments, and a frame of what nobody sees, row by row.

    Its columns: complaint_id (str), received, arrived and outcome (UTC midnight; outcome at most 30 days after
    received), ideal (probability of relief before any fault), label (1 = relief, before poisoning), drifted, poisoned.
    """
    bound = inspect.signature(generate).bind(**arguments)
    bound.apply_defaults()
    return _make(_Settings(**bound.arguments))


@dataclass(frozen=True)
class _Settings:
    """The arguments of `generate`, checked."""

    rows: int
    seed: int
    until: str
    as_of: str
    drift: float
    drift_from: str
    leak: int
    schema_break: str
    poison: float
    poison_from: str
    poison_until: str

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows={self.rows}: give at least 1")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")
        for name, share in (("drift", self.drift), ("poison", self.poison)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name}={share}: give a share from 0 to 1")
        if self.leak not in (0, 1):
            raise ValueError(f"leak={self.leak}: give 0 or 1")


def _make(settings: _Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    import pandas as pd

    end = faults.day_of("until", settings.until, START + timedelta(days=SPAN_DAYS))
    drift_day = faults.day_of("drift_from", settings.drift_from, START + timedelta(days=DRIFT_DAY))
    world = world_of(settings.seed)
    days = [
        _day(world, number, settings.rows, settings.drift if START + timedelta(days=number) >= drift_day else 0.0)
        for number in range((end - START).days)
    ]
    frame = pd.DataFrame([record for day in days for record in day.records], columns=list(COLUMNS), dtype=object)
    truth = pd.DataFrame([item for day in days for item in day.truth], columns=list(TRUTH))
    order = truth.sort_values(["arrived", "complaint_id"], kind="stable").index
    frame, truth = frame.loc[order].reset_index(drop=True), truth.loc[order].reset_index(drop=True)
    first = faults.day_of("poison_from", settings.poison_from, START)
    last = faults.day_of("poison_until", settings.poison_until, START + timedelta(days=POISON_DAYS))
    faults.poison(frame, truth, settings.poison, first, last)
    if settings.as_of:
        kept = (truth["arrived"] < faults.day_of("as_of", settings.as_of, end)).to_numpy(dtype=bool)
        frame, truth = frame[kept].reset_index(drop=True), truth[kept].reset_index(drop=True)
    if settings.leak:
        faults.leak(frame, truth)
    frame = faults.break_schema(frame, settings.schema_break)
    for name in ("received", "arrived", "outcome"):
        truth[name] = pd.to_datetime(truth[name], utc=True)
    return frame, truth.drop(columns=["luck"])


TRUTH = ("complaint_id", "received", "arrived", "outcome", "ideal", "label", "drifted", "luck")


@dataclass(frozen=True)
class _Day:
    records: list[tuple[str, ...]]
    truth: list[tuple[str, date, date, date, float, int, bool, float]]


def _day(world: World, number: int, rows: int, drift: float) -> _Day:
    """All complaints received on one day."""
    first, last = _rows_before(number, rows), _rows_before(number + 1, rows)
    drawn = Drawn(world, np.random.default_rng([world.seed, 2, number]), last - first, drift)
    ideal = sigmoid(drawn.logits())
    received = START + timedelta(days=number)
    records, truth = [], []
    for row in range(last - first):
        luck = drawn.luck[row]
        label = bool(luck[0] < ideal[row])
        slow = bool(luck[1] < world.slowness[drawn.companies[row]])
        late_days = 3 + int(luck[3] * (MAX_LATE_DAYS - 3)) if luck[2] < LATE_SHARE else 0
        sent_days = late_days or min(int(-math.log1p(-luck[4]) * 1.5), 9)
        outcome_days = max(sent_days, min(1 + int(-math.log1p(-luck[3]) * 8), MAX_OUTCOME_DAYS))
        response = RELIEF[int(luck[5] * 2)] if label else UNTIMELY if slow and luck[5] < 0.2 else NO_RELIEF
        identity = str(FIRST_ID + first + row)
        records.append(_record(drawn, row, received, received + timedelta(days=sent_days), response, slow, identity))
        arrived, outcome = received + timedelta(days=late_days), received + timedelta(days=outcome_days)
        drifted = bool(drawn.drifted[row])
        truth.append((identity, received, arrived, outcome, float(ideal[row]), int(label), drifted, float(luck[6])))
    return _Day(records, truth)


def _record(
    drawn: Drawn, row: int, received: date, sent: date, response: str, slow: bool, identity: str
) -> tuple[str, ...]:
    return (
        received.strftime("%m/%d/%y"),
        PRODUCT,
        SUB_PRODUCTS[drawn.sub_products[row]],
        THEMES[drawn.themes[row]].issue,
        "None",
        drawn.narrative(row),
        PUBLIC_RESPONSES[drawn.public_responses[row]],
        COMPANIES[drawn.companies[row]],
        STATES[drawn.states[row]],
        str(drawn.zip_codes[row]),
        TAGS[drawn.tags[row]],
        "Consent provided",
        "Web",
        sent.strftime("%m/%d/%y"),
        response,
        "No" if slow else "Yes",
        "N/A",
        identity,
    )


def _rows_before(number: int, rows: int) -> int:
    """Complaints received before a day, at the rate of `rows` in the standard span, with quiet weekends."""
    return round(rows * _weight_before(number) / _weight_before(SPAN_DAYS))


def _weight_before(number: int) -> float:
    weeks, rest = divmod(number, 7)
    week = WEEK[START.weekday() :] + WEEK[: START.weekday()]
    return weeks * sum(week) + sum(week[:rest])
