"""A restated source is told where people look: in the run's output, its step note, its record and its report."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from components.core.home import Home
from components.features.component import featurise as component
from pipelines.progress import Progress
from pipelines.report.data_sections import features
from pipelines.report.facts import read_facts
from tests.fakes.feature_rows import clean_folder, complaint_recipe, complaints, many_complaints

ROWS = complaints(many_complaints(600, seed=3))


def test_it_is_told_in_output_note_record_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two exports the second says something else of a quarter of the rows; the first is told as nothing."""
    home = Home.at(tmp_path / "home")
    restated = ROWS.copy()
    restated.loc[restated.index[:150], "Consumer complaint narrative"] = "restated"
    for run_id, frame in (("first", ROWS), ("second", restated)):
        clean = clean_folder(tmp_path / run_id / "clean", frame)
        component.python_func(
            home=str(home.root),
            run_id=run_id,
            recipe=complaint_recipe().to_json(),
            code_version="0",
            clean=SimpleNamespace(path=str(clean)),
            training_set=SimpleNamespace(path=str(tmp_path / run_id / "set"), metadata={}),
        )
        capsys.readouterr()
        progress = Progress(home)
        progress._look(home.run(run_id) / "steps")
        printed = capsys.readouterr().err.strip().splitlines()
        note = json.loads((home.run(run_id) / "steps" / "featurise.json").read_text())
        section = features(read_facts(home, run_id))
        if run_id == "first":
            assert ("said" in note, len(printed), section["state"]) == (False, 1, "good")
            continue
        kept = json.loads((home.run(run_id) / "records" / "featurise.json").read_text())
        (line,) = kept["notes"]
        assert "the source is restated: 25.0% of the rows of export" in line
        assert note["said"] == [line]
        assert printed[1].endswith(f"featurise: {line}")
        assert section["state"] == "warn"
        assert line[1:] in section["summary"]
