"""`pilotline contract`: exit codes, one clear line, and the JSON that programs rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from tests.fakes.contract_versions import BASE, Edit, column, edited, write


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
