"""The command line: exit codes, one clear line, JSON last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from components.core.ledger import Ledger
from pipelines.cli import main, parser


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--recipe", "nothing"],
        ["run", "--set", "training.stepz=1"],
        ["compile", "--recipe", "no/such.toml"],
        ["run", "--source", "missing.csv", "--engine", "reference"],
        ["contract", "check", "missing.yaml", "missing.csv"],
    ],
)
def test_bad_usage_is_one_line_and_exit_2(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What, where and what to do on standard error; JSON on standard output."""
    assert main([*argv, "--home", str(tmp_path / "h"), "--json"]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("pilotline: ")]
    assert len(lines) == 1
    assert "Traceback" not in err
    assert json.loads(out.splitlines()[-1])["exit_code"] == 2


def test_a_home_that_is_a_file_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and the home's name."""
    (tmp_path / "f").write_text("")
    assert main(["ledger", "verify", "--home", str(tmp_path / "f")]) == 2
    assert "not writable" in capsys.readouterr().err


def test_an_altered_ledger_is_a_deliberate_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ledger verify` counts, and exits 3 naming the entry after an alteration."""
    import sqlite3

    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.append("run", "k", {})
    assert main(["ledger", "verify", "--home", str(tmp_path)]) == 0
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("update ledger set kind='x'")
    assert main(["ledger", "verify", "--home", str(tmp_path)]) == 3
    assert "entry 1" in capsys.readouterr().err


def test_help_imports_no_engine() -> None:
    """Asking for help stays fast: no engine, no pandas, no pydantic."""
    code = (
        "import sys; from pipelines.cli import parser; parser().format_help()\n"
        "heavy = ('kfp', 'mlflow', 'feast', 'torch', 'pandas', 'pydantic', 'sqlalchemy', 'psutil')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_verb_has_the_common_options() -> None:
    """--home, --json and --debug everywhere."""
    import argparse

    def leaves(top: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
        groups = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
        return [leaf for group in groups for sub in group.choices.values() for leaf in leaves(sub)] or [top]

    for leaf in leaves(parser()):
        assert {"--home", "--json", "--debug"} <= set(leaf._option_string_actions), leaf.prog
