"""Which contract a batch is judged by: the archive, what a snapshot names, and what was accepted last."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from components.contract.engines.measured import in_memory
from components.contract.evolution.accepted import Judged, contract_of, name_contract
from components.contract.validate import validate_snapshot
from components.core import contracts
from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import read_manifest, verify
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, SnapshotRef
from components.ingestion.ingest import ingest
from pipelines.cli import main
from pipelines.early_check import check_project, declared_services
from tests.fakes.contract_case import contract_file, slow_engine
from tests.fakes.ingestion_case import ROWS, complaints_recipe, recipe_for, write_csv

COLUMNS: list[dict[str, Any]] = [{"name": "id", "required": True}, {"name": "day"}, {"name": "text"}]


class Project:
    """A contract's file that changes, rows that come, and a home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home.at(folder / "home")
        self.contract = folder / "contract.yaml"
        self.count = 0

    def write(self, version: str, *columns: dict[str, Any]) -> None:
        """The project's contract in another version."""
        contract_file(self.contract, columns or COLUMNS)
        text = self.contract.read_text()
        self.contract.write_text(text.replace("version: 1.0.0", f"version: {version}"))

    def recipe(self, name: str = "rows") -> Recipe:
        """The recipe on one of the sources."""
        return recipe_for(self.folder / f"{name}.csv", self.contract)

    def read(self, name: str = "rows", expected: str = "") -> Path:
        """What the ingest component does; gives the published folder."""
        if not expected:
            write_csv(self.folder / f"{name}.csv", [(f"{name}-{row[0]}", *row[1:]) for row in ROWS])
        self.count += 1
        out = self.folder / f"out-{self.count}"
        contract = name_contract(self.recipe(name), self.home, expected)
        ref = ingest(self.recipe(name), out, None, expected, self.home.snapshots, contract)
        contracts.note_reading(self.home, str(self.contract), contract, ref.digest, from_store=bool(expected))
        return out

    def judge(self, snapshot: Path) -> tuple[ContractVerdict, Judged]:
        """What the validate component does."""
        judged = contract_of(self.home, snapshot, self.recipe())
        out = snapshot.with_name(f"{snapshot.name}-clean")
        verdict = validate_snapshot(
            self.recipe(),
            snapshot,
            out,
            in_memory(slow_engine),
            contract=judged.path,
            extra=judged.results,
            now=judged.now,
        )
        judged.accept(verdict, "run")
        return verdict, judged

    def batch(self, name: str) -> ContractVerdict:
        """New rows, read and judged."""
        return self.judge(self.read(name))[0]

    def accepted(self) -> list[str]:
        """The versions that the ledger says were accepted, in order."""
        with closing(Ledger(self.home.ledger_url)) as ledger:
            assert ledger.verify() == len(ledger.entries("contract"))
            return [str(entry.payload["version"]) for entry in ledger.entries("contract")]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose version 1.0.0 was accepted by a batch."""
    made = Project(tmp_path)
    made.write("1.0.0")
    assert made.batch("first").passed
    return made


def of_version(verdict: ContractVerdict) -> tuple[str, str]:
    """Outcome and reason of the check of the version."""
    (found,) = (check for check in verdict.checks if check.rule == "contract version")
    return found.outcome, found.reason


def test_a_contract_is_kept_whole_and_accepted_once(project: Project) -> None:
    """The archive holds the file under its digest, the snapshot names it, and a second batch adds no entry."""
    snapshot = project.read("second")
    ref = SnapshotRef.read(snapshot)
    kept = project.home.contracts / f"{ref.contract_digest}.odcs.yaml"
    assert kept.read_bytes() == project.contract.read_bytes()
    assert (ref.contract_id, ref.contract_version) == ("case", "1.0.0")
    verdict, _ = project.judge(snapshot)
    assert (verdict.passed, verdict.contract_digest) == (True, ref.contract_digest)
    assert of_version(verdict)[0] == "pass"
    assert project.accepted() == ["1.0.0"]


def test_a_breaking_contract_is_refused_until_its_major_version_rises(project: Project) -> None:
    """The changes are named; rows that hold the new contract do not help; with a new major version they pass."""
    project.write("1.1.0", *COLUMNS[:2])
    verdict = project.batch("second")
    assert not verdict.passed
    assert verdict.clean == 0
    assert "column 'text' is removed" in verdict.reason
    assert of_version(verdict)[0] == "fail"
    assert project.accepted() == ["1.0.0"]
    project.write("2.0.0", *COLUMNS[:2])
    assert project.batch("second").passed
    assert project.accepted() == ["1.0.0", "2.0.0"]


def test_an_addition_without_a_minor_version_is_a_warning(project: Project) -> None:
    """Told in the verdict, which passes."""
    project.write(
        "1.0.1", *COLUMNS, {"name": "more", "customProperties": [{"property": "columnPresence", "value": "optional"}]}
    )
    verdict = project.batch("second")
    assert verdict.passed
    assert of_version(verdict) == ("info", of_version(verdict)[1])
    assert "raise the minor version" in of_version(verdict)[1]


def test_a_replay_is_judged_by_the_contract_of_its_time(project: Project) -> None:
    """The old rows break the new contract and pass under their own; what was accepted last stays so."""
    old = project.read("second")
    assert project.judge(old)[0].passed
    project.write("2.0.0", COLUMNS[0], COLUMNS[1], {"name": "text", "enum": [{"value": "one"}]}, {"name": "new"})
    assert not project.batch("third").passed
    replayed, judged = project.judge(old)
    assert (replayed.passed, replayed.version) == (True, "1.0.0")
    assert judged.path.read_text() != project.contract.read_text()
    project.write("3.0.0", *COLUMNS[:2])
    assert project.batch("fourth").passed
    assert project.judge(old)[0].passed
    assert project.accepted() == ["1.0.0", "3.0.0"]
    project.write("1.0.0")
    verdict = project.batch("fifth")
    assert "went back" in verdict.reason


def test_a_stored_snapshot_keeps_its_contract_when_only_taken_again(project: Project) -> None:
    """A run on rows of the store names the contract of their reading, even where the project's file is gone."""
    ref = SnapshotRef.read(project.read("second"))
    project.write("2.0.0", *COLUMNS[:2])
    again = SnapshotRef.read(project.read("second", expected=ref.digest))
    assert (again.contract_version, again.contract_digest) == ("1.0.0", ref.contract_digest)
    project.contract.unlink()
    assert SnapshotRef.read(project.read("second", expected=ref.digest)) == ref


def test_the_same_rows_under_a_new_contract_name_the_new_one(project: Project) -> None:
    """The stored folder does not change; each reading's own record and the home know both contracts."""
    ref = SnapshotRef.read(project.read("second"))
    stored = read_manifest(project.home.snapshots / ref.digest)
    project.write("1.0.1", *[column | {"description": "Said better."} for column in COLUMNS])
    snapshot = project.read("second")
    new = SnapshotRef.read(snapshot)
    assert (new.digest, new.contract_version) == (ref.digest, "1.0.1")
    assert verify(project.home.snapshots / ref.digest) == stored
    assert [one.contract.version for one in contracts.namings(project.home, ref.digest)] == ["1.0.0", "1.0.1"]
    assert project.judge(snapshot)[0].version == "1.0.1"
    kept = SnapshotRef.read(project.read("second", expected=ref.digest))
    assert kept.contract_version == "1.0.1"


@pytest.mark.parametrize("how", ["missing", "altered"])
def test_an_archive_without_the_named_contract_fails_closed(how: str, project: Project) -> None:
    """Broken integrity that names contract and file; put back from the project where that is still the same."""
    snapshot = project.read("second")
    kept = project.home.contracts / f"{SnapshotRef.read(snapshot).contract_digest}.odcs.yaml"
    kept.unlink() if how == "missing" else kept.write_text(kept.read_text() + "#")
    assert project.judge(snapshot)[0].passed
    kept.unlink() if how == "missing" else kept.write_text(kept.read_text() + "#")
    project.write("2.0.0", *COLUMNS[:2])
    with pytest.raises(IntegrityError, match=rf"contract case 1\.0\.0: .*{kept.name}"):
        project.judge(snapshot)
    with pytest.raises(IntegrityError, match=r"contract case 1\.0\.0"):
        project.batch("third")


def test_a_version_accepted_meanwhile_is_not_overtaken(project: Project) -> None:
    """Two runs at once: who compared with an older version adds no entry behind the newer one."""
    project.write("1.0.1", *[column | {"description": "Once."} for column in COLUMNS])
    slow = project.read("second")
    judged = contract_of(project.home, slow, project.recipe())
    project.write("1.0.2", *[column | {"description": "Twice."} for column in COLUMNS])
    assert project.batch("third").passed
    assert project.judge(slow)[0].passed
    judged.accept(project.judge(slow)[0], "slow")
    assert project.accepted() == ["1.0.0", "1.0.2"]


def test_a_broken_contract_is_found_before_the_source_is_read(project: Project) -> None:
    """Not even a file that is absent is looked for."""
    project.contract.write_text(project.contract.read_text().replace("required: true", "requierd: true"))
    with pytest.raises(UserError, match="requierd"):
        name_contract(recipe_for("/none/rows.csv", project.contract), project.home)


def test_a_recipe_is_checked_against_its_project_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken contract, a broken training contract, an undeclared feature service: exit 2, nothing kept."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("apiVersion: v3.2.0\nid: x\nversion: 1.0.0\nschema: []\n")
    for given, says in (
        (f"contract.path={broken}", "broken.yaml"),
        (f"contract.training={broken}", "broken.yaml"),
        ("features.service=complaints_v1", "complaints_v1"),
        ("features.repo=tests", "features.py"),
    ):
        home = tmp_path / "home"
        assert main(["run", "--home", str(home), "--engine", "reference", "--set", given]) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilotline: ")]
        assert len(lines) == 1
        assert says in lines[0]
        assert not (home / "snapshots").exists()
    check_project(complaints_recipe("unread.csv"))


def test_declared_services_are_read_without_feast(tmp_path: Path) -> None:
    """Names as written; a computed part may be anything, a computed name leaves the question open."""
    path = tmp_path / "features.py"
    path.write_text('import feast\na = feast.FeatureService(name="one_v1")\nb = FeatureService(name=f"two_{x}")\n')
    assert declared_services(path) == {"one_v1": "one_v1", "two_*": "two_.+"}
    path.write_text("FeatureService(name=NAME)\n")
    assert declared_services(path) == {}
    path.write_text("def (")
    with pytest.raises(UserError, match=r"features\.py"):
        declared_services(path)


def test_steps_by_hand_replay_with_the_archived_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command: rows read under 1.0.0 are judged by it after the project's file broke with them."""
    project = Project(tmp_path)
    project.write("1.0.0")
    write_csv(tmp_path / "rows.csv")
    sets = {
        "source.uri": tmp_path / "rows.csv",
        "source.time_column": "day",
        "source.key": '["id"]',
        "contract.path": project.contract,
        "contract.engine": "duckdb",
    }
    common = ["--home", str(project.home.root), "--json"]
    common += [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    snapshot = tmp_path / "snapshot"
    assert main(["step", "ingest", *common, "--out", str(snapshot)]) == 0
    project.write("1.1.0", *COLUMNS[:2], {"name": "words", "required": True})
    capsys.readouterr()
    again = ["step", "validate", *common, "--input", f"snapshot={snapshot}", "--out", str(tmp_path / "clean")]
    assert main(again) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["passed"], told["version"]) == (True, "1.0.0")
    assert main(["step", "ingest", *common, "--out", str(tmp_path / "next")]) == 0
    again = ["step", "validate", *common, "--input", f"snapshot={tmp_path / 'next'}", "--out", str(tmp_path / "clean2")]
    capsys.readouterr()
    assert main(again) == 3
    assert "'words'" in json.loads(capsys.readouterr().out.splitlines()[-1])["reason"]
