"""A run that awaited approval and was settled: killed after any of its writes and called again, the end is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.core.ledger import Ledger
from components.core.steps import read_record
from pipelines import settling
from pipelines.cli import main
from pipelines.outcome import stored
from pipelines.settling import settle
from tests.fakes.audited_home import NAME, AuditedHome


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def place(tmp_path: Path) -> AuditedHome:
    """Version 1 awaits one approval."""
    made = AuditedHome(tmp_path)
    assert made.promote("1", policy={"required": 1}) == "awaiting_approval"
    return made


def test_while_nobody_decided_nothing_changes(place: AuditedHome) -> None:
    """The same outcome, no entry in the ledger as a finished run."""
    before = (place.home.run("run-1") / "run.json").read_text()
    told = settle(place.home, "run-1")
    assert told is not None
    assert (told.outcome, told.exit_code) == ("awaiting_approval", 4)
    assert (place.home.run("run-1") / "run.json").read_text() == before
    assert stored(place.home, "run-1") is None
    assert settle(place.home, "run-9") is None


@pytest.mark.parametrize("last", ["write_atomic", "conclude", "_report", "store"])
def test_killed_after_any_write_and_called_again(
    place: AuditedHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], last: str
) -> None:
    """One promotion, one run entry, the record says promoted, and an audit of a decision holds."""
    real = getattr(settling, last)

    def deadly(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(settling, last, deadly)
        with pytest.raises(Killed):
            place.approve("1", "bob")
    told = settle(place.home, "run-1") or stored(place.home, "run-1")
    assert told is not None
    assert (told.outcome, told.exit_code) == ("promoted", 0)
    record = read_record(place.home, "run-1", "promote")
    assert record is not None
    assert record["outcome"] == "promoted"
    ledger = Ledger(place.home.ledger_url)
    assert [len(ledger.entries(kind)) for kind in ("promotion", "run", "approval")] == [1, 1, 2]
    ledger.close()
    decision = place.decide("1", "run-1")
    assert main(["audit", decision, "--home", str(place.home.root)]) == 0
    assert "Promoted" in (place.home.run("run-1") / "report.html").read_text()


def test_the_verbs_say_who_and_exit_as_told(place: AuditedHome, capsys: pytest.CaptureFixture[str]) -> None:
    """Approve by the starter is refused, by another promotes; repair and history answer; a reason is asked for."""
    home = ["--home", str(place.home.root), "--json"]

    def said(*argv: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([*argv, *home])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    assert said("models", "approve", NAME, "1", "--as", "ana", "--reason", "mine")[0] == 3
    assert said("models", "approve", NAME, "1", "--as", "bob", "--reason", " ")[0] == 2
    assert said("models", "approve", NAME, "1", "--as", "b b", "--reason", "x")[0] == 2
    code, values = said("models", "approve", NAME, "1", "--as", "bob", "--reason", "fine")
    assert (code, values["outcome"], values["by"]["source"]) == (0, "promoted", "--as")
    assert said("models", "reject", NAME, "1", "--as", "bob", "--reason", "late")[0] == 3
    place.tracking.delete_alias(NAME, "champion")
    assert said("models", "repair", NAME)[1] == {"name": NAME, "champion": "1"}
    assert place.tracking.alias(NAME, "champion") == "1"
    assert said("models", "rollback", NAME, "--as", "bob", "--reason", "x")[0] == 3  # there is none before it
    events = [item["event"] for item in said("models", "history", NAME)[1]["items"]]
    assert events == ["requested", "approved", "promoted"]
