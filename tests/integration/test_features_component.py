"""The featurise component under Kubeflow's local runner; it reads real annotations, so none are postponed here."""

import json
import os
from pathlib import Path

import pytest
from kfp import dsl, local

from components.core.publish import verify
from components.core.records import TrainingSetRef
from components.features.component import featurise as component
from components.features.featurise import featurise
from components.features.online import OnlineFeatures
from tests.fakes.feature_rows import ROOT, clean_folder, complaint_recipe, complaints, many_complaints

RECIPE = complaint_recipe()
ROWS = many_complaints(600)


def test_the_component_gives_the_function_s_digest_in_any_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine far from UTC the step publishes the same training set, keeps its record and fills the same store."""
    rows = clean_folder(tmp_path / "clean", complaints(ROWS))
    record = featurise(RECIPE, rows, tmp_path / "set")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"), raise_on_error=True)

    @dsl.pipeline
    def alone() -> dsl.Dataset:
        clean = dsl.importer(artifact_uri=str(rows), artifact_class=dsl.Dataset)
        made = component(
            home=str(tmp_path / "home"),
            run_id="r1",
            recipe=RECIPE.to_json(),
            code_version="0",
            clean=clean.output,
        )
        return made.outputs["training_set"]

    output = alone().output
    verify(Path(output.path))
    assert output.metadata["digest"] == record.digest
    assert TrainingSetRef.read(Path(output.path)) == record
    kept = json.loads((tmp_path / "home" / "runs" / "r1" / "records" / "featurise.json").read_text())
    assert kept == record.to_dict()
    with OnlineFeatures(tmp_path / "set", RECIPE) as here, OnlineFeatures(Path(output.path), RECIPE) as there:
        for company in sorted({row[1] for row in ROWS}):
            answer = here.read({"company": company})
            assert answer["company_relief_rate"]["value"] is not None
            assert answer == there.read({"company": company})
