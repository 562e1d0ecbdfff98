"""The shipped contract over weekly exports of the generator and of the bureau's own rows, through ingestion."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from components.contract.meaning.profile import Profile, read_profile
from components.contract.validate import validate_snapshot
from components.core.digest import file_digest
from components.core.records import ContractVerdict
from components.ingestion.ingest import ingest
from pipelines.demo import weekly_recipes
from pipelines.generators import GENERATORS
from tests.fakes.ingestion_case import complaints_recipe

SOURCE = "generator://complaints?rows=8000&seed=5"
FIRST = date(2025, 7, 1)


def delivered(
    uri: str | Path, folder: Path, history: list[Profile], since: str = "", until: str = ""
) -> tuple[ContractVerdict, Profile]:
    """Ingest and validate one export after others; the DuckDB engine judges the declared rules."""
    recipe = complaints_recipe(uri, since=since, until=until)
    ingest(recipe, folder / "snapshot", GENERATORS)
    verdict = validate_snapshot(recipe, folder / "snapshot", folder / "clean", "duckdb", history=history)
    return verdict, read_profile(folder / "clean")


def meaning(verdict: ContractVerdict, outcome: str) -> set[tuple[str, str]]:
    """(kind, column) of the findings with an outcome."""
    named = [check for check in verdict.checks if check.rule.startswith("meaning: ") and check.outcome == outcome]
    return {(check.rule.removeprefix("meaning: "), check.subject) for check in named}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> list[Profile]:
    """Three weekly exports, each longer by a week."""
    found: list[Profile] = []
    for week in range(3):
        until = str(FIRST + timedelta(weeks=week))
        verdict, profile = delivered(SOURCE, tmp_path_factory.mktemp("week"), found, until=until)
        assert verdict.passed, verdict.reason
        found.append(profile)
    return found


def test_the_profile_is_published_with_the_verdict(history: list[Profile], tmp_path: Path) -> None:
    """It names the snapshot, its stream and range, keeps no personal value, and all files are in the manifest."""
    verdict, profile = delivered(SOURCE, tmp_path, history, until=str(FIRST + timedelta(weeks=3)))
    assert profile.snapshot_digest == verdict.snapshot_digest == file_digest(tmp_path / "snapshot" / "data.parquet")
    assert (profile.contract, profile.stream, profile.rows) == ("complaints", "laptop", verdict.rows)
    assert profile.time_min.startswith("2025-01-01")
    rows = pq.read_table(tmp_path / "snapshot" / "data.parquet")
    kept = (tmp_path / "clean" / "profile.json").read_text()
    assert not any(text in kept for text in rows.column("Consumer complaint narrative").to_pylist()[:50])
    assert f'"{rows.column("ZIP code")[0]}"' not in kept


@pytest.mark.parametrize("kind", ["longer", "interval", "seed", "half", "drift", "poison", "leak"])
def test_ordinary_and_monitored_changes_are_no_drift_of_meaning(
    kind: str, history: list[Profile], tmp_path: Path
) -> None:
    """The next week, a cut to one month, another seed, half the rows; shares that move are for the monitor."""
    until = str(FIRST + timedelta(weeks=3))
    uri = {
        "seed": SOURCE.replace("seed=5", "seed=6"),
        "half": SOURCE.replace("8000", "4200"),
        "drift": f"{SOURCE}&drift=0.5&drift_from=2025-06-01",
        "poison": f"{SOURCE}&poison=0.5",
        "leak": f"{SOURCE}&leak=1",
    }.get(kind, SOURCE)
    verdict, _ = delivered(uri, tmp_path, history, "2025-06-15" if kind == "interval" else "", until)
    assert meaning(verdict, "fail") == set()
    assert verdict.passed, verdict.reason


def test_a_renamed_category_and_a_lost_column_are_named_with_examples(history: list[Profile], tmp_path: Path) -> None:
    """Also where the declared rules refuse already: both names, the values that the column had, the likely new name."""
    uri = f"{SOURCE}&schema_break=category,rename:Company>Firm"
    verdict, _ = delivered(uri, tmp_path, history, until=str(FIRST + timedelta(weeks=3)))
    assert not verdict.passed
    assert meaning(verdict, "fail") == {
        ("near-rename", "Company response to consumer"),
        ("column gone", "Company"),
    }
    for words in ("'Closed with explanation'", "'Closed - explained'", "'Firm'"):
        assert words in verdict.reason


def test_a_declared_format_is_told_and_passes(history: list[Profile], tmp_path: Path) -> None:
    """The contract reads ISO dates as well: named with both formats, refused by nothing."""
    verdict, _ = delivered(f"{SOURCE}&schema_break=iso_dates", tmp_path, history, until=str(FIRST))
    assert verdict.passed, verdict.reason
    assert {("date format", "Date received"), ("date format", "Date sent to company")} <= meaning(verdict, "info")


def test_the_weeks_of_the_demo_are_ordinary(tmp_path: Path) -> None:
    """The third, poisoned one is for the gate to stop, not for the contract."""
    found: list[Profile] = []
    for week, recipe in enumerate(weekly_recipes()):
        folder = tmp_path / str(week)
        ingest(recipe, folder / "snapshot", GENERATORS)
        verdict = validate_snapshot(recipe, folder / "snapshot", folder / "clean", "duckdb", history=found)
        assert verdict.passed, verdict.reason
        found.append(read_profile(folder / "clean"))


def test_the_months_of_real_complaints_are_ordinary(real_csv: Path, tmp_path: Path) -> None:
    """Exports of a quarter each, and the whole year after them."""
    found: list[Profile] = []
    spans = [("2023-01-01", "2023-04-01"), ("2023-04-01", "2023-07-01"), ("2023-07-01", "2023-10-01"), ("", "")]
    for number, (since, until) in enumerate(spans):
        verdict, profile = delivered(real_csv, tmp_path / str(number), found, since, until)
        assert meaning(verdict, "fail") == set()
        assert verdict.passed, verdict.reason
        found.append(profile)
