"""Faults that a generator plants on purpose: poisoned labels, a leaking column, a broken schema."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

RESPONSE = "Company response to consumer"
LEAKING = "Amount refunded"
DATES = ("Date received", "Date sent to company")
RELIEF = ("Closed with monetary relief", "Closed with non-monetary relief")
NO_RELIEF = "Closed with explanation"
RENAMED_CATEGORY = {NO_RELIEF: "Closed - explained"}


def day_of(name: str, text: str, default: date) -> date:
    """The day that an argument names, or the default where it is empty; ValueError where it is no ISO date."""
    if not text:
        return default
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r}: give a day as YYYY-MM-DD") from error


def poison(frame: pd.DataFrame, truth: pd.DataFrame, share: float, first: date, last: date) -> None:
    """Flip the response of a share of the rows received in [first, last), in place; nothing else changes."""
    received = truth["received"]
    hit = (received >= first) & (received < last) & (truth["luck"] < share)
    truth["poisoned"] = hit.to_numpy(dtype=bool)
    poisoned = truth["poisoned"]
    relieved = frame.loc[poisoned, RESPONSE].isin(RELIEF)
    frame.loc[poisoned, RESPONSE] = relieved.map({True: NO_RELIEF, False: RELIEF[0]})


def leak(frame: pd.DataFrame, truth: pd.DataFrame) -> None:
    """Add, in place, a column that is known only after the outcome and follows the response in 97 of 100 rows."""
    relieved = frame[RESPONSE].isin(RELIEF).to_numpy()
    odd = (truth["luck"] * 1000 % 100 < 3).to_numpy()
    amounts = (20 + (truth["luck"] * 900).astype(int)).astype(str) + ".00"
    frame[LEAKING] = amounts.where(relieved ^ odd, "0.00").astype(object)


def break_schema(frame: pd.DataFrame, breaks: str) -> pd.DataFrame:
    """Apply `drop:COLUMN`, `rename:OLD>NEW`, `iso_dates` or `category`, comma-separated; ValueError for others."""
    for change in filter(None, breaks.split(",")):
        kind, _, about = change.partition(":")
        old, _, new = about.partition(">")
        if kind in ("drop", "rename") and old not in frame.columns:
            raise ValueError(f"schema_break={change!r}: no column {old!r}; columns: {', '.join(frame.columns)}")
        if kind == "drop":
            frame = frame.drop(columns=[old])
        elif kind == "rename" and new:
            frame = frame.rename(columns={old: new})
        elif change == "iso_dates":
            for name in DATES:
                frame[name] = frame[name].map(lambda text: datetime.strptime(text, "%m/%d/%y").date().isoformat())
        elif change == "category":
            frame[RESPONSE] = frame[RESPONSE].replace(RENAMED_CATEGORY)
        else:
            raise ValueError(f"schema_break={change!r}: give drop:COLUMN, rename:OLD>NEW, iso_dates or category")
    return frame
