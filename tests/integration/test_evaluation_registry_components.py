"""Evaluate, register and promote as Kubeflow's local runner runs them, with a real model, MLflow and ledger."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kfp import local

from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.paths import PROJECT_ROOT
from components.core.publish import verify
from components.core.recipe import Recipe
from components.core.records import Evidence, ModelVersionRef
from components.core.steps import read_record, step_notes
from components.evaluation.evaluate import evaluate
from components.evaluation.opponent import find_champion
from components.evaluation.windows import WindowsInHome
from components.models.signing import public_key_at
from components.registry import models
from components.registry.register import Place, register
from components.tracking.mlflow_tracking import Tracking
from tests.fakes.judged import publish_training_set, small_recipe
from tests.fakes.judged_pipeline import judge_and_promote
from tests.fakes.registering import folders, publish_verdicts, sign_published
from tests.fakes.tiny_model import publish_tiny_model

pytestmark = pytest.mark.slow
GATE = {"min_auc": 0.0, "min_test_positives": 5, "min_group_positives": 2}
BASELINES = ["prior", "feature_logistic_regression"]


def recipe(**gate: float) -> Recipe:
    """A gate that an untrained model passes, so that the chain goes on."""
    return small_recipe(gate=GATE | gate, evaluation={"bootstrap": 40, "baselines": BASELINES})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Path]:
    """A home after a run of the chain by Kubeflow and one by its functions, whose gate asks for an AUC of 1."""
    root = tmp_path_factory.mktemp("chain")
    rows = publish_training_set(root / "rows", rows=120)
    publish_tiny_model(root / "model", recipe(), root / "rows")
    publish_verdicts(root, rows)
    home = Home.at(root / "home")
    sign_published(root / "model", home)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(PROJECT_ROOT))
        runner = local.SubprocessRunner(use_venv=False)
        local.init(runner=runner, pipeline_root=str(root / "run-1"), raise_on_error=True)
        judge_and_promote(home=str(home.root), run_id="run-1", recipe=recipe().to_json(), inputs=str(root))
    tracking, asked = Tracking.at(home), recipe(min_auc=1.0)
    champion = find_champion("triage", tracking)
    evaluate(
        asked, root / "rows", root / "model", root / "evidence", champion, handover=root / "handover",
        windows=WindowsInHome(home.test_windows),
    )  # fmt: skip
    with closing(Ledger(home.ledger_url)) as ledger:
        there = Place(tracking, ledger, home.models, public_key_at(home))
        register(asked, folders(root), root / "version", there, "run-2", "code")
    return home, root


def told(root: Path, run_id: str, component: str) -> dict[str, Any]:
    """What a component handed back to Kubeflow: artifacts with metadata by name, and its value."""
    (path,) = (root / run_id).glob(f"*/{component}/**/executor_output.json")
    said = json.loads(path.read_text())
    artifacts = {name: listed["artifacts"][0] for name, listed in said.get("artifacts", {}).items()}
    return artifacts | {"value": said.get("parameterValues", {}).get("Output")}


def folder(artifact: dict[str, Any]) -> Path:
    """Where an artifact was published."""
    return Path(artifact["uri"].removeprefix("file://"))


def test_evaluate_publishes_evidence_and_what_the_ui_shows(place: tuple[Home, Path]) -> None:
    """The folder verifies, the record is kept, metrics, curve, page and notes are there, the digest is handed on."""
    home, root = place
    said = told(root, "run-1", "evaluate")
    verify(folder(said["evidence"]))
    evidence = Evidence.read(folder(said["evidence"]))
    auc = evidence.metrics["auc"].value
    assert said["value"] == pytest.approx(auc)
    assert said["evidence"]["metadata"]["digest"] == evidence.record_digest
    assert said["metrics"]["metadata"]["test_auc"] == pytest.approx(auc)
    assert "baseline_prior_auc" in said["metrics"]["metadata"]
    shown = said["roc"]["metadata"]
    assert len(shown["confidenceMetrics"]) > 10
    counts = [cell for row in shown["confusionMatrix"]["rows"] for cell in row["row"]]
    assert sum(counts) == evidence.rows
    assert folder(said["page"]).read_text().startswith("<!doctype html>")
    assert "feature logistic regression" in folder(said["notes"]).read_text()
    assert read_record(home, "run-1", "evaluate") == evidence.to_dict()
    assert evidence.champion_version == ""


def test_register_and_promote_make_the_champion(place: tuple[Home, Path]) -> None:
    """Three steps done, the version published, and the outcome kept for the report."""
    home, root = place
    said = told(root, "run-1", "register")
    version = ModelVersionRef.read(folder(said["version"]))
    assert said["value"] is True
    assert said["version"]["metadata"]["digest"] == version.record_digest
    assert read_record(home, "run-1", "register") == version.to_dict()
    assert (folder(said["version"]) / "card.html").exists()
    assert told(root, "run-1", "promote")["value"] == "promoted"
    assert (read_record(home, "run-1", "promote") or {})["outcome"] == "promoted"
    assert {note["name"]: note["status"] for note in step_notes(home, "run-1")} == {
        "evaluate": "done",
        "register": "done",
        "promote": "done",
    }


def test_the_next_candidate_meets_the_champion_and_the_gate(place: tuple[Home, Path]) -> None:
    """The same model again: difference 0 on the same rows, and stopped by a gate that asks for more."""
    _, root = place
    met = Evidence.read(root / "evidence")
    assert met.champion_version == "1"
    assert met.champion["auc_difference"].value == 0.0
    assert met.test_window_uses == 1  # the same candidate on the same rows, looked at again
    version = ModelVersionRef.read(root / "version")
    assert not version.gate_passed
    assert version.reason.startswith("min_auc")


def test_the_verbs_of_the_models_command_tell_the_story(place: tuple[Home, Path]) -> None:
    """List, show, history and sync, as plain values that JSON can hold."""
    home, _ = place
    listed = models.list_versions(home)
    assert [(item["version"], item["gate"], item["aliases"]) for item in listed] == [
        ("1", "passed", ["champion"]),
        ("2", "refused", []),
    ]
    story = [item["text"] for item in models.history(home, "triage")]
    assert [text.split(":")[0] for text in story] == ["v1 promoted", "v2 stopped by the gate"]
    assert models.history(home, "triage", "2999-01-01")[0]["version"] == "1"
    shown = models.show(home, "triage", "2")
    assert [rule["outcome"] for rule in shown["gate_rules"] if rule["rule"] == "min_auc"] == ["fail"]
    assert shown["tags"]["training_set_digest"]
    json.dumps([listed, story, shown])
    assert models.sync(home, "triage") == {"name": "triage", "champion": "1"}
    with pytest.raises(UserError, match="no version '9'; known versions: 1, 2"):
        models.show(home, "triage", "9")
    with pytest.raises(UserError, match="nothing is known of it; known models: triage"):
        models.history(home, "other")


def test_verify_names_a_damaged_model(place: tuple[Home, Path]) -> None:
    """Whole: a list of what was checked. One bit of the weights flipped: refused."""
    home, _ = place
    assert models.verify(home, "triage", "1")["entries"] >= 3
    weights = Path(models.show(home, "triage", "1")["source"]) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="does not hold the bytes"):
        models.verify(home, "triage", "1")
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    models.verify(home, "triage", "1")
