"""Times in requests: the pattern admits exactly the days that exist."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.serving.moments import MOMENT, moment

HOURS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31), timezones=HOURS)


def test_the_pattern_admits_every_day_of_its_years_and_no_other() -> None:
    """The calendar of the standard library is the oracle."""
    days = {
        date.fromordinal(day).isoformat() for day in range(date(1970, 1, 1).toordinal(), date(2200, 1, 1).toordinal())
    }
    tried = (f"{year}-{month:02}-{day:02}" for year in range(1968, 2203) for month in range(14) for day in range(33))
    assert {text for text in tried if re.fullmatch(MOMENT, f"{text}T00:00:00Z")} == days


@given(TIMES)
def test_a_time_is_read_as_it_was_written(time: datetime) -> None:
    """To the microsecond, with its zone."""
    assert moment(time.isoformat()) == time
    assert moment(time.isoformat()).utcoffset() == time.utcoffset()


@pytest.mark.parametrize("text", ["2026-01-31", "2026-01-31T09:30:00", "2026-01-31 09:30:00Z", "1769904000", "", "now"])
def test_a_time_without_a_zone_or_in_another_form_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="no time with a zone"):
        moment(text)
