"""`pilotline step` and `pilotline contract check`: one component alone, on local paths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.core.home import Home
from components.core.publish import verify
from components.core.recipe import load_recipe
from pipelines.cli import main
from pipelines.generators import GENERATORS
from pipelines.outcome import conclude
from pipelines.recipes import locate
from pipelines.report import build_report


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file of complaints."""
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    GENERATORS["complaints"](rows=800, seed=2).to_csv(path, index=False)
    return path


def test_steps_by_hand_publish_what_the_next_one_takes(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ingest, then validate on its folder: both folders verify and the records agree."""
    common = ["--source", str(rows), "--home", str(tmp_path / "h"), "--json"]
    snapshot, clean = tmp_path / "out" / "snapshot", tmp_path / "out" / "clean"
    assert main(["step", "ingest", *common, "--out", str(snapshot)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["rows"] == 800
    assert main(["step", "validate", *common, "--input", f"snapshot={snapshot}", "--out", str(clean)]) == 0
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert verdict["passed"]
    assert verdict["snapshot_digest"] == told["digest"]
    assert verdict["clean"] + verdict["quarantined"] == 800
    assert {"data.parquet", "record.json"} <= set(verify(snapshot)["files"])
    assert {"clean.parquet", "quarantine.parquet"} <= set(verify(clean)["files"])
    assert (tmp_path / "out" / "clean.page").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nothing"], "not one of ingest"),
        (["validate"], "'snapshot' is missing"),
        (["validate", "--input", "snapshot=nowhere"], "NAME=DIR"),
        (["ingest", "--input", "snapshot=."], "not used"),
    ],
)
def test_a_wrong_step_or_input_is_bad_usage(
    argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says what the step takes."""
    assert main(["step", *argv, "--home", str(tmp_path / "h"), "--out", str(tmp_path / "o")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_the_real_file_holds_the_contract(real_csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2,827 rows pass; the JSON has the shape that programs rely on."""
    assert main(["contract", "check", "data_contracts/complaints.odcs.yaml", str(real_csv), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["passed"], told["rows"]) == (True, 2827)
    assert {"rule", "column", "passed", "observed", "limit"} == set(told["checks"][0])
    assert told["engine"].startswith("great_expectations")


def test_a_broken_file_is_a_deliberate_no(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 with the rule that does not hold."""
    lines = rows.read_text().splitlines()
    path = tmp_path / "header.csv"
    path.write_text(lines[0] + "\n")
    assert main(["contract", "check", "data_contracts/complaints.odcs.yaml", str(path)]) == 3
    assert "violated" in capsys.readouterr().out


def test_a_refused_batch_is_exit_3_for_a_step_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A deliberate no has the same exit status alone and in a run."""
    common = ["--source", "generator://complaints?rows=60", "--home", str(tmp_path / "h"), "--json"]
    assert main(["step", "ingest", *common, "--out", str(tmp_path / "s")]) == 0
    argv = ["step", "validate", *common, "--input", f"snapshot={tmp_path / 's'}", "--out", str(tmp_path / "c")]
    assert main(argv) == 3
    assert not json.loads(capsys.readouterr().out.splitlines()[-1])["passed"]


@pytest.mark.parametrize("out", ["mine", ".", ".."])
def test_a_step_never_replaces_what_it_did_not_publish(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of the user's, the working folder and its parents stay as they are."""
    work = tmp_path / "work"
    (work / "mine").mkdir(parents=True)
    (work / "mine" / "thesis.txt").write_text("years")
    monkeypatch.chdir(work)
    argv = ["step", "ingest", "--source", "generator://complaints?rows=50", "--home", str(tmp_path / "h")]
    assert main([*argv, "--out", out]) == 2
    assert "--out" in capsys.readouterr().err
    assert (work / "mine" / "thesis.txt").read_text() == "years"


def test_a_leak_stops_before_training_and_the_report_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column that follows the outcome, as a generator plants it: exit 3, refused, the column and its AUC named."""
    home, out = tmp_path / "h", tmp_path / "out"
    source = "generator://complaints?rows=3000&seed=7&leak=1"
    common = ["--source", source, "--home", str(home), "--run-id", "leaks", "--json"]
    told = {}
    for step, inputs in STEPS.items():
        given = [part for name in inputs for part in ("--input", f"{name}={out / name}")]
        code = main(["step", step, *common, *given, "--out", str(out / MADE[step])])
        told[step] = (code, json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert [code for code, _ in told.values()] == [0, 0, 0, 3]
    record = told["guard"][1]
    assert record["training_set_digest"] == told["featurise"][1]["digest"]
    assert [rule["subject"] for rule in record["guards"] if rule["outcome"] == "fail"] == ["Amount refunded"]
    assert {rule["subject"].partition(":")[0] for rule in record["checks"]} == {"train", "validation", "test"}
    assert {"record.json"} <= set(verify(out / "handover")["files"])
    assert "Amount refunded" in (out / "handover.page").read_text()
    recipe = load_recipe(locate("laptop"), [f"source.uri={source}"])
    ended = conclude(Home.at(home), "leaks", recipe, "0")
    assert (ended.outcome, ended.exit_code, ended.is_final) == ("refused", 3, True)
    assert "Amount refunded" in ended.reason
    assert "AUC" in ended.reason
    page = build_report(Home.at(home), "leaks")
    assert "Nothing was learned from these rows" in page
    assert "said no" in page


STEPS = {
    "ingest": [],
    "validate": ["snapshot"],
    "featurise": ["clean"],
    "guard": ["clean", "training_set"],
}
MADE = {"ingest": "snapshot", "validate": "clean", "featurise": "training_set", "guard": "handover"}
