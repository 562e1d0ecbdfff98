"""Clean text becomes typed rows, or a sentence that says what does not fit."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd
import pytest

from components.core.errors import UserError
from components.features.rows import parse_times, row_ids, typed_rows
from tests.fakes.feature_rows import complaint_recipe, complaints, deliveries, delivery_recipe

ROWS = [(0, "Alpha", "TX", True, False, 1), (1, "Beta", "CA", False, False, 0), (2, "Beta", "CA", False, True, 0)]


def test_columns_and_order() -> None:
    """One typed row a clean row, in order, with label, text, keys and groups."""
    typed = typed_rows(complaints(ROWS), complaint_recipe())
    assert typed["row_id"].tolist() == ["1000", "1001", "1002"]
    assert typed["label"].tolist() == [1, 0, 0]
    assert typed["company"].tolist() == ["Alpha", "Beta", "Beta"]
    assert typed["text"].tolist() == ["words 0", "words 1", "words 2"]
    assert typed["group:Older American"].tolist() == [True, False, False]
    assert typed["event_timestamp"].iloc[1] == datetime(2023, 1, 2, tzinfo=UTC)


def test_a_project_of_other_names() -> None:
    """Several key columns, a zone in the times, no text, a label column called label."""
    frame = deliveries(3)
    typed = typed_rows(frame, delivery_recipe())
    assert typed["row_id"].tolist() == [
        f"{depot}|{number}" for depot, number in zip(frame.depot, frame.number, strict=True)
    ]
    assert typed["event_timestamp"].iloc[0].isoformat() == (
        pd.Timestamp(frame["sent at"].iloc[0]).tz_convert("UTC").isoformat()
    )
    assert set(typed["text"]) == {""}
    assert (typed["label"] == (frame["label"] == "late")).all()


def test_different_keys_never_share_a_row_id() -> None:
    """The separator inside a value is escaped."""
    frame = pd.DataFrame({"a": ["x|y", "x", "x\\"], "b": ["z", "y|z", "|z"]})
    assert row_ids(frame, ("a", "b")).is_unique


def test_the_first_format_that_fits_reads_a_time() -> None:
    """Formats may be mixed in one column."""
    values = pd.Series(["2023-02-03", "02/04/23", "2023-02-05T01:00:00+02:00"], name="when")
    times = parse_times(values, ("%Y-%m-%d", "%m/%d/%y", "%Y-%m-%dT%H:%M:%S%z"))
    assert [time.isoformat() for time in times] == [
        "2023-02-03T00:00:00+00:00",
        "2023-02-04T00:00:00+00:00",
        "2023-02-04T23:00:00+00:00",
    ]


def test_unreadable_dates_are_named_with_examples() -> None:
    """Column, number of rows, formats tried and examples are in the one line."""
    with pytest.raises(UserError, match=r"'when': 2 dates fit none of %Y-%m-%d, for example '31/12/23', ''"):
        parse_times(pd.Series(["2023-01-01", "31/12/23", ""], name="when"), ("%Y-%m-%d",))


def test_a_row_without_outcome_is_not_a_negative() -> None:
    """An empty label is refused, not read as the negative class."""
    frame = complaints(ROWS)
    frame.loc[1, "Company response to consumer"] = " "
    with pytest.raises(UserError, match="empty in 1 clean rows, first at row 2"):
        typed_rows(frame, complaint_recipe())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": {"time_column": "Date recieved"}}, "source.time_column.*did you mean 'Date received'"),
        ({"source": {"key": ["ID"]}}, r"source.key\[0\].*no column 'ID'"),
        (
            {"features": {"entities": {"company": "Compny", "state": "State"}}},
            "entities.company.*did you mean 'Company'",
        ),
        ({"model": {"label_column": "Outcome"}}, "model.label_column.*no column 'Outcome'"),
        ({"model": {"text_column": "Narrative"}}, "model.text_column.*no column 'Narrative'"),
        ({"evaluation": {"groups": [{"name": "g", "column": "Tag", "equals": "x"}]}}, "did you mean 'Tags'"),
        ({"evaluation": {"groups": [{"name": "g", "column": "Tags"}]}}, "give `contains` or `equals`"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_the_nearest(
    changes: dict[str, dict[str, object]], words: str
) -> None:
    """Every column that a recipe names is checked before any work."""
    with pytest.raises(UserError, match=words):
        typed_rows(complaints(ROWS), complaint_recipe(**changes))
