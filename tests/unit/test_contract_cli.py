"""`pilotline contract`: exit codes, one clear line, and the JSON that programs rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from tests.fakes.contract_case import contract_file
from tests.fakes.contract_versions import BASE, Edit, column, edited, write
from tests.fakes.ingestion_case import write_csv


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The last line of standard output."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def shorter(document: dict[str, Any]) -> None:
    """A breaking change."""
    column(document, "status")["enum"].pop()


def longer(document: dict[str, Any]) -> None:
    """An additive change."""
    column(document, "status")["enum"].append({"value": "held"})


@pytest.mark.parametrize(
    ("edit", "version", "code", "breaking", "raised"),
    [
        (shorter, "1.5.0", 3, True, False),
        (shorter, "2.0.0", 0, True, True),
        (longer, "1.5.0", 0, False, False),
        (longer, "1.4.2", 0, False, False),
        (longer, "2.0.0", 0, False, True),
        (longer, "1.0.0", 3, True, False),
    ],
)
def test_diff_says_no_to_a_breaking_change_without_a_major_version(
    edit: Edit,
    version: str,
    code: int,
    breaking: bool,
    raised: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 0 or 3, and JSON with breaking, major_raised and changes."""
    old, new = write(tmp_path / "old.yaml", BASE), write(tmp_path / "new.yaml", edited(edit, version))
    assert main(["contract", "diff", str(old), str(new), "--json"]) == code
    shown = said(capsys)
    assert (shown["breaking"], shown["major_raised"]) == (breaking, raised)
    assert all({"path", "kind", "breaking"} <= set(change) for change in shown["changes"])
    assert main(["contract", "diff", str(old), str(new)]) == code
    assert "schema.orders.properties.status.enum" in capsys.readouterr().out


@pytest.mark.parametrize("which", ["missing", "unknown key", "version"])
def test_diff_of_what_is_no_contract_is_bad_input(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line that names the file."""
    old = write(tmp_path / "old.yaml", BASE)
    new = tmp_path / "new.yaml"
    if which != "missing":
        write(new, edited(lambda d: d.update({"colour": "red"} if which == "unknown key" else {"version": "soon"})))
    assert main(["contract", "diff", str(old), str(new)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "new.yaml" in lines[0]


def test_infer_drafts_to_standard_output_or_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same text either way; the draft checks its own data; a file that is there is bad input and stays."""
    data = write_csv(tmp_path / "rows.csv", [(f"r{n}", "2025-01-02", f"text {n}") for n in range(30)])
    out = tmp_path / "drafts" / "rows.yaml"
    assert main(["contract", "infer", str(data)]) == 0
    text = capsys.readouterr().out
    assert main(["contract", "infer", str(data), "--output", str(out), "--json"]) == 0
    assert (said(capsys)["key"], out.read_text()) == (["id"], text)
    assert main(["contract", "check", str(out), str(data), "--engine", "duckdb", "--json"]) == 0
    shown = said(capsys)
    assert set(shown) == {"passed", "rows", "clean", "quarantined", "checks", "engine"}
    assert all(set(check) == {"rule", "column", "passed", "observed", "limit"} for check in shown["checks"])
    assert (shown["passed"], shown["rows"], shown["engine"].split()[0]) == (True, 30, "duckdb")
    assert main(["contract", "infer", str(data), "-o", str(out)]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert out.read_text() == text


def test_check_names_what_broke_and_takes_uris_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 with a line a rule; a folder is read as ingestion reads it; a missing file is bad input."""
    contract = contract_file(tmp_path / "c.yaml", [{"name": "id", "unique": True}, {"name": "day"}, {"name": "text"}])
    write_csv(tmp_path / "rows" / "a.csv", [("1", "x", "y")])
    write_csv(tmp_path / "rows" / "b.csv", [("1", "x", "y"), ("2", "x", "y")])
    assert main(["contract", "check", str(contract), str(tmp_path / "rows"), "--engine", "duckdb"]) == 3
    printed = capsys.readouterr().out
    assert "violated" in printed
    assert "id: unique: 2 (" in printed
    assert main(["contract", "check", str(contract), f"file://{tmp_path}/rows/a.csv", "--engine", "duckdb"]) == 0
    assert main(["contract", "check", str(contract), str(tmp_path / "none.csv")]) == 2
