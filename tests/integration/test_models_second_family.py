"""A second model family, in a package of its own, goes through training, evaluation and registration as they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from components.core.errors import UserError
from components.core.records import TrainingSetRef
from components.evaluation.evaluate import evaluate, read_predictions
from components.models.spec import spec_for
from components.training.train import train
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import ledger_of
from tests.fakes.registering import publish_verdicts, register_in, sign_published
from tests.fakes.training_case import FEATURES, publish_training_set, tiny_recipe


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The family as an installed package announces it: an entry point in its metadata."""
    info = tmp_path / "site" / "tabular_family-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tabular-family\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pilotline.model_families]\ntabular = tests.fakes.tabular_family\n")
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(info.parent), os.environ.get("PYTHONPATH", "")]))


def test_an_unknown_family_is_refused_by_name() -> None:
    """The line names those that are known."""
    with pytest.raises(UserError, match="'tabular': unknown; known are causal_lm"):
        spec_for("tabular")


@pytest.mark.slow
@pytest.mark.usefixtures("announced")
def test_a_second_family_trains_evaluates_and_registers(tmp_path: Path) -> None:
    """No step's public function is touched: the recipe's family alone differs."""
    recipe = tiny_recipe(model={"family": "tabular"}, training={"learning_rate": 0.3, "steps": 20})
    source = publish_training_set(tmp_path / "rows", counts=400)
    model = train(recipe, source, tmp_path / "model", tmp_path / "ck", None, "run", tmp_path / "log")
    assert model.family == "tabular"
    assert model.parameters == 3
    assert model.metrics["validation_auc"] == pytest.approx(_oracle(source), abs=0.02)
    evidence = evaluate(recipe, source, tmp_path / "model", tmp_path / "evidence")
    scores = read_predictions(tmp_path / "evidence")["score"].to_numpy()
    assert np.isfinite(scores).all()
    assert evidence.model_digest == model.digest
    rows = TrainingSetRef.read(source)
    publish_verdicts(tmp_path, rows)
    sign_published(tmp_path / "model")
    tracking = FakeTracking(tmp_path / "models")
    version = register_in(tmp_path, recipe, tracking, ledger_of(tmp_path))
    assert version.digest == model.digest


def _oracle(source: Path) -> float:
    """What scikit-learn's logistic regression on the same numbers reaches on the validation rows."""
    frames = [pd.read_parquet(source / f"{name}.parquet") for name in ("train", "validation")]
    known = frames[0][list(FEATURES)]
    x, held_out = (((f[list(FEATURES)] - known.mean()) / known.std(ddof=0)).fillna(0.0) for f in frames)
    model = LogisticRegression(class_weight="balanced").fit(x, frames[0]["label"])
    return float(roc_auc_score(frames[1]["label"], model.decision_function(held_out)))
