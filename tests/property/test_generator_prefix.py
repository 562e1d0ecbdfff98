"""Rows of the generator do not depend on what is asked besides."""

from __future__ import annotations

from datetime import date, timedelta

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.generators.complaints import generate, generate_with_truth
from pipelines.generators.faults import RESPONSE

DAYS = st.integers(0, 260).map(lambda number: (date(2025, 1, 1) + timedelta(days=number)).isoformat())
ROWS = 600


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 5), DAYS, DAYS)
def test_a_shorter_request_gives_the_same_rows(seed: int, one: str, other: str) -> None:
    """Asked until an earlier day, the rows are those of the longer request received before that day."""
    short, long = sorted((one, other))
    few = generate(rows=ROWS, seed=seed, until=short)
    many, truth = generate_with_truth(rows=ROWS, seed=seed, until=long)
    kept = (truth["received"] < short).to_numpy(dtype=bool)
    pd.testing.assert_frame_equal(few, many[kept].reset_index(drop=True))


@settings(max_examples=12, deadline=None)
@given(st.floats(0, 1), DAYS, DAYS)
def test_poison_changes_only_responses_in_its_window(share: float, one: str, other: str) -> None:
    """All other cells, and the responses outside the window, are as without poison; the hidden label stays."""
    first, last = sorted((one, other))
    plain, clean_truth = generate_with_truth(rows=ROWS)
    flipped, truth = generate_with_truth(rows=ROWS, poison=share, poison_from=first, poison_until=last)
    pd.testing.assert_frame_equal(flipped.drop(columns=RESPONSE), plain.drop(columns=RESPONSE))
    changed = (flipped[RESPONSE] != plain[RESPONSE]).to_numpy()
    inside = ((truth["received"] >= first) & (truth["received"] < last)).to_numpy()
    assert not (changed & ~inside).any()
    assert (changed == truth["poisoned"].to_numpy()).all()
    relieved = flipped[RESPONSE].str.contains("relief").astype(int).to_numpy()
    assert ((relieved != truth["label"].to_numpy()) == changed).all()
    pd.testing.assert_series_equal(truth["label"], clean_truth["label"])
    assert share < 1 or (changed == inside).all()


@settings(max_examples=6, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_more_poison_holds_less(one: float, other: float) -> None:
    """The rows flipped by a smaller share are among those flipped by a larger one."""
    less, more = sorted((one, other))
    few = generate_with_truth(rows=ROWS, poison=less)[1]["poisoned"]
    many = generate_with_truth(rows=ROWS, poison=more)[1]["poisoned"]
    assert (many | ~few).all()
