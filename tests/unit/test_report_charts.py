"""Charts from numbers: what is no number is left out, and pixels follow values."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.report import words
from pipelines.report.charts import Axis, Frame, Series, Whisker, histogram_pair, interval_chart, line_chart, ticks

numbers = st.floats(-1e6, 1e6)


@given(low=numbers, span=st.floats(1e-3, 1e6))
def test_ticks_are_round_ordered_and_inside(low: float, span: float) -> None:
    """Between two and a dozen ticks lie in the range with equal steps."""
    found = ticks(low, low + span)
    slack = span * 1e-5
    assert 1 <= len(found) <= 12
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    steps = [later - earlier for earlier, later in pairwise(found)]
    assert all(step == pytest.approx(steps[0], rel=1e-3) for step in steps)


@given(values=st.lists(st.tuples(numbers, numbers), min_size=2, max_size=20))
def test_larger_values_lie_further_right_and_higher(values: list[tuple[float, float]]) -> None:
    """Pixels keep the order of values on both axes."""
    frame = Frame(Axis("x", -1e6, 1e6), Axis("y", -1e6, 1e6))
    for (x1, y1), (x2, y2) in pairwise(values):
        (left1, top1), (left2, top2) = frame.at(x1, y1), frame.at(x2, y2)
        assert (x1 <= x2) <= (left1 <= left2)
        assert (y1 <= y2) <= (top1 >= top2)


def test_points_that_are_no_numbers_are_left_out() -> None:
    """NaN, infinity, None, text and short points do not reach the drawing."""
    points = [(0, 0), (1, float("nan")), (2, float("inf")), (3, None), (4, "x"), (5,), (6, 1)]
    drawn = line_chart("t", "d", [Series("s", points)], "x", "y")
    assert drawn is not None
    assert "nan" not in drawn
    assert "inf" not in drawn
    (line,) = re.findall(r'<polyline class="line-a" points="([^"]*)"', drawn)
    assert len(line.split()) == 2


def test_nothing_to_draw_is_none() -> None:
    """Empty, single and hollow series give no chart, so that the page can say so."""
    assert line_chart("t", "d", [], "x", "y") is None
    assert line_chart("t", "d", [Series("s", [(1, 1)])], "x", "y") is None
    assert interval_chart("t", "d", [Whisker("a", None, 0, 1)], "x") is None
    assert histogram_pair("t", [], []) is None
    assert histogram_pair("t", [1, 2], [1]) is None
    assert histogram_pair("t", [0, 0], [1, 1]) is None
    assert histogram_pair("t", [1, None], [1, 1]) is None


def test_flat_series_is_drawn() -> None:
    """A constant line has an axis of its own."""
    assert line_chart("t", "d", [Series("s", [(0, 5), (1, 5)])], "x", "y") is not None


def test_words_in_a_chart_are_escaped() -> None:
    """Labels from data cannot end the drawing."""
    drawn = interval_chart("</svg><script>", "d", [Whisker("<b>", 0.5, 0.4, 0.6)], "<i>")
    assert drawn is not None
    assert "<script>" not in drawn
    assert "<b>" not in drawn
    assert drawn.count("</svg>") == 1


def test_steps_hold_their_value_until_the_next() -> None:
    """A step line moves right before it moves up."""
    drawn = line_chart("t", "d", [Series("s", [(0, 0), (1, 50), (2, 50)], steps=True)], "x", Axis("y", 0.0, 100.0))
    assert drawn is not None
    (line,) = re.findall(r'points="([^"]*)"', drawn)
    pixels = [tuple(map(float, point.split(","))) for point in line.split()]
    assert all(x1 == x2 or y1 == y2 for (x1, y1), (x2, y2) in pairwise(pixels))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        ("x", "–"),
        (True, "–"),
        (0, "0"),
        (20000, "20,000"),
        (0.8472, "0.847"),
        (0.0004, "0.0004"),
        (212.44, "212.4"),
    ],
)
def test_numbers_for_people(value: object, shown: str) -> None:
    """A number is short and exact enough; anything else is a dash."""
    assert words.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (-1, "–"), (0, "0 s"), (0.25, "250 ms"), (9.87, "9.9 s"), (96.5, "1 min 36 s"), (3725, "1 h 02 min")],
)
def test_durations_for_people(seconds: object, shown: str) -> None:
    """Seconds are told as a person says them."""
    assert words.duration(seconds) == shown


def test_times_that_are_none_are_shown_as_they_are() -> None:
    """A text that is no time is not turned into one."""
    assert words.moment("soon") == "soon"
    assert words.moment(None) == "–"
    assert words.moment(1e30) == words.text(1e30)
    assert words.days_between("2026-01-01", "x") is None
    assert words.days_between("2026-01-01T00:00:00+00:00", "2026-01-03") == 2.0
