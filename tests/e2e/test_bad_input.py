"""Bad input: one line with what, where and what to do; the right exit status; nothing half-written."""

from __future__ import annotations

import csv
import socket
from pathlib import Path

import pytest

from components.core.home import Home
from pipelines.cli import main
from pipelines.generators import GENERATORS
from tests.e2e.chain import none_left, pilotline

ROWS = GENERATORS["complaints"](rows=700, seed=5)


def _write(path: Path, columns: list[str] | None = None, encoding: str = "utf-8") -> Path:
    frame = ROWS if columns is None else ROWS[columns]
    frame.to_csv(path, index=False, encoding=encoding, quoting=csv.QUOTE_MINIMAL)
    return path


def _cut(path: Path) -> None:
    text = _write(path).read_text()
    path.write_text(text[: text.index('"', len(text) // 2) + 30])


def _empty(path: Path) -> None:
    path.write_text("")


def _no_text(path: Path) -> None:
    path.write_bytes(_write(path).read_bytes() + b"\x81\n")


def _twice(path: Path) -> None:
    header, _, rest = _write(path).read_text().partition("\n")
    path.write_text(header.replace("Sub-issue", "Issue") + "\n" + rest)


def _no_time(path: Path) -> None:
    _write(path, [name for name in ROWS if name != "Date received"])


def _dates(path: Path) -> None:
    frame = ROWS.copy()
    frame["Date received"] = "the ides of March"
    frame.to_csv(path, index=False)


BROKEN = {
    "cut inside a quoted field": (_cut, "quote"),
    "empty": (_empty, "empty"),
    "wrong encoding": (_no_text, "source.encoding"),
    "duplicate column": (_twice, "Issue"),
    "missing time column": (_no_time, "Date received"),
    "unreadable dates": (_dates, "ides of March"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_exit_2_and_leaves_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the file and what is wrong; no snapshot, no run and no ledger come of it."""
    make, says = BROKEN[name]
    path = tmp_path / "rows.csv"
    make(path)
    home = tmp_path / "home"
    assert main(["run", "--source", str(path), "--engine", "reference", "--home", str(home), "--json"]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilotline:")]
    assert len(err) == 1
    assert says.lower() in err[0].lower()
    assert "rows.csv" in err[0] or "Date received" in err[0]
    left = {entry.relative_to(home).parts[0] for entry in home.rglob("*") if entry.is_file()}
    assert left <= {"run.lock"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--source", "nowhere/rows.csv"], "nowhere/rows.csv"),
        (["--source", "nowhere/*.csv"], "nowhere/*.csv"),
        (["--source", "generator://complaint"], "complaints"),
        (["--source", "generator://complaints?row=5"], "rows"),
        (["--source", "sqlite:///nowhere/x.db", "--set", "source.query=select 1"], "nowhere/x.db"),
        (["--set", "sourse.until=2025-08-01"], "source"),
        (["--set", "source.until=soon"], "source.until"),
        (["--set", "features.repo=nowhere"], "nowhere"),
        (["--set", "contract.path=nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_bad_argument_is_exit_2(
    argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named in one line, before anything is computed."""
    assert main(["run", *argv, "--engine", "reference", "--home", str(tmp_path / "h"), "--json"]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilotline:")]
    assert len(err) == 1
    assert says in err[0]


def test_an_empty_folder_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory with no match."""
    (tmp_path / "data").mkdir()
    assert main(["run", "--source", str(tmp_path / "data"), "--home", str(tmp_path / "h")]) == 2
    assert "data" in capsys.readouterr().err


def test_a_port_in_use_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is computed."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        argv = ["run", "--engine", "reference", "--set", f"serving.port={port}", "--home", str(tmp_path / "h")]
        assert main(argv) == 2
    assert f"serving.port {port}: in use" in capsys.readouterr().err


def test_vllm_asked_for_and_absent_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """$PILOTLINE_VLLM that names nothing: one line with what to do."""
    monkeypatch.setenv("PILOTLINE_VLLM", str(tmp_path / "none"))
    assert main(["run", "--engine", "vllm", "--home", str(tmp_path / "h")]) == 2
    assert "PILOTLINE_VLLM" in capsys.readouterr().err


def test_a_second_run_of_the_same_home_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run a home at a time: the second says so and disturbs nothing."""
    import fcntl

    home = Home.at(tmp_path / "h")
    with (home.root / "run.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["run", "--engine", "reference", "--home", str(home.root)]) == 2
    assert "another run is active" in capsys.readouterr().err


def test_a_missing_column_is_refused_by_the_contract_with_a_report(tmp_path: Path) -> None:
    """Exit 3, the column named, a report written, nothing trained."""
    path = _write(tmp_path / "rows.csv", [name for name in ROWS if name != "Company response to consumer"])
    code, told, err = pilotline("run", "--source", str(path), "--engine", "reference", home=tmp_path / "home")
    assert (code, told["outcome"]) == (3, "refused"), err
    assert "Company response to consumer" in told["reason"]
    assert [step["name"] for step in told["steps"]] == ["ingest", "validate"]
    assert told["model"] is None
    assert "Company response to consumer" in Path(told["report"]).read_text()
    assert none_left(tmp_path / "home")
    again, stored, _ = pilotline("run", "--source", str(path), "--engine", "reference", home=tmp_path / "home")
    assert (again, stored) == (3, told)
