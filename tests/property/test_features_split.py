"""The split in time holds its promises whatever the times are."""

from __future__ import annotations

import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.core.errors import UserError
from components.features.split import known_in_time, split_by_time

START = pd.Timestamp("2023-01-01", tz="UTC")
HOURS = st.lists(st.integers(0, 24 * 200), min_size=1, max_size=120)


def _times(hours: list[int]) -> pd.Series:
    return pd.Series([START + pd.Timedelta(hours=hour) for hour in hours]).astype("datetime64[us, UTC]")


@given(HOURS, st.floats(0.05, 0.5), st.floats(0.02, 0.3), st.integers(0, 40))
def test_gaps_hold_and_every_row_is_in_one_split_or_counted_as_embargoed(
    hours: list[int], test_share: float, validation_share: float, embargo: int
) -> None:
    """Splits follow each other by at least the embargo, share no row, and with the embargoed rows make up all rows."""
    times = _times(hours)
    try:
        split = split_by_time(times, test_share, validation_share, embargo)
    except UserError:  # too short a time: test_too_little_time_is_refused_in_words
        return
    parts = {name: times.iloc[at] for name, at in split.positions.items()}
    gap = pd.Timedelta(days=embargo)
    assert all(len(part) for part in parts.values())
    assert parts["train"].max() + gap <= parts["validation"].min()
    assert parts["validation"].max() + gap <= parts["test"].min()
    taken = [position for at in split.positions.values() for position in at]
    assert len(taken) == len(set(taken))
    assert len(taken) + sum(split.embargoed.values()) == len(times)


@given(
    st.lists(st.tuples(st.integers(0, 24 * 200), st.integers(0, 24 * 90)), min_size=5, max_size=120),
    st.integers(0, 30),
    st.integers(0, 10),
    st.randoms(use_true_random=False),
)
def test_every_training_outcome_was_known_before_the_next_split_began(
    rows: list[tuple[int, int]], delay: int, more: int, draw: random.Random
) -> None:
    """By hand, for each pair of rows: whoever stood at the first validation (or test) row knew all outcomes before.

    An outcome is known `delay` days after its event, and not before its row reached us; most rows come with their
    event, some are late. No row is left out without a reason.
    """
    late = [hours if draw.random() < 0.2 else 0 for _, hours in rows]
    hours = [hour for hour, _ in rows]
    times, recorded = _times(hours), _times([hour + more for hour, more in zip(hours, late, strict=True)])
    embargo = delay + more
    try:
        plain = split_by_time(times, 0.2, 0.2, embargo)
        split = known_in_time(plain, recorded)
    except UserError:
        return
    known = [max(hour + 24 * delay, hour + lateness) for hour, lateness in zip(hours, late, strict=True)]
    parts = {name: set(at.tolist()) for name, at in split.positions.items()}
    for before, after in (("train", "validation"), ("train", "test"), ("validation", "test")):
        first = min(hours[at] for at in parts[after])
        assert all(known[at] <= first for at in parts[before])
    midnight = {
        name: min(hours[at] for at in plain.positions[name].tolist()) // 24 * 24 for name in ("validation", "test")
    }
    for name, after in (("train", "validation"), ("validation", "test")):
        gone = set(plain.positions[name].tolist()) - parts[name]
        assert all(hours[at] + late[at] > midnight[after] for at in gone)
    assert parts["test"] == set(plain.positions["test"].tolist())
    assert sum(map(len, parts.values())) + sum(split.embargoed.values()) == len(rows)


def test_a_split_of_late_rows_only_is_refused_in_words() -> None:
    """A source that was restated leaves nothing to train on that was known in time."""
    times = _times([24 * day for day in range(200)])
    split = split_by_time(times, 0.2, 0.1, 30)
    recorded = times.where(times >= split.validation_from, times.max())
    with pytest.raises(
        UserError, match=r"train split is empty: all of its [0-9]+ rows were added or changed by exports"
    ):
        known_in_time(split, recorded)


@given(HOURS, st.floats(0.05, 0.5))
def test_test_starts_on_the_day_of_the_row_at_its_share_and_misses_nothing_later(
    hours: list[int], test_share: float
) -> None:
    """Test is every row from the start of that day on, so at least its share of the rows."""
    times = _times(hours)
    try:
        split = split_by_time(times, test_share, 0.1, 0)
    except UserError:
        return
    pivot = sorted(times)[min(int((1 - test_share) * len(times)), len(times) - 1)]
    first = pd.Timestamp(pivot.date(), tz="UTC")
    assert sorted(split.positions["test"]) == [at for at, time in enumerate(times) if time >= first]


@given(HOURS)
def test_positions_are_in_order_of_time_and_ties_keep_the_order_of_the_rows(hours: list[int]) -> None:
    """Within a split rows are sorted by time, stably."""
    times = _times(hours)
    try:
        split = split_by_time(times, 0.3, 0.2, 3)
    except UserError:
        return
    for at in split.positions.values():
        keys = [(times.iloc[position], position) for position in at]
        assert keys == sorted(keys)


@pytest.mark.parametrize(("hours", "word"), [([], "no clean rows"), ([5] * 30, "validation split is empty")])
def test_too_little_time_is_refused_in_words(hours: list[int], word: str) -> None:
    """No rows, or rows of one day, cannot be split."""
    with pytest.raises(UserError, match=word):
        split_by_time(_times(hours), 0.2, 0.1, 30)
