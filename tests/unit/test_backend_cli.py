"""`pilotline training`: the file for a person, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from components.core.home import Home
from pipelines.cli import main
from pipelines.doctor import examine
from tests.fakes.training_case import publish_training_set


def test_render_writes_what_a_backend_would_submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same recipe as a TrainJob and as a script; with a training set both bear the name of that training."""
    training_set = str(publish_training_set(tmp_path / "set"))
    base = ["training", "render", "--set", "resources.accelerator=l4", "--training-set", training_set, "--json"]
    assert main([*base, "--backend", "trainjob", "-o", str(tmp_path / "job.yaml")]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*base, "--backend", "slurm", "-o", str(tmp_path / "job.sbatch")]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["name"] == second["name"] != "pilotline-" + "0" * 20
    body = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert body["metadata"]["name"] == first["name"]
    assert f"--job-name={first['name']}\n" in (tmp_path / "job.sbatch").read_text()
    assert main(["training", "render", "--backend", "trainjob"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["metadata"]["name"] == "pilotline-" + "0" * 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["render"], "there is no file; use --backend trainjob or slurm"),
        (["render", "--backend", "slurm", "--set", "resources.topology=rack"], "the back-end slurm cannot honour it"),
        (["render", "--backend", "slurm", "--set", "resources.accelerator=z9"], "known: a100, cpu, h100, h200, l4"),
        (["render", "--backend", "slurm", "--training-set", "/nowhere"], "no such folder"),
        (["render", "--backend", "slurm", "-o", "/proc/none/x"], "choose another with -o"),
        (["cancel", "--training-set", "x"], "its ranks live and end with the command"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, nothing on standard output."""
    assert main(["training", *words]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert said in found.err
    assert found.err.count("\n") == 1


def test_doctor_names_every_backend_with_its_mend(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a cluster's programs are absent the line says what to do; none of them is needed by a laptop."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    found = {item["what"]: item for item in examine(home) if item["what"].startswith("training: ")}
    assert set(found) == {"training: local", "training: trainjob", "training: slurm"}
    assert found["training: local"]["ok"]
    assert not any(item["needed"] for item in found.values())
    assert "set KUBECONFIG" in found["training: trainjob"]["mend"]
    assert "login node" in found["training: slurm"]["mend"]
