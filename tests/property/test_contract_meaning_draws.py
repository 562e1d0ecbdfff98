"""Ordinary batches raise no finding that refuses; planted changes raise theirs, over many draws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.contract.meaning.findings import findings
from components.contract.meaning.meaning_names import near_renames, similarity
from components.contract.meaning.profile import Category, ColumnProfile
from components.contract.meaning.profile_dates import DateTally, date_formats, twin
from tests.fakes.meaning_case import (
    Batch,
    compared,
    contract_of,
    draw,
    failed,
    iso,
    mapped,
    plain_profile,
    profile_of,
    renamed,
    swapped,
)

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**32 - 1)


@FEW
@given(SEEDS, st.integers(300, 3000), st.integers(1, 5), st.data())
def test_other_seeds_and_sizes_are_ordinary(seed: int, rows: int, history: int, data: st.DataObject) -> None:
    """Batches of one world, each of up to twice the smallest size: nothing fails, whatever the order."""
    sizes = [data.draw(st.integers(rows, 2 * rows)) for _ in range(history + 1)]
    batches = [draw(seed + number, rows=size) for number, size in enumerate(sizes)]
    assert failed(compared(batches[-1], *batches[:-1])) == set()


@FEW
@given(SEEDS, st.integers(300, 1500), st.sampled_from([7, 14, 30]))
def test_successive_intervals_are_ordinary(seed: int, rows: int, days: int) -> None:
    """One window after the other, as a weekly or monthly cut gives them."""
    windows = [draw(seed + week, rows=rows, first_day=week * days, days=days) for week in range(4)]
    for week in range(1, 4):
        assert failed(compared(windows[week], *windows[:week])) == set()


@settings(FEW, max_examples=12)
@given(SEEDS, st.integers(15, 40))
def test_a_growing_export_is_ordinary(seed: int, a_day: int) -> None:
    """Each export repeats the last one and adds a fortnight; the new rows by themselves are ordinary too."""
    contract = contract_of()
    whole = draw(seed, rows=a_day * 98, days=98)
    parts = [{name: values[: len(values) * n // 7] for name, values in whole.items()} for n in (4, 5, 6, 7)]
    fresh: Batch = {name: values[len(values) * 6 // 7 :] for name, values in whole.items()}
    profiles = [plain_profile(part, contract) for part in parts]
    assert failed(findings(contract, profiles[-1], profiles[:-1], plain_profile(fresh, contract))) == set()


CELLS = st.one_of(
    st.sampled_from(["", "None", " n/a", "N/A", "a", "A b", "é1", "0", "-1.5", "1e3", ".5", "1.", "1,5", "0x1"]),
    st.sampled_from(["01/02/25", "13/02/25", "2/28/2025", "99/01/25", "2025-01-31", "2025-31-01"]),
    st.floats(-1e6, 1e6).map(str),
    st.text("aB9 /-'\"", max_size=30),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=40))
def test_the_profile_is_what_plain_python_counts(rows: list[tuple[str, str, str]]) -> None:
    """Every field of every column, of odd texts too, agrees with a loop over the cells."""
    batch = dict(zip(("comment", "person", "other"), map(list, zip(*rows, strict=True)), strict=True))
    assert profile_of(batch, contract_of()) == plain_profile(batch, contract_of())


@pytest.mark.parametrize("seed", range(3))
def test_the_profile_of_ordinary_rows_is_what_plain_python_counts(seed: int) -> None:
    """Dates, heavy-tailed amounts, many categories, shapes."""
    assert profile_of(draw(seed), contract_of()) == plain_profile(draw(seed), contract_of())


PLANTS: dict[tuple[str, str], Callable[[Batch], Batch]] = {
    ("near-rename", "status"): renamed("status", "Closed with explanation", "Closed - explained"),
    ("date format", "day"): mapped("day", iso),
    ("unit", "amount"): mapped("amount", lambda text: f"{float(text) * 1000:.2f}"),
    ("constant", "city"): mapped("city", lambda _: "Northham"),
    ("all null", "comment"): mapped("comment", lambda _: ""),
    ("shape", "person"): mapped("person", str.lower),
}


@pytest.mark.parametrize("expected", PLANTS)
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, rows=st.integers(150, 2000), history=st.integers(1, 3))
def test_a_planted_change_is_found_at_any_size_that_can_tell(
    expected: tuple[str, str], seed: int, rows: int, history: int
) -> None:
    """150 rows and more show each of these changes, and no other column is blamed."""
    before = [draw(seed + number, rows=rows) for number in range(history)]
    results = compared(PLANTS[expected](draw(seed + history, rows=rows)), *before)
    assert failed(results) == {expected}


@FEW
@given(SEEDS, st.integers(0, 330))
def test_a_swap_is_told_from_any_month_and_day(seed: int, first_day: int) -> None:
    """Ninety days after any first one, read both ways."""
    before = draw(seed, rows=600)
    now = draw(seed + 1, rows=600, first_day=first_day)
    assert failed(compared(now, before)) == set()
    assert failed(compared(mapped("day", swapped)(now), before)) == {("date format", "day")}


def column_of(counts: dict[str, int]) -> ColumnProfile:
    """A column of categories."""
    rows = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ColumnProfile(
        name="kind",
        masked=False,
        rows=rows,
        nulls=0,
        missing=0,
        looked_at=rows,
        placeholders=0,
        distinct=len(counts),
        constant=len(counts) == 1,
        shortest=1,
        longest=20,
        categories=tuple(Category(value=value, count=count) for value, count in ordered),
        formats=(),
        numbers=0,
        nonzero=0,
    )


NAMES = st.lists(
    st.text("abcdefgh ", min_size=4, max_size=12).map(str.strip).filter(bool),
    min_size=2,
    max_size=8,
    unique_by=lambda text: text.replace(" ", ""),
)


@settings(max_examples=200, deadline=None)
@given(NAMES, st.data())
def test_a_new_spelling_of_a_known_name_is_always_its_rename(names: list[str], data: st.DataObject) -> None:
    """Case, punctuation and spaces: named with the one known name that it is; without the plant nothing is."""
    counts = {name: data.draw(st.integers(200, 2000)) for name in names}
    old = data.draw(st.sampled_from(names))
    change = data.draw(st.sampled_from([str.upper, lambda text: f" {text}", lambda text: text.replace(" ", "-") + "."]))
    before = column_of(counts)
    assert near_renames(column_of(counts), [before], frozenset()) == []
    changed = {change(name) if name == old else name: count for name, count in counts.items()}
    (found,) = near_renames(column_of(changed), [before], frozenset())
    assert (found.outcome, found.limit, found.observed) == ("fail", old, change(old))


@settings(max_examples=200, deadline=None)
@given(NAMES, st.data())
def test_shares_that_move_between_known_names_are_no_rename(names: list[str], data: st.DataObject) -> None:
    """Whatever the counts, also zero: only a name that was never seen can be a rename."""
    before = column_of({name: data.draw(st.integers(1, 2000)) for name in names})
    counts = {name: data.draw(st.integers(0, 2000)) for name in names}
    now = column_of({name: count for name, count in counts.items() if count} or {names[0]: 1})
    assert near_renames(now, [before], frozenset()) == []


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_similarity_is_a_share(first: str, second: str) -> None:
    """From 0 to 1, and 1 for a name and itself."""
    assert 0.0 <= similarity(first, second) <= 1.0
    if any(sign.isalnum() for sign in first):
        assert similarity(first, first) == 1.0


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_rows_of_a_date_shape_are_shared_out_whole(plain: int, first_over: int, second_over: int) -> None:
    """No row is lost or counted twice, and evidence of one order only gives that order."""
    rows = plain + first_over + second_over
    tally = DateTally("parts", "/", 2, "", rows, ("01/02/25", "13/02/25", "02/13/25"), first_over, second_over, 9, 9)
    found = date_formats([tally])
    assert sum(item.count for item in found) == rows
    if first_over and not second_over:
        assert [item.pattern for item in found] == ["dd/MM/yy"]
    if second_over and not first_over:
        assert [item.pattern for item in found] == ["MM/dd/yy"]
    assert all(twin(twin(item.pattern)) == item.pattern for item in found)
