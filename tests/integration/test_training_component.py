"""The Kubeflow step `train` under the local runner, with DeepSpeed and MLflow; annotations here are not postponed."""

import json
import os
from pathlib import Path

import pytest

from components.core.home import Home
from components.core.publish import verify
from components.core.records import ModelRef
from components.models.files import model_digest, read_signature
from components.models.spec import spec_for
from components.tracking.mlflow_tracking import Tracking
from tests.fakes.training_case import publish_training_set, rows, tiny_recipe


@pytest.mark.slow
def test_component_trains_exports_and_tracks(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published model verifies, scores, is named by its digest, and its curve is in MLflow."""
    from kfp import dsl, local

    from components.training.component import train

    monkeypatch.chdir(tmp_path)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"), raise_on_error=True)
    source = publish_training_set(tmp_path / "set")

    @dsl.pipeline
    def once(home: str, recipe: str) -> str:
        rows_in = dsl.importer(artifact_uri=str(source), artifact_class=dsl.Dataset, reimport=False)
        done = train(home=home, run_id="run1", recipe=recipe, code_version="c", training_set=rows_in.output)
        return done.outputs["Output"]

    recipe = tiny_recipe(training={"steps": 12})
    digest = once(home=str(home.root), recipe=recipe.to_json()).output
    record = json.loads((home.run("run1") / "records" / "train.json").read_text())
    model = ModelRef.from_dict(record)
    assert digest == model.digest
    note = json.loads((home.run("run1") / "steps" / "train.json").read_text())
    assert note["status"] == "done"

    published = next((tmp_path / "kfp").rglob("model/record.json")).parent
    verify(published)
    assert model_digest(published / "model") == model.digest
    signature = read_signature(published / "model")
    assert signature["training_set_digest"] == model.training_set_digest
    assert signature["calibration"]["slope"] > 0
    scores = spec_for("causal_lm").scorer(published / "model").score(rows(20, 7))
    assert ((scores > 0) & (scores < 1)).all()

    assert [int(point["step"]) for point in model.curve if "validation_loss" in point] == [4, 8, 12]
    tracking = Tracking.at(home)
    assert tracking.last_step(model.mlflow_run_id, "loss") == 12
    logged = tracking.metrics(model.mlflow_run_id)
    assert logged["final/validation_auc"] == pytest.approx(model.metrics["validation_auc"])
    assert logged["system/job_memory_megabytes"] > 0
    run = tracking._client.get_run(model.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["training.steps"] == "12"
    assert {item.path for item in tracking._client.list_artifacts(model.mlflow_run_id)} == {"curve.json", "record.json"}
