"""Models with one fault each, through evaluation and registration: the gate refuses, by the rule that names the fault.

The scores of every model are those of real rows with planted faults; nothing about the evidence is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from components.core.publish import MANIFEST
from components.core.records import ModelVersionRef, RuleResult
from components.evaluation.evaluate import evaluate
from components.models.signing import SIGNATURE_FILE
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import GROUP, guard_verdict, ledger_of, publish_training_set, small_recipe, training_rows
from tests.fakes.registering import (
    publish_signed_model,
    publish_verdicts,
    register_in,
)

GATE = {
    "min_auc": 0.7,
    "max_ece": 0.1,
    "min_test_positives": 30,
    "min_group_positives": 30,
    "max_group_auc_gap": 0.15,
    "max_differences": {"recall_difference": 0.3},
    "blocking_groups": [GROUP],
    "baselines": [{"baseline": "prior", "margin": 0.0}],
    "max_window_uses": 5,
}
EVALUATION = {
    "bootstrap": 60,
    "baselines": ["prior"],
    "robustness_rows": 0,
    "memorisation_rows": 0,
    "latency_rows": 0,
    "drift_rows": 0,
}
Scores = Callable[[pd.DataFrame], np.ndarray[Any, Any]]


def true_chance(frame: pd.DataFrame) -> np.ndarray[Any, Any]:
    """What the labels of `training_rows` were drawn with: as good and as calibrated as a model can be."""
    rate = frame["rate"].fillna(0.5).to_numpy()
    refund = frame["text"].str.contains("refund").to_numpy()
    return np.asarray(1 / (1 + np.exp(-(5 * rate + 2 * refund - 4.5))))


def unfair(frame: pd.DataFrame) -> np.ndarray[Any, Any]:
    """Knows the truth of all rows but the group's, to whom it says about the same, whoever asks."""
    scores = true_chance(frame)
    group = frame[f"group:{GROUP}"].to_numpy()
    noise = np.random.default_rng(1).random(len(frame))
    return np.where(group, scores.mean() - 0.1 * noise, scores)


def uncalibrated(frame: pd.DataFrame) -> np.ndarray[Any, Any]:
    """The same order, so the same AUC, but every chance far too high."""
    return np.asarray(0.7 + 0.3 * true_chance(frame))


class Spec:
    """A model family whose scores are a function of the rows."""

    family = "causal_lm"

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def text_traces(self, scorer: Any, frame: pd.DataFrame) -> None:
        """It has no language-model head."""

    def scorer(self, model_dir: Path) -> Any:
        """One that answers with the function."""
        spec = self

        class Scorer:
            def score(self, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
                return spec.scores(frame)

        return Scorer()


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelVersionRef]:
    """Train nothing, score with a function, evaluate and register for real."""

    def judge(scores: Scores, guard: Any = None, unsigned: bool = False) -> ModelVersionRef:
        monkeypatch.setattr("components.evaluation.evaluate.spec_for", lambda family: Spec(scores))
        recipe = small_recipe(gate=GATE, evaluation=EVALUATION)
        test = training_rows(1200, 3, start=5000)
        test[f"group:{GROUP}"] = np.random.default_rng(2).random(len(test)) < 0.15
        rows = publish_training_set(tmp_path / "rows", rows=300, test=test)
        publish_signed_model(tmp_path / "model", rows)
        if unsigned:
            from components.core.publish import publishing

            kept = {path: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()}
            with publishing(tmp_path / "model") as staging:
                for path, data in kept.items():
                    if path.name not in (MANIFEST, SIGNATURE_FILE):
                        place = staging / path.relative_to(tmp_path / "model")
                        place.parent.mkdir(exist_ok=True)
                        place.write_bytes(data)
        publish_verdicts(tmp_path, rows, guard=guard(rows) if guard else None)
        ledger, tracking = ledger_of(tmp_path), FakeTracking(tmp_path / "models")
        handover = None if guard else tmp_path / "handover"  # a verdict that refuses is evaluated by nobody
        places = [tmp_path / name for name in ("rows", "model", "evidence")]
        evaluate(recipe, *places, handover=handover, windows=Counted())
        return register_in(tmp_path, recipe, tracking, ledger)

    return judge


class Counted:
    """The first use of the window."""

    def __getattr__(self, name: str) -> Any:
        return lambda *about, **named: 1


def open_rules(version: ModelVersionRef) -> set[str]:
    """The rules that do not hold."""
    return {rule.rule for rule in version.gate if rule.outcome not in ("pass", "info")}


def auc(version: ModelVersionRef) -> float:
    """The candidate's AUC as the gate saw it."""
    (row,) = [rule for rule in version.gate if rule.rule == "min_auc"]
    assert isinstance(row.observed, float)
    return row.observed


def test_a_good_model_passes(judged: Callable[..., ModelVersionRef]) -> None:
    """Else the other tests would show nothing."""
    version = judged(true_chance)
    assert version.gate_passed, version.reason


def test_a_model_that_is_unfair_to_one_group_is_refused_by_the_group_rules(
    judged: Callable[..., ModelVersionRef],
) -> None:
    """Its AUC over all rows is fine."""
    version = judged(unfair)
    assert auc(version) > 0.7
    assert {"group_gap", "fairness"} & open_rules(version)
    assert open_rules(version) <= {"group_gap", "fairness"}
    assert GROUP in version.reason


def test_an_uncalibrated_model_is_refused_by_the_calibration_rule(judged: Callable[..., ModelVersionRef]) -> None:
    """Its AUC is that of the best possible model."""
    version = judged(uncalibrated)
    assert auc(version) > 0.8
    assert open_rules(version) == {"max_ece"}
    assert "calibration error" in version.reason


def test_a_leaking_model_is_refused_by_the_leakage_rule(judged: Callable[..., ModelVersionRef]) -> None:
    """The guard found a feature that knows the outcome; everything else is splendid."""
    leak = RuleResult(rule="feature alone", outcome="fail", observed=0.99, limit=0.95, reason="AUC 0.99 alone")
    version = judged(true_chance, guard=lambda rows: guard_verdict(rows, passed=False, guards=(leak,), reason="leaks"))
    assert open_rules(version) == {"leakage"}
    assert "AUC 0.99 alone" in version.reason


def test_an_unsigned_model_is_refused_by_the_signature_rule(judged: Callable[..., ModelVersionRef]) -> None:
    """Nobody says that they made it."""
    version = judged(true_chance, unsigned=True)
    assert open_rules(version) == {"signature"}
