"""The batch script says what the recipe and the pool say, and holds whatever a path or a setting is made of."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.training.backends.launch import Launch
from components.training.backends.slurm_script import batch_script
from tests.fakes.golden import check_golden
from tests.fakes.training_launch import KEY, launch_for, recipe_for

CASES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "h100-two-nodes": {"accelerator": "h100", "nodes": 2, "queue": "gpu", "priority": "high"},
}


def _script(launch: Launch) -> str:
    return batch_script(launch, "/opt/pilotline/.venv/bin/python", Path("/opt/pilotline"))


def _options(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_script_is_the_golden_one(case: str) -> None:
    """Byte-identical to what was reviewed, and a shell can read it."""
    text = _script(launch_for("slurm", 4, **CASES[case]))
    check_golden(f"slurm-{case}.sbatch", text)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_pool_decides_what_slurm_is_asked_for() -> None:
    """GPUs, cores, memory, time, the signal before its end, requeueing, partition and QOS."""
    options = _options(_script(launch_for("slurm", 4, **CASES["h100-two-nodes"])))
    expected = {"nodes": "2", "ntasks-per-node": "1", "gres": "gpu:h100:2", "cpus-per-task": "32", "mem": "464G"}
    expected |= {"time": "1440", "signal": "B:TERM@120", "requeue": "", "partition": "gpu", "qos": "high"}
    assert {name: options[name] for name in expected} == expected
    cpu = _options(_script(launch_for("slurm", 4)))
    assert not {"gres", "partition", "qos"} & set(cpu)


def test_secrets_enter_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script names the variable that sbatch hands on; its value is nowhere."""
    monkeypatch.setenv("PILOTLINE_MLFLOW_URI", "postgresql://me:planted-secret@db/mlflow")
    text = _script(launch_for("slurm", 2, accelerator="h100"))
    assert "planted-secret" not in text
    assert "PILOTLINE_MLFLOW_URI" in _options(text)["export"].split(",")


@pytest.mark.parametrize("name", ["it's here", "a b", "$HOME", "`id`", "; id", "é", "-rf"])
def test_a_path_of_any_words_is_one_word_of_the_script(tmp_path: Path, name: str) -> None:
    """The shell is asked what it makes of the script's own quoting: the job's folder, entered, is that folder."""
    folder = tmp_path / name
    folder.mkdir()
    launch = Launch(KEY, folder / "job.json", recipe_for("slurm"), folder / "log")
    head = _script(launch).split("\nexport ", 1)[0] + "\npwd\n"
    done = subprocess.run(["bash"], input=head, text=True, capture_output=True, check=True)
    assert done.stdout == f"{folder}\n"


@pytest.mark.parametrize("name", ["a\nb", "100%", 'a"b', "a\\b"])
def test_a_path_that_slurm_would_change_is_refused(name: str) -> None:
    """% is a pattern in Slurm's own options, and a line break ends one."""
    with pytest.raises(UserError, match="absolute path without"):
        _script(Launch(KEY, Path("/x") / name / "job.json", recipe_for("slurm"), Path("/x/log")))
