"""The second feature service from source to promotion: windows from the history, and what the request itself says."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from components.contract.standard.contract import load
from components.core.paths import PROJECT_ROOT
from tests.e2e.chain import none_left, pilotline, records

SOURCE = "generator://complaints?rows=3000&seed=7"
INPUTS = ["company_complaints_90d", "company_relief_rate_90d", "company_relief_rate_365d", "narrative_words"]
SMALL = {
    "training.steps": "40",
    "training.checks": "2",
    "evaluation.bootstrap": "50",
    "evaluation.baselines": '["prior"]',
    "gate.min_auc": "0.4",
    "gate.max_ece": "1.0",
    "gate.baselines": "[]",
    "gate.min_test_positives": "10",
    "gate.min_group_positives": "1",
    "gate.blocking_groups": "[]",  # too few positives for a word on groups
    "rollout.golden_requests": "16",
    "rollout.slo_requests": "60",
}


def test_windows_and_request_features_are_trained_served_and_promoted(tmp_path: Path) -> None:
    """Golden requests answer as evaluated, so serving computes the request's features as training did."""
    home = tmp_path / "home"
    words = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    argv = ("run", "--recipe", "complaints-windows", "--source", SOURCE, "--engine", "reference", *words)
    code, told, err = pilotline(*argv, home=home)
    assert (code, told.get("outcome")) == (0, "promoted"), (told, err)
    assert none_left(home)
    kept = records(home, told["run_id"])
    made = kept["featurise"]
    assert (made["feature_service"], made["skew"]) == ("complaint_triage_v2", 0.0)
    assert set(INPUTS) <= set(made["features"])
    assert "narrative_words" in made["on_demand"]
    assert kept["guard"]["contract"] == "Complaint training rows with windows"
    assert kept["rollout"]["candidate_digest"] == kept["train"]["digest"] == told["model"]["digest"]
    folder = home / kept["training_set"]["path"]
    contract = load(PROJECT_ROOT / "data_contracts" / "complaints_training_v2.odcs.yaml")
    assert {column.name for column in contract.columns} == set(pq.read_schema(folder / "train.parquet").names)
    signed = [path for path in home.rglob("pilotline.json") if path.parent.name == "model"]
    assert signed, "the model says what it reads"
    assert json.loads(signed[0].read_text())["features"] == INPUTS
