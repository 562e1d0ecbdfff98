"""Features are what was known at the moment, by an oracle in plain Python that shares no code with the join."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.features.feast_store import FeatureProject, join_history, load_project
from components.features.history import write_history
from components.features.repository import Service, locate
from tests.fakes.feature_rows import Complaint, complaint_recipe, complaints, known_about, seen_by_sql

DELAYS = st.sampled_from([0, 1, 7, 30])
ROW = st.tuples(
    st.integers(0, 70),
    st.sampled_from(["Alpha", "Beta", "beta", "Gamma's", "None", ""]),
    st.sampled_from(["TX", "CA", "None"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
)
ROWS = st.lists(ROW, min_size=1, max_size=40)
# Feast costs a third of a second a join, so these take few but large examples.
JOINS = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Project = tuple[FeatureProject, Service]


@pytest.fixture(scope="module")
def project() -> Project:
    """The complaint project, loaded once."""
    loaded = load_project(locate("feature_repo/complaints"), 0)
    return loaded, loaded.service("complaint_triage_v1")


def _features(project: Project, rows: list[Complaint], delay: int) -> pd.DataFrame:
    """The steps that featurise takes, without the split."""
    recipe = complaint_recipe(features={"label_delay_days": delay})
    seen = seen_by_sql(complaints(rows), recipe)
    middle = seen.typed["event_timestamp"].sort_values().iloc[len(rows) // 2]
    with tempfile.TemporaryDirectory() as folder:
        write_history(locate(recipe.features.repo), project[1].views, seen, Path(folder), [middle])
        return join_history(*project, Path(folder), seen.typed)


def _expected(rows: list[Complaint], asked: list[Complaint], delay: int) -> pd.DataFrame:
    return pd.DataFrame(
        [
            known_about(rows, "company", row[1], row[0], delay) | known_about(rows, "state", row[2], row[0], delay)
            for row in asked
        ]
    )


@JOINS
@given(rows=ROWS, delay=DELAYS, repeated=st.integers(0, 5))
def test_features_are_what_was_known_when_the_row_came(
    project: Project, rows: list[Complaint], delay: int, repeated: int
) -> None:
    """Every row gets the oracle's values in its own place: ties, equal rows, unknown entities, the delay's edge."""
    rows = rows + rows[:repeated]
    got = _features(project, rows, delay)
    assert len(got) == len(rows)
    expected = _expected(rows, rows, delay)[list(got.columns)]
    np.testing.assert_allclose(got.to_numpy(), expected.to_numpy(), rtol=1e-12, equal_nan=True)


@JOINS
@given(rows=ROWS, later=ROWS, delay=DELAYS)
def test_later_rows_change_no_value_of_an_earlier_row(
    project: Project, rows: list[Complaint], later: list[Complaint], delay: int
) -> None:
    """Rows received after the last one leave every value bit for bit as it was."""
    last = max(row[0] for row in rows)
    after = [(last + 1 + day, *rest) for day, *rest in later]
    before: pd.DataFrame = _features(project, rows, delay)
    both = _features(project, after[::2] + rows + after[1::2], delay)
    pd.testing.assert_frame_equal(
        before, both.iloc[len(after[::2]) :].head(len(rows)).reset_index(drop=True), check_exact=True
    )


@JOINS
@given(rows=ROWS, delay=DELAYS, data=st.data())
def test_order_of_the_rows_changes_no_value(
    project: Project, rows: list[Complaint], delay: int, data: st.DataObject
) -> None:
    """Shuffled rows get the same values, each in its new place."""
    order: list[int] = data.draw(st.permutations(range(len(rows))))
    straight = _features(project, rows, delay)
    shuffled = _features(project, [rows[at] for at in order], delay)
    pd.testing.assert_frame_equal(straight.iloc[order].reset_index(drop=True), shuffled, check_exact=True)


@JOINS
@given(rows=ROWS, ttl=st.integers(1, 30))
def test_values_older_than_the_time_to_live_are_not_given(rows: list[Complaint], ttl: int) -> None:
    """A value lives for ttl days and through the last of them; the newest one decides, not an older one."""
    loaded = load_project(locate("feature_repo/complaints"), ttl)
    got = _features((loaded, loaded.service("complaint_triage_v1")), rows, 7)["company_complaint_count"]
    alive: Callable[[Complaint], Any] = lambda row: [  # noqa: E731 - reads as the definition it is
        other[0] for other in rows if other[1] == row[1] and row[0] - 7 - ttl <= other[0] <= row[0] - 7
    ]
    for row, value in zip(rows, got, strict=True):
        assert np.isnan(value) == (not alive(row) or row[1] in ("", "None"))
