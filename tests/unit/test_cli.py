"""The command line: exit codes, one clear line, JSON last."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import publishing
from components.core.recipe import load_recipe
from pipelines.cli import main, parser
from pipelines.outcome import Outcome, store
from pipelines.recipes import locate
from pipelines.run import _attempts, _run_id
from tests.fakes.ledger_places import change


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
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.append("run", "k", {})
    assert main(["ledger", "verify", "--home", str(tmp_path)]) == 0
    change(f"sqlite:///{tmp_path / 'ledger.db'}", "update ledger set kind='x'")
    assert main(["ledger", "verify", "--home", str(tmp_path)]) == 3
    assert "entry 1" in capsys.readouterr().err


def test_a_ledger_that_is_no_database_is_broken_integrity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 in one line with a mend, not a database engine's own words."""
    (tmp_path / "ledger.db").write_bytes(b"garbage" * 500)
    assert main(["ledger", "verify", "--home", str(tmp_path)]) == 3
    assert "restore it" in capsys.readouterr().err


def test_a_ledger_whose_end_was_cut_off_is_found_out(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """The chain alone cannot show it: the runs' own files do."""
    outcome = _outcome("r1", "promoted", 0)
    (home.run("r1")).mkdir(parents=True)
    (home.run("r1") / "run.json").write_text(json.dumps(asdict(outcome)))
    store(home, outcome)
    assert main(["ledger", "verify", "--home", str(home.root)]) == 0
    (home.root / "ledger.db").unlink()
    assert main(["ledger", "verify", "--home", str(home.root)]) == 3
    assert "r1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["ledger", "verify"],
        ["models", "history", "m", "--at", "2026-01-01"],
        ["models", "list"],
        ["models", "card", "m", "1"],
    ],
)
def test_who_asks_of_what_was_begins_no_home_anew(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A home that is not there is bad input and stays away; an empty one has no ledger and gets none."""
    assert main([*argv, "--home", str(tmp_path / "none")]) == 2
    assert "is not there" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(["ledger", "verify", "--home", str(tmp_path)]) == 3
    assert not list(tmp_path.iterdir())


def test_a_ledger_without_its_table_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not intact with no entries, and not made anew."""
    Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").append("run", "k", {})
    change(f"sqlite:///{tmp_path / 'ledger.db'}", "drop table ledger")
    for _ in range(2):
        assert main(["ledger", "verify", "--home", str(tmp_path)]) == 3
        assert "holds no entries' table" in capsys.readouterr().err


def test_a_registry_that_cannot_be_opened_leaves_the_chain_to_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow's database is a folder, or garbage: one line says that it was not read, within seconds."""
    Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").append("run", "k", {})
    store_file = tmp_path / "mlflow.db"
    store_file.mkdir()
    for _ in range(2):
        began = time.monotonic()
        assert main(["ledger", "verify", "--home", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        assert "anchors not read: MLflow at" in out
        assert (len(out.splitlines()), err) == (1, "")
        assert time.monotonic() - began < 60
        if store_file.is_dir():
            store_file.rmdir()
            store_file.write_bytes(b"garbage" * 500)


@pytest.mark.parametrize("argv", [["run", "--engine", "bogus"], [], ["models", "show"], ["nothing"]])
def test_bad_usage_keeps_the_contract_of_one_line_and_json(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The parser's own errors are bad input like any other."""
    assert main([*argv, "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 2
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["h?x", "h#1", "h%41"])
def test_a_home_that_a_database_url_would_misread_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written beside the home."""
    assert main(["ledger", "verify", "--home", str(tmp_path / name)]) == 2
    assert "cannot be in its path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_force_takes_the_first_number_that_is_not_finished(home: Home) -> None:
    """A forced run that was killed is resumed; a finished one is left alone."""
    recipe = load_recipe(locate("laptop"))

    def named(force: bool) -> str:
        return _run_id(recipe, home, "snapshot", "code", "vllm", force)

    base = named(False)
    for expected in (base, f"{base}.1", f"{base}.2"):
        assert named(True) == expected
        store(home, _outcome(expected, "refused", 3))
    assert named(False) == base


def test_damaged_artifacts_of_earlier_attempts_are_taken_away(home: Home) -> None:
    """The local runner would take them from its cache as they are."""
    whole, broken = (home.pipeline_root / "r1" / "attempt" / step / "out" for step in ("ingest", "validate"))
    for folder in (whole, broken):
        with publishing(folder) as staging:
            (staging / "data").write_text("rows")
    (broken / "data").write_text("rowz")
    _attempts(home, "r1")
    assert whole.exists()
    assert not broken.exists()


def test_damage_on_disk_is_no_verdict_to_keep() -> None:
    """A refusal by an integrity check is not stored as the run's outcome."""
    assert _outcome("r1", "refused", 3).is_final
    assert not replace(_outcome("r1", "refused", 3), repeatable=True).is_final


def _outcome(run_id: str, outcome: str, code: int) -> Outcome:
    return Outcome(run_id, outcome, "", code, "r", "", "", "", 0.0, 0.0, [], None, None)


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
