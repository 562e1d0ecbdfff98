"""What is found against accepted snapshots, and what is not: each change planted, each told with both values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from components.contract.meaning.findings import findings
from components.contract.meaning.profile import SAMPLE_ROWS, Profile
from components.contract.standard.rules import Reading, Rule
from tests.fakes.meaning_case import (
    Batch,
    Plant,
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

HISTORY = tuple(draw(seed) for seed in range(3))
PLANTS: dict[str, tuple[Plant, tuple[str, str], tuple[str, ...]]] = {
    "rename": (
        renamed("status", "Closed with explanation", "Closed - explained"),
        ("near-rename", "status"),
        ("Closed with explanation", "Closed - explained"),
    ),
    "rename of the same share only": (
        renamed("status", "Closed with relief", "Resolved"),
        ("near-rename", "status"),
        ("Closed with relief", "Resolved"),
    ),
    "case": (renamed("status", "In progress", "IN PROGRESS"), ("near-rename", "status"), ("IN PROGRESS",)),
    "spaces, the old spelling stays": (
        renamed("status", "Closed with relief", "Closed with relief ", share=0.3),
        ("near-rename", "status"),
        ("'Closed with relief '", "'Closed with relief'"),
    ),
    "a letter": (renamed("city", "Northham", "Northam"), ("near-rename", "city"), ("Northham", "Northam")),
    "shape of personal data": (mapped("person", str.lower), ("shape", "person"), ("AA", "aa")),
    "ISO dates": (mapped("day", iso), ("date format", "day"), ("MM/dd/yy", "yyyy-MM-dd", "2025-01-")),
    "day and month swapped": (mapped("day", swapped), ("date format", "day"), ("dd/MM/yy", "changed places")),
    "a tenth of the dates in ISO": (mapped("day", iso, share=0.1), ("date format", "day"), ("10.0 %", "yyyy-MM-dd")),
    "a tenth of the dates swapped": (mapped("day", swapped, share=0.1), ("date format", "day"), ("dd/MM/yy",)),
    "dates in words": (mapped("day", lambda text: f"day {text[:2]}"), ("date format", "day"), ("'day 01'",)),
    "cents": (mapped("amount", lambda text: f"{float(text) * 100:.0f}"), ("unit", "amount"), ("100 times larger",)),
    "thousands": (
        mapped("amount", lambda text: f"{float(text) / 1000:.6f}"),
        ("unit", "amount"),
        ("1000 times smaller",),
    ),
    "decimal commas": (
        mapped("amount", lambda text: text.replace(".", ",")),
        ("number format", "amount"),
        ("0,00",),
    ),
    "constant": (mapped("status", lambda _: "Untimely"), ("constant", "status"), ("Untimely", "5 different")),
    "constant amount": (mapped("amount", lambda _: "1.00"), ("constant", "amount"), ("'1.00'",)),
    "all null": (mapped("comment", lambda _: ""), ("all null", "comment"), ("no value", "comment ")),
    "all null by a placeholder": (mapped("city", lambda _: "N/A"), ("all null", "city"), ("Northham",)),
    "null share": (
        lambda batch: batch | {"city": ["" if n % 3 == 0 else t for n, t in enumerate(batch["city"])]},
        ("null share", "city"),
        ("33.", "0.0 %"),
    ),
    "fewer rows": (
        lambda batch: {name: values[::5] for name, values in batch.items()},
        ("row count", ""),
        ("5.0 times fewer",),
    ),
    "column gone": (
        lambda batch: {name: values for name, values in batch.items() if name != "city"},
        ("column gone", "city"),
        ("Northham",),
    ),
    "column renamed": (
        lambda batch: {"town" if name == "city" else name: values for name, values in batch.items()},
        ("column gone", "city"),
        ("'town'", "renamed?"),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_change_is_named_with_both_values(name: str) -> None:
    """Each change fails under its kind and column, alone, and its reason holds the old and the new value."""
    plant, expected, words = PLANTS[name]
    results = compared(plant(draw(99)), *HISTORY)
    assert failed(results) == {expected}
    reason = next(item.reason for item in results if item.outcome == "fail")
    assert [word for word in words if word not in reason] == []
    assert "\n" not in reason


@pytest.mark.parametrize("name", PLANTS)
def test_a_change_that_was_accepted_is_known(name: str) -> None:
    """Once a snapshot with the change was accepted, the next one with it is ordinary, and so is one without it."""
    plant, _, _ = PLANTS[name]
    history = (*HISTORY, plant(draw(98)))
    assert failed(compared(plant(draw(99)), *history)) == set()
    if name not in ("column gone", "column renamed"):
        assert failed(compared(draw(97), *history)) == set()


def test_the_first_snapshot_has_nothing_to_be_compared_with() -> None:
    """It is told, and nothing fails."""
    (only,) = compared(draw(1))
    assert (only.outcome, only.rule) == ("info", "meaning: history")
    assert "no earlier snapshot" in only.reason


@pytest.mark.parametrize("name", ["rename", "ISO dates", "cents", "constant", "all null", "null share", "fewer rows"])
@pytest.mark.parametrize(("mode", "outcome"), [("warning", "info"), ("off", None), ("error", "fail")])
def test_the_contract_says_how_findings_count(name: str, mode: str, outcome: str | None) -> None:
    """warning tells, off is silent, error refuses, for the whole table and for one column."""
    plant, (kind, column), _ = PLANTS[name]
    settings: list[dict[str, Any]] = [{"mode": mode}]
    settings += [{"modes": ((column, mode),)}] if column else []
    for given in settings:
        results = compared(plant(draw(99)), *HISTORY, contract=contract_of(**given))
        outcomes = {item.outcome for item in results if (item.rule, item.subject) == (f"meaning: {kind}", column)}
        assert outcomes == ({outcome} if outcome else set())


def test_thresholds_come_from_the_contract() -> None:
    """A wider row count factor and more points let a change pass that is refused otherwise; a narrower one does not."""
    fewer = PLANTS["fewer rows"][0](draw(99))
    emptier = PLANTS["null share"][0](draw(99))
    assert failed(compared(fewer, *HISTORY, contract=contract_of(row_count_factor=6.0))) == set()
    assert failed(compared(emptier, *HISTORY, contract=contract_of(null_share_points=40.0))) == set()
    assert failed(compared(draw(99, rows=1500), *HISTORY, contract=contract_of(row_count_factor=1.2))) == {
        ("row count", "")
    }


def test_a_declared_format_that_reads_one_way_is_told_only() -> None:
    """ISO dates are no drift for a contract that lists them; a swapped format is, when its twin is listed as well."""

    def declaring(*formats: str) -> Any:
        contract = contract_of()
        reading = Reading("time", formats)
        rules = tuple(replace(rule, reading=reading) if rule.kind == "reading" else rule for rule in contract.rules)
        return replace(contract, rules=rules)

    both = compared(mapped("day", iso)(draw(99)), *HISTORY, contract=declaring("MM/dd/yy", "yyyy-MM-dd"))
    assert failed(both) == set()
    assert any(item.rule == "meaning: date format" and "declares it" in item.reason for item in both)
    twins = compared(mapped("day", swapped)(draw(99)), *HISTORY, contract=declaring("MM/dd/yy", "dd/MM/yy"))
    assert failed(twins) == {("date format", "day")}


def test_two_declared_values_are_no_rename() -> None:
    """Where the contract lists both names, one in place of the other is told only."""
    contract = contract_of()
    both = Rule("enum", "values", ("status",), "", values=("Closed with relief", "Resolved"))
    contract = replace(contract, rules=(*contract.rules, both))
    assert failed(compared(PLANTS["rename of the same share only"][0](draw(99)), *HISTORY, contract=contract)) == set()


def test_a_swap_inside_one_short_interval_is_told_by_distribution() -> None:
    """Days 2 to 9 of a month hold no impossible value: the part that stands still is the month."""
    week = draw(99, rows=200, first_day=32, days=8)  # 02/02 to 02/09
    assert failed(compared(week, *HISTORY)) == set()
    assert ("date format", "day") in failed(compared(mapped("day", swapped)(week), *HISTORY))


def test_the_first_of_each_month_is_no_swap() -> None:
    """A column of month starts looks the same way round in each batch."""

    def months(seed: int) -> Batch:
        batch = draw(seed)
        return batch | {"day": [f"{1 + n % 12:02d}/01/25" for n in range(len(batch["day"]))]}

    assert failed(compared(months(3), months(1), months(2))) == set()


def test_period_names_that_change_each_time_are_told_only() -> None:
    """`week 31` in place of `week 30` is no rename."""

    def week(number: int) -> Batch:
        batch = draw(number)
        return batch | {"city": [f"week {number}"] * 1000 + [f"week {number - 1}"] * 1000}

    assert failed(compared(week(31), week(30))) == set()
    assert failed(compared(week(33), week(30), week(31), week(32))) == set()


@pytest.mark.parametrize("rows", [5, 12, 19])
def test_a_batch_too_small_to_tell_says_so_and_blocks_nothing(rows: int) -> None:
    """Its columns are listed with their number of values; the unit is not judged."""
    batch = PLANTS["cents"][0](draw(99, rows=rows))
    results = compared(batch, *HISTORY, contract=contract_of(row_count_factor=1000.0))
    assert "unit" not in {kind for kind, _ in failed(results)}
    told = next(item for item in results if item.rule == "meaning: evidence")
    assert told.outcome == "info"
    assert f"amount ({rows})" in told.reason


def test_a_longer_export_and_a_cut_to_an_interval_are_ordinary() -> None:
    """Fewer rows of fewer days are told only; the same days with a fifth of the rows are refused."""
    contract = contract_of()
    long = [plain_profile(draw(seed, rows=9000, days=300 + seed), contract) for seed in range(3)]
    cut = plain_profile(draw(7, rows=600, first_day=280, days=20), contract)
    assert failed(findings(contract, cut, long)) == set()
    thin = plain_profile(draw(7, rows=1500, days=300), contract)
    assert failed(findings(contract, thin, long)) == {("row count", "")}
    growing = [plain_profile(draw(1, rows=30 * week, days=week), contract) for week in range(30, 90, 7)]
    assert all(failed(findings(contract, now, growing[:n])) == set() for n, now in enumerate(growing) if n)


def test_an_export_cut_off_at_its_end_is_refused() -> None:
    """Begins as before, ends long before, although no end was asked for."""
    contract = contract_of()
    long = [plain_profile(draw(seed, rows=9000, days=300), contract) for seed in range(3)]
    short = plain_profile(draw(2, rows=1500, days=50), contract)
    assert failed(findings(contract, short, long)) == {("row count", "")}


def test_a_change_of_the_last_week_is_found_in_a_long_export() -> None:
    """The rows that are new are looked at by themselves: a renamed and a rescaled week are few rows of the whole."""
    contract = contract_of()
    before = plain_profile(draw(1, rows=8000, days=300), contract)
    plants = (PLANTS["rename"][0], PLANTS["cents"][0])
    week = draw(2, rows=250, first_day=300, days=7)
    for plant in plants:
        week = plant(week)
    whole = {name: [*values, *week[name]] for name, values in draw(1, rows=8000, days=300).items()}
    fresh = plain_profile(week, contract)
    results = findings(contract, plain_profile(whole, contract), [before], fresh)
    assert {("near-rename", "status"), ("unit", "amount")} <= failed(results)
    assert any("in the rows that are new" in item.reason for item in results)


def test_no_value_of_a_personal_column_is_kept() -> None:
    """Shapes and orders of magnitude only, in the profile and in findings."""
    contract = contract_of()
    batch = draw(1) | {"person": [f"Planted {number}" for number in range(2000)]}
    kept = str(profile_of(batch, contract).column("person"))
    assert "Planted" not in kept
    assert "Aaaaaaa 999" in kept
    told = str(compared(batch, *HISTORY))
    assert "Planted" not in told
    numbers = draw(1) | {"person": [str(123456 + number) for number in range(2000)]}
    assert "12345" not in str(profile_of(numbers, contract).column("person"))


def test_a_profile_comes_back_from_its_json() -> None:
    """Record to dictionary and back; the same batch gives the same digest."""
    contract = contract_of()
    found = profile_of(draw(1), contract)
    assert Profile.from_dict(found.to_dict()) == found
    assert found.record_digest == profile_of(draw(1), contract).record_digest
    assert found.record_digest != profile_of(draw(2), contract).record_digest


def test_a_profile_counts_as_a_loop_over_rows_does() -> None:
    """Nulls, missing texts, distinct values, categories, lengths, numbers and quantiles against plain Python."""
    contract = contract_of()
    batch = draw(4, rows=500)
    found = profile_of(batch, contract)
    for name, values in batch.items():
        column = found.column(name)
        assert column is not None
        present = [value for value in values if value != ""]
        assert (column.rows, column.missing, column.looked_at) == (500, 500 - len(present), len(present))
        assert column.distinct == len(set(present))
        assert (column.shortest, column.longest) == (min(map(len, present)), max(map(len, present)))
        if not column.masked:
            assert {item.value: item.count for item in column.categories}.items() <= {
                value: present.count(value) for value in set(present)
            }.items()
    amount = found.column("amount")
    assert amount is not None
    ordered = sorted(float(value) for value in batch["amount"])
    assert amount.quantiles[3] == ordered[249]
    assert amount.nonzero == sum(value != 0 for value in ordered)


@pytest.mark.parametrize(
    ("texts", "pattern"),
    [
        (["2025-01-31", "2025-12-01"], "yyyy-MM-dd"),
        (["2025-01-31T10:00:00Z", "2025-12-01T10:00:00Z"], "yyyy-MM-dd'T'HH:mmX"),
        (["2025-01-31 10:00", "2025-12-01 10:00"], "yyyy-MM-dd HH:mm"),
        (["20250131", "20251201"], "yyyyMMdd"),
        (["31.01.2025", "01.12.2025"], "dd.MM.yyyy"),
        (["31-Jan-2025", "1-Dec-2025"], "dd-MMM-yyyy"),
        (["Jan 31, 2025", "Dec 1, 2025"], "MMM dd, yyyy"),
        (["1/31/25", "12/1/25"], "MM/dd/yy"),
        (["01/02/25", "03/04/25"], "MM/dd/yy or dd/MM/yy"),
        (["2025-31-01", "2025-01-12"], "yyyy-dd-MM"),
        (["99/99/2025", "32/01/25"], None),
        (["1234567", "12.5"], None),
    ],
)
def test_date_formats_are_told_from_texts(texts: list[str], pattern: str | None) -> None:
    """Formats by the letters of JDK patterns; impossible days are no dates."""
    column = profile_of({"day": texts * 10}, contract_of()).column("day")
    assert column is not None
    assert [item.pattern for item in column.formats] == ([pattern] if pattern else [])


def test_a_large_batch_is_sampled_at_even_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of rows and nulls stay exact; shares are of the sample."""
    assert SAMPLE_ROWS >= 100_000
    monkeypatch.setattr("components.contract.meaning.profile.SAMPLE_ROWS", 100)
    contract = contract_of()
    found = profile_of(draw(1, rows=1000), contract)
    assert (found.rows, found.sampled_rows) == (1000, 100)
    comment, status = found.column("comment"), found.column("status")
    assert comment is not None
    assert status is not None
    assert comment.missing == draw(1, rows=1000)["comment"].count("")
    assert status.looked_at == 100


def test_names_that_differ_in_case_only_and_odd_names_are_told_apart() -> None:
    """Columns are found by position: quotes, spaces and letters of another case do no harm."""
    batch = {"a": ["1", "2"], "A": ["x", "x"], 'b"; DROP TABLE t': ["", "y"], "n": ["1", "1"]}
    found = profile_of(batch, contract_of())
    assert [column.distinct for column in found.columns] == [2, 1, 1, 1]
    assert [column.constant for column in found.columns] == [False, True, True, True]
