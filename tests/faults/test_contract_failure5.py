"""Two exports of one source between which dates change format, columns disappear and a category is renamed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from components.contract.component import validate
from components.contract.meaning.profile import PROFILE
from components.contract.meaning.profile_history import CHOICE
from components.contract.validate import check
from components.core.errors import IntegrityError
from components.core.home import Home
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, RuleResult
from components.ingestion.ingest import ingest
from tests.fakes.contract_case import contract_file
from tests.fakes.ingestion_case import recipe_for, write_csv
from tests.fakes.meaning_case import Batch, draw, iso, mapped, renamed

PROPERTIES: list[dict[str, Any]] = [
    {"name": "day", "logicalType": "date", "logicalTypeOptions": {"format": "MM/dd/yy"}, "required": True},
    {"name": "amount", "logicalType": "number", "required": True},
    {"name": "status", "required": True},
    {"name": "city", "required": True},
    {"name": "flag", "required": True},
    {"name": "comment"},
    {"name": "person", "tags": ["pii"]},
    {"name": "id", "required": True, "unique": True, "primaryKey": True, "primaryKeyPosition": 1},
]
LOOSE = [{"name": item["name"], **({"tags": ["pii"]} if "tags" in item else {})} for item in PROPERTIES]


class Project:
    """A recipe, its contract and a home; each delivery is ingested and validated by the step itself."""

    def __init__(self, folder: Path, home: Home, properties: list[dict[str, Any]]) -> None:
        self.folder, self.home = folder, home
        self.contract = contract_file(folder / "case.odcs.yaml", properties)

    def recipe(self, name: str) -> Recipe:
        """The recipe on one delivery."""
        formats = ["%m/%d/%y", "%Y-%m-%d"]
        return recipe_for(self.folder / f"{name}.csv", self.contract, time_formats=formats)

    def deliver(self, name: str, batch: Batch) -> Path:
        """Write the file and ingest it; the snapshot's folder."""
        rows = list(zip(*batch.values(), strict=True))
        write_csv(self.folder / f"{name}.csv", rows, tuple(batch))
        ingest(self.recipe(name), self.folder / f"{name}.snapshot")
        return self.folder / f"{name}.snapshot"

    def run(self, name: str, run_id: str = "") -> ContractVerdict:
        """The validate step on a delivery's snapshot."""
        from kfp import dsl

        out = self.folder / f"{name}.clean"
        validate.python_func(
            home=str(self.home.root),
            run_id=run_id or name,
            recipe=self.recipe(name).to_json(),
            code_version="test",
            snapshot=dsl.Dataset(name="snapshot", uri=str(self.folder / f"{name}.snapshot")),
            clean=dsl.Dataset(name="clean", uri=str(out)),
            page=dsl.HTML(name="page", uri=str(self.folder / f"{name}.html")),
        )
        verify(out)
        return ContractVerdict.read(out)

    def accepted(self) -> int:
        """How many snapshots are kept to compare with."""
        return len(list((self.home.root / "profiles" / "case").glob("[!.]*")))


@pytest.fixture
def project(tmp_path: Path, home: Home) -> Project:
    """A project whose contract declares types, formats and required columns."""
    return Project(tmp_path, home, PROPERTIES)


def changed(batch: Batch) -> Batch:
    """All three at once: ISO dates, `city` gone, a category renamed."""
    batch = renamed("status", "Closed with explanation", "Closed - explained")(mapped("day", iso)(batch))
    return {name: values for name, values in batch.items() if name != "city"}


def findings(verdict: ContractVerdict) -> Mapping[tuple[str, str], RuleResult]:
    """Failing findings of meaning by kind and column."""
    failed = [item for item in verdict.checks if item.outcome == "fail" and item.rule.startswith("meaning: ")]
    return {(item.rule.removeprefix("meaning: "), item.subject): item for item in failed}


@pytest.mark.parametrize("properties", [PROPERTIES, LOOSE])
def test_each_change_is_named_by_column_with_examples(
    properties: list[dict[str, Any]], tmp_path: Path, home: Home
) -> None:
    """A strict contract and one that declares names only: the refusal names all three, with old and new values."""
    project = Project(tmp_path, home, properties)
    project.deliver("first", draw(1))
    assert project.run("first").passed
    project.deliver("second", changed(draw(2)))
    verdict = project.run("second")
    assert not verdict.passed
    assert set(findings(verdict)) == {("date format", "day"), ("column gone", "city"), ("near-rename", "status")}
    for words in (
        ("day: ", "MM/dd/yy", "yyyy-MM-dd", "'2025-"),
        ("city: ", "'Northham'"),
        ("status: ", "'Closed with explanation'", "'Closed - explained'"),
    ):
        assert [word for word in words if word not in verdict.reason] == []
    assert "\n" not in verdict.reason


def test_nothing_of_a_refused_export_goes_on(project: Project) -> None:
    """No clean row, all rows in the quarantine, no accepted profile: the next good export meets the first one."""
    project.deliver("first", draw(1))
    project.run("first")
    project.deliver("second", changed(draw(2)))
    verdict = project.run("second")
    out = project.folder / "second.clean"
    assert pq.read_table(out / "clean.parquet").num_rows == 0
    assert pq.read_table(out / "quarantine.parquet").num_rows == verdict.rows == 2000
    assert project.accepted() == 1
    project.deliver("third", draw(3))
    third = project.run("third")
    assert third.passed, third.reason
    assert any(item.rule == "meaning: history" and item.observed == 1 for item in third.checks)
    assert project.accepted() == 2


def test_an_unchanged_source_goes_on(project: Project) -> None:
    """Five exports of the same source: all pass, the first told to have nothing before it."""
    for number in range(5):
        project.deliver(f"export-{number}", draw(number))
        verdict = project.run(f"export-{number}")
        assert verdict.passed, verdict.reason
        (told,) = [item for item in verdict.checks if item.rule == "meaning: history"]
        assert told.observed == min(number, 5)
    assert project.accepted() == 5
    assert (project.folder / "export-4.clean" / PROFILE).is_file()


def test_a_resumed_run_meets_the_history_of_its_start(project: Project) -> None:
    """Killed after its profile was kept, and another run accepted since: the same verdict, and nothing kept twice."""
    project.deliver("first", draw(1))
    project.run("first")
    project.deliver("second", draw(2))
    whole = project.run("second")
    project.deliver("other", draw(3))
    project.run("other")
    again = project.run("second")
    assert again == whole
    assert project.accepted() == 3
    assert (project.home.run("second") / CHOICE).is_file()


def test_a_kill_between_verdict_and_acceptance_is_made_good(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict lies there, the profile does not: the step, run again, keeps it; a half-written one is no one's."""
    project.deliver("first", draw(1))
    with monkeypatch.context() as patched:
        patched.setattr("components.contract.meaning.profile_history.accept", _killed)
        with pytest.raises(KeyboardInterrupt):
            project.run("first")
    assert project.accepted() == 0
    (project.home.root / "profiles" / "case" / ".half.staging").mkdir(parents=True)
    project.deliver("second", draw(2))
    assert any("no earlier snapshot" in item.reason for item in project.run("second").checks)
    project.run("first")
    assert project.accepted() == 2


def _killed(*_: object) -> bool:
    raise KeyboardInterrupt


def test_a_damaged_profile_is_not_compared_with(project: Project) -> None:
    """Bytes that differ from the manifest end the step, with the folder to remove."""
    project.deliver("first", draw(1))
    project.run("first")
    (kept,) = (project.home.root / "profiles" / "case").glob("*/" + PROFILE)
    kept.write_text(kept.read_text().replace("2000", "2001"))
    project.deliver("second", draw(2))
    with pytest.raises(IntegrityError, match="remove"):
        project.run("second")


def test_a_profile_that_cannot_be_made_refuses_the_batch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside the engine is never a pass."""

    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    project.deliver("first", draw(1))
    monkeypatch.setattr("components.contract.meaning.profile_duckdb.measure", broken)
    verdict = project.run("first")
    assert not verdict.passed
    assert "RuntimeError" in verdict.reason
    assert "planted" not in verdict.reason, "an engine's own words may hold values of the data"
    assert project.accepted() == 0


def test_a_bare_file_is_compared_where_its_like_was_accepted(project: Project, tmp_path: Path) -> None:
    """`contract check` with the home: files of the same folder are; a file from elsewhere has no history."""
    project.deliver("export-1", draw(1))
    project.run("export-1")
    project.deliver("export-2", renamed("status", "Closed with relief", "Resolved")(draw(2)))
    refused = check(project.contract, project.folder / "export-2.csv", home=project.home)
    assert set(findings(refused)) == {("near-rename", "status")}
    assert check(project.contract, project.folder / "export-2.csv").passed
    elsewhere = tmp_path / "else" / "other.csv"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes((project.folder / "export-2.csv").read_bytes())
    assert check(project.contract, elsewhere, home=project.home).passed


def test_another_recipe_or_kind_of_source_has_its_own_history(project: Project) -> None:
    """Rows of a generator say nothing of files, nor one recipe's of another's."""
    from components.contract.meaning.profile_history import load_history
    from components.contract.standard.contract import load

    project.deliver("first", draw(1))
    project.run("first")
    contract, source = load(project.contract), str(project.folder / "next.csv")
    assert len(load_history(project.home, contract, "case", source)) == 1
    assert load_history(project.home, contract, "another", source) == ()
    assert load_history(project.home, contract, "case", "generator://complaints?rows=10") == ()
    (kept,) = load_history(project.home, contract, "case", source)
    assert load_history(project.home, contract, "case", source, without=kept.snapshot_digest) == ()


def test_a_change_of_the_last_days_of_a_growing_export_is_found(project: Project) -> None:
    """The second export repeats the first and adds ten days, in which a category has another name."""
    project.deliver("first", draw(1, rows=6000, days=200))
    project.run("first")
    late = renamed("status", "Closed with explanation", "Closed - explained")(draw(2, rows=300, first_day=200, days=10))
    late = late | {"id": [f"9{text}" for text in late["id"]]}
    grown = {name: [*values, *late[name]] for name, values in draw(1, rows=6000, days=200).items()}
    project.deliver("second", grown)
    found = findings(project.run("second"))
    assert set(found) == {("near-rename", "status")}
    assert "in the rows that are new" in found["near-rename", "status"].reason


def test_publishing_a_profile_twice_at_once_is_harmless(project: Project) -> None:
    """A folder of that digest that is whole is left alone."""
    project.deliver("first", draw(1))
    project.run("first")
    (kept,) = (project.home.root / "profiles" / "case").iterdir()
    before = verify(kept)
    with publishing(kept.with_name("unrelated"), accepted="1999") as staging:
        (staging / PROFILE).write_bytes((kept / PROFILE).read_bytes())
    project.run("first", run_id="again")
    assert verify(kept) == before
