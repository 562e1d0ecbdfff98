"""Pushed rows: the newest event wins whatever the order and the batches; a bad row is told and nothing else is lost."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.errors import UserError
from components.features.latest.sqlite import SqliteLatest
from components.features.online import OnlineReader
from components.features.push import Pushed, push
from components.features.repository import Service, View

START = datetime(2024, 1, 1, tzinfo=UTC)
VIEWS = (View("one", "one", ("who",), ("a", "b")), View("two", "two", ("who", "Where"), ("c",)))
SERVICE = Service("s", ("a", "b", "c"), VIEWS)
GOOD: dict[str, Any] = {"view": "one", "who": "x", "event_timestamp": "2024-01-01", "a": 1, "b": None}
Row = tuple[str, str, int, int, float | None]  # view, who, event hour, made hours later, value

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        st.sampled_from(["x", "y", "z\u00a0é"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.one_of(st.none(), st.floats(-9, 9)),
    ),
    max_size=12,
    unique_by=lambda row: row[:4],
)


def line(row: Row) -> str:
    """As a producer writes it."""
    view, who, hour, later, value = row
    event = START + timedelta(hours=hour)
    made = {"event_timestamp": event.isoformat(), "created_timestamp": (event + timedelta(hours=later)).isoformat()}
    own = {"a": value, "b": hour} if view == "one" else {"Where": "here", "c": value}
    return json.dumps({"view": view, "who": who} | made | own)


def pushed(folder: Path, lines: list[Any], **how: Any) -> list[Pushed]:
    """What became of each batch."""
    store = SqliteLatest(folder / "online.db")
    try:
        return list(push(store, "p", SERVICE, lines, **how))
    finally:
        store.close()


def read(folder: Path, who: str) -> dict[str, dict[str, Any]]:
    """As the scoring service reads."""
    with OnlineReader(
        SqliteLatest(folder / "online.db"), "p", SERVICE, SERVICE.features, timedelta(0), "default"
    ) as reader:
        return reader.read({"who": who, "Where": "here"})


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(0, 4), st.randoms(use_true_random=False))
def test_the_newest_event_wins_in_any_order_and_batches(rows: list[Row], batch: int, draw: Any) -> None:
    """For each entity the row of the last event, of one event the one made last; pushing again changes nothing."""
    shuffled = [*rows, *rows[:3]]
    draw.shuffle(shuffled)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = pushed(folder, [line(row) for row in shuffled], batch=batch)
        assert (sum(one.rows + one.older for one in done), [one for one in done if one.rejected]) == (len(shuffled), [])
        for who in ("x", "y", ""):
            found = read(folder, who)
            for view, feature in (("one", "a"), ("two", "c")):
                own = [row for row in rows if row[0] == view and row[1] == who]
                if not own:
                    assert found[feature] == {"value": None, "as_of": "", "fresh": False}
                    continue
                newest = max(own, key=lambda row: (row[2], row[3]))
                assert found[feature]["value"] == newest[4]
                assert found[feature]["as_of"] == (START + timedelta(hours=newest[2])).isoformat()


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is no JSON object"),
    "no text": (b"\xff\xfe", "is no JSON object"),
    "a list": ([1], "is no JSON object"),
    "deeply nested": ("[" * 100_000, "is no JSON object"),
    "another view": (GOOD | {"view": "three"}, "'view' names none of one, two"),
    "no view": ({key: value for key, value in GOOD.items() if key != "view"}, "'view' names none of"),
    "no key": ({key: value for key, value in GOOD.items() if key != "who"}, "'who' is missing"),
    "a name twice": (b'{"who": "a", "who": "b"}', "'who' stands there twice"),
    "an empty key": (GOOD | {"who": ""}, "join key 'who' is empty or holds a NUL"),
    "a key with a NUL": (GOOD | {"who": "T\0X"}, "join key 'who' is empty or holds a NUL"),
    "a key that is no text": (GOOD | {"who": 7}, "join key 'who' is no text"),
    "no feature": ({key: value for key, value in GOOD.items() if key != "b"}, "'b' is missing"),
    "a feature too many": (GOOD | {"event_timestmap": 1}, "did you mean 'event_timestamp'"),
    "a text as number": (GOOD | {"a": "secret"}, "feature 'a' is no number"),
    "true as number": (GOOD | {"a": True}, "feature 'a' is no number"),
    "not a number": ('{"view": "one", "who": "x", "event_timestamp": "2024-01-01", "a": NaN, "b": 1}', "not finite"),
    "too large": (GOOD | {"a": 10**400}, "feature 'a' is too large"),
    "no time": (GOOD | {"event_timestamp": "June"}, "'event_timestamp' is no time"),
    "the future": (GOOD | {"event_timestamp": "2999-01-01"}, "lies in the future"),
    "made before it was": (GOOD | {"created_timestamp": "2023-01-01"}, "cannot be made before its event"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_one_line_and_its_batch_is_not_written(case: str, tmp_path: Path) -> None:
    """With its number and never its values; skipped where asked for, the others then are written."""
    bad, words = BAD[case]
    bad = bad if isinstance(bad, str | bytes) else json.dumps(bad)
    lines = [json.dumps(GOOD), "", bad, json.dumps(GOOD | {"who": "y"})]
    (done,) = pushed(tmp_path, lines)
    assert (done.rows, [one.line for one in done.rejected]) == (0, [3])
    error = done.rejected[0].error
    assert words in error
    assert "\n" not in error
    assert "secret" not in error
    assert read(tmp_path, "x")["a"]["value"] is read(tmp_path, "y")["a"]["value"] is None
    (done,) = pushed(tmp_path, lines, skip_bad=True)
    assert (done.rows, len(done.rejected)) == (2, 1)
    assert read(tmp_path, "x")["a"]["value"] == read(tmp_path, "y")["a"]["value"] == 1.0


def test_a_bad_batch_ends_the_reading_and_those_before_it_stay(tmp_path: Path) -> None:
    """Of three batches the second has a bad row: the third is not read."""
    lines = [json.dumps(GOOD | {"a": 5}), "{", json.dumps(GOOD | {"who": "y"})]
    done = pushed(tmp_path, lines, batch=1)
    assert [(one.rows, len(one.rejected)) for one in done] == [(1, 0), (0, 1)]
    assert read(tmp_path, "x")["a"]["value"] == 5.0
    assert read(tmp_path, "y")["a"]["value"] is None


def test_a_view_may_be_named_once_for_all(tmp_path: Path) -> None:
    """Rows without one are of it; an unknown one is refused with the nearest."""
    row = {key: value for key, value in GOOD.items() if key != "view"}
    (done,) = pushed(tmp_path, [json.dumps(row)], default_view="one")
    assert done.rows == 1
    with pytest.raises(UserError, match=r"--view: feature service s has no view 'ones'; did you mean 'one'"):
        pushed(tmp_path, [json.dumps(row)], default_view="ones")
