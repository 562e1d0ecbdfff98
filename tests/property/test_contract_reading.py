"""What a text is as a time or a number, against the standard library's own parsers."""

from __future__ import annotations

import itertools
import re
import string
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.contract.standard.limits import can_hold
from components.contract.standard.reading import bound, fits, read_values
from components.contract.standard.rules import OPERATORS, Limit, Reading
from components.contract.standard.time_formats import (
    ISO_CLOCK,
    ISO_LOCAL,
    ISO_TIME,
    ISO_ZONED,
    SHAPES,
    formats_of,
    time_format,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TWINS = {
    "yyyy-MM-dd": "%Y-%m-%d",
    "MM/dd/yyyy": "%m/%d/%Y",
    "MM/dd/yy": "%m/%d/%y",
    "dd MMM yyyy": "%d %b %Y",
    "MMMM dd, yyyy": "%B %d, %Y",
    "yyyyMMdd HH:mm:ss": "%Y%m%d %H:%M:%S",
    "dd.MM.yyyy hh:mm a": "%d.%m.%Y %I:%M %p",
    "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXX": "%Y-%m-%dT%H:%M:%S.%f%z",
}
MOMENTS = st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 30))


def _micros(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def _one(text: str | None, reading: Reading) -> int | float | None:
    values, known = read_values(pa.array([text], pa.string()), reading)
    return values[0] if known[0] else None


@settings(max_examples=200, deadline=None)
@given(moment=MOMENTS, pattern=st.sampled_from(list(TWINS)), minutes=st.integers(-18 * 60, 18 * 60))
def test_what_strftime_writes_is_read_as_the_same_time(moment: datetime, pattern: str, minutes: int) -> None:
    """Every moment, written with a pattern's twin, reads as that moment as far as the pattern tells it."""
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes))) if "X" in pattern else moment
    text = zoned.strftime(TWINS[pattern])
    assert _one(text, Reading("time", (pattern,))) == _micros(datetime.strptime(text, TWINS[pattern]))


@settings(max_examples=300, deadline=None)
@given(
    pattern=st.sampled_from([key for key in TWINS if "MMM" not in key and " a" not in key]),
    text=st.one_of(
        st.from_regex(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}( [0-9:]{8})?", fullmatch=True),
        st.text("0123456789-/:.T +٣", max_size=20),
        MOMENTS.map(lambda moment: moment.strftime("%m/%d/%Y")),
        st.dates(date(1, 1, 1), date(9999, 12, 30)).map(lambda day: day.isoformat()),
    ),
)
def test_only_what_strptime_reads_and_would_write_is_a_time(pattern: str, text: str) -> None:
    """No more and no less than strptime, less its leniency about the number of digits."""
    twin = TWINS[pattern]
    try:
        moment = datetime.strptime(text, twin)
        # strftime writes no leading zeros of a year on some platforms, and ends at a NUL.
        written = f"{moment.year:04d}".join(moment.strftime(twin.replace("%Y", "@")).split("@"))
        wanted = _micros(moment) if written == text else None
    except (ValueError, OverflowError):
        wanted = None
    assert _one(text, Reading("time", (pattern,))) == wanted


@settings(max_examples=200, deadline=None)
@given(moment=MOMENTS, zone=st.sampled_from(["", "Z", "+02:00", "-0730", "+14"]), gap=st.sampled_from("T "))
def test_iso_8601_agrees_with_fromisoformat(moment: datetime, zone: str, gap: str) -> None:
    """The default of timestamps; with a zone required or forbidden, only those texts are read."""
    text = moment.isoformat(gap, "microseconds") + zone
    wanted = _micros(datetime.fromisoformat(text))
    assert _one(text, Reading("time", (ISO_TIME,))) == wanted
    assert _one(text, Reading("time", (ISO_ZONED,))) == (wanted if zone else None)
    assert _one(text, Reading("time", (ISO_LOCAL,))) == (None if zone else wanted)


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text("0123456789+-.eE ", max_size=12), st.floats().map(repr), st.integers().map(str)))
def test_numbers_are_those_of_the_grammar_as_nearest_doubles(text: str) -> None:
    """The oracle is Python's float, kept to plain digits; what overflows is no number."""
    plain = not set(text) - set("0123456789+-.eE")
    try:
        wanted = float(text) if plain else None
    except ValueError:
        wanted = None
    assert _one(text, Reading("number")) == (None if wanted is not None and abs(wanted) == float("inf") else wanted)


@settings(max_examples=200, deadline=None)
@given(
    numbers=st.lists(st.integers(-(10**40), 10**40) | st.integers(-300, 300), min_size=1, max_size=5),
    low=st.integers(-(10**37), 10**37) | st.integers(-200, 200),
    step=st.integers(1, 9),
    opened=st.booleans(),
)
def test_integers_are_exact_up_to_38_digits(numbers: list[int], low: int, step: int, opened: bool) -> None:
    """Bounds and steps do not round, however many digits there are; leading zeros and a plus sign change nothing."""
    texts = [f"{number:+050d}" if number % 2 else str(number) for number in numbers]
    reading = Reading("integer", low=str(low), open_low=opened, multiple_of=str(step))
    kept = [len(str(abs(n))) <= 38 and (n > low if opened else n >= low) and n % step == 0 for n in numbers]
    assert fits(pa.array(texts), reading).tolist() == kept


@settings(max_examples=200, deadline=None)
@given(cents=st.integers(-(10**11), 10**11), more=st.sampled_from(["", "1", "5"]))
def test_multiples_of_a_cent_are_amounts_with_two_decimals(cents: int, more: str) -> None:
    """Doubles do not get in the way: exact decimals are the oracle."""
    text = f"{Decimal(cents) / 100:.2f}{more}"
    exact = Fraction(text) / Fraction("0.01")
    assert fits(pa.array([text]), Reading("number", multiple_of="0.01"))[0] == (exact.denominator == 1)


@pytest.mark.parametrize(
    ("text", "reading", "value"),
    [
        ("23:59:59.5", Reading("clock", (ISO_CLOCK,)), 86_399_500_000),
        ("24:00:00", Reading("clock", (ISO_CLOCK,)), None),
        ("9:05", Reading("clock", ("H:mm",)), 32_700_000_000),
        ("12 am", Reading("clock", ("h a",)), 0),
        ("12 PM", Reading("clock", ("h a",)), 43_200_000_000),
        ("1969-12-31", Reading("time", ("yyyy-MM-dd",)), -86_400_000_000),
        ("0001-01-01", Reading("time", ("yyyy-MM-dd",)), -62_135_596_800_000_000),
        ("0000-01-01", Reading("time", ("yyyy-MM-dd",)), None),
        ("1900-02-29", Reading("time", ("yyyy-MM-dd",)), None),
        ("01/02/69", Reading("time", ("MM/dd/yy",)), _micros(datetime(1969, 1, 2))),
        ("01/02/68", Reading("time", ("MM/dd/yy",)), _micros(datetime(2068, 1, 2))),
        ("1/2/25", Reading("time", ("MM/dd/yy",)), None),
        ("1/2/25", Reading("time", ("M/d/yy",)), _micros(datetime(2025, 1, 2))),
        (" 2025-01-02", Reading("time", ("yyyy-MM-dd",)), None),
        ("2025-01-02\n", Reading("time", ("yyyy-MM-dd",)), None),
        ("2025-01-02T00:00:00.1234567", Reading("time", (ISO_TIME,)), _micros(datetime(2025, 1, 2)) + 123_456),
        ("2025-01-02T00:00:60", Reading("time", (ISO_TIME,)), None),
        ("03/04/2025", Reading("time", ("dd/MM/yyyy", "MM/dd/yyyy")), _micros(datetime(2025, 4, 3))),
        ("03/14/2025", Reading("time", ("dd/MM/yyyy", "MM/dd/yyyy")), _micros(datetime(2025, 3, 14))),
        (None, Reading("integer"), None),
        ("", Reading("number"), None),
    ],
)
def test_single_texts(text: str | None, reading: Reading, value: int | None) -> None:
    """The edges: midnight, the calendar, centuries, digits, spaces, the first format that fits."""
    assert _one(text, reading) == value


@pytest.mark.parametrize("letters", [key for key in SHAPES if key[0] in "yuMdHhmsaSXZ"])
def test_every_letter_becomes_one_capture_of_a_strict_expression(letters: str) -> None:
    """Python's regular expressions read it too, with a group a name, anchored at both ends."""
    wanted = time_format(f"'x'{letters}")
    assert re.compile(wanted.regex).groups == len(wanted.groups) == 1
    assert re.compile(wanted.named).groupindex == {wanted.groups[0]: 1}
    assert wanted.regex.startswith("^x(")
    assert wanted.regex.endswith(")$")


@pytest.mark.parametrize(
    ("pattern", "kind", "named"),
    [
        ("MM/dd", "time", "no day"),
        ("yyyy yy-MM-dd", "time", "twice"),
        ("yyyy-MM-dd hh:mm", "time", "belong together"),
        ("yyyy-MM-dd HH:mm a", "time", "belong together"),
        ("yyyy-MM-dd mm", "time", "without the larger"),
        ("yyyy-MM-dd[", "time", "do not pair"),
        ("yyyy-MM-dd EEE", "time", "'EEE'"),
        ("yyyy-MM-dd HH:mm:ss VV", "time", "'VV'"),
        ("HH:mm XXX", "clock", "no time of day"),
        ("yyyy-MM-dd", "clock", "no time of day"),
        ("[a][b][c][d][e][f][g]yyyy-MM-dd", "time", "optional sections"),
    ],
)
def test_patterns_that_tell_no_time_are_refused(pattern: str, kind: str, named: str) -> None:
    """A part missing, given twice, or without a counterpart."""
    with pytest.raises(ValueError, match=re.escape(named)):
        formats_of(pattern, kind)


def test_bounds_are_written_in_a_format_of_the_column_or_in_iso() -> None:
    """A day of the column's own format, an ISO day, an ISO time with a zone."""
    day = Reading("time", ("MM/dd/yy",))
    assert bound("01/02/25", day) == bound("2025-01-02", day) == bound("2025-01-02T01:00:00+01:00", day)
    assert bound("", day) is None


@settings(max_examples=300, deadline=None)
@given(
    limits=st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=3)
)
def test_limits_can_hold_together_when_some_count_meets_them_all(limits: list[tuple[str, int, int]]) -> None:
    """Against trying every count."""
    made = [Limit(operator, float(low), float(low + more)) for operator, low, more in limits]
    assert can_hold(made) == any(all(limit.holds(count) for limit in made) for count in range(40))
    shares = [Limit(limit.operator, limit.value, limit.high, "percent") for limit in made]
    tried = itertools.chain(range(101), (number + 0.5 for number in range(100)))
    assert can_hold(shares) == any(all(limit.holds(share) for limit in shares) for share in tried)


def test_no_reading_takes_digits_or_letters_of_other_scripts() -> None:
    """Only ASCII digits count; `string.digits` in full width or Arabic are no number and no day."""
    wide = {ord(digit): chr(ord(digit) + 0xFEE0) for digit in string.digits}
    for text, reading in [
        ("7", Reading("integer")),
        ("7.5", Reading("number")),
        ("2025-01-02", Reading("time", ("yyyy-MM-dd",))),
    ]:
        assert _one(text, reading) is not None
        assert _one(text.translate(wide), reading) is None
