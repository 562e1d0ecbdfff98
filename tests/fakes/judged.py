"""Small published folders for tests of evaluation and registry: a training set, a model, its evidence, its rollout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from components.core.digest import file_digest, value_digest
from components.core.ledger import Ledger
from components.core.publish import publishing
from components.core.recipe import Recipe, parse_recipe
from components.core.records import (
    Evidence,
    HandOver,
    Interval,
    ModelRef,
    ModelVersionRef,
    RolloutReport,
    RuleResult,
    SplitRef,
    TrainingSetRef,
)
from components.models.files import model_digest
from tests.fakes.weights import weights

FEATURES = ("rate", "count")
GROUP = "Older"


def small_recipe(**sections: Mapping[str, Any]) -> Recipe:
    """A recipe about nothing in particular; keyword arguments are merged into its sections."""
    values: dict[str, Any] = {
        "name": "small",
        "source": {"uri": "rows.csv", "time_column": "when", "key": ["id"]},
        "contract": {"path": "contract.yaml"},
        "features": {"repo": "repo", "service": "s", "entities": {"who": "who"}, "model_inputs": list(FEATURES)},
        "model": {
            "name": "triage",
            "label_column": "answer",
            "positive_values": ["yes"],
            "text_column": "story",
            "text_tokens": 8,
            "hidden_size": 16,
            "layers": 1,
            "heads": 2,
            "intermediate_size": 32,
            "vocabulary": 60,
            "feature_buckets": 4,
        },
        "evaluation": {"bootstrap": 60, "groups": [{"name": GROUP, "column": "tags", "contains": GROUP}]},
        "gate": {"min_auc": 0.6, "min_test_positives": 10, "min_group_positives": 5},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | dict(section)
    return parse_recipe(values)


EVALUATION = small_recipe().evaluation_digest


def training_rows(rows: int, seed: int, start: int = 0) -> pd.DataFrame:
    """Rows with the training set's columns; feature `rate` and the word "refund" carry the signal."""
    draw = np.random.default_rng(seed)
    rate, refund = draw.random(rows), draw.random(rows) < 0.4
    chance = 1 / (1 + np.exp(-(5 * rate + 2 * refund - 4.5)))
    frame = pd.DataFrame(
        {
            "row_id": [f"r{start + at}" for at in range(rows)],
            "event_timestamp": pd.date_range("2023-01-01", periods=rows, freq="h", tz="UTC"),
            "label": (draw.random(rows) < chance).astype(np.int8),
            "text": np.where(refund, "they owe me a refund today", "they never called me today"),
            "who": [f"w{at % 7}" for at in range(rows)],
            "rate": np.where(draw.random(rows) < 0.1, np.nan, rate),
            "count": draw.integers(0, 50, rows).astype(np.float64),
        }
    )
    return frame.assign(**{f"group:{GROUP}": draw.random(rows) < 0.4})


def publish_training_set(folder: Path, rows: int = 300, seed: int = 0, **frames: pd.DataFrame) -> TrainingSetRef:
    """A training set of rows, rows / 3 and rows / 2; `test=frame` and so on replaces a split."""
    made = {
        "train": training_rows(rows, seed),
        "validation": training_rows(rows // 3, seed + 1, start=rows),
        "test": training_rows(rows // 2, seed + 2, start=2 * rows),
    } | frames
    with publishing(folder) as staging:
        for name, frame in made.items():
            frame.to_parquet(staging / f"{name}.parquet", index=False)
        splits = tuple(
            SplitRef(
                name=name,
                rows=len(frame),
                positives=int(frame["label"].sum()),
                digest=file_digest(staging / f"{name}.parquet"),
                time_min="2023-01-01T00:00:00+00:00",
                time_max="2023-02-01T00:00:00+00:00",
            )
            for name, frame in made.items()
        )
        ref = TrainingSetRef(
            digest=value_digest([split.digest for split in splits]),
            snapshot_digest="5" * 64,
            clean_digest="c" * 64,
            feature_repo="repo",
            feature_service="s",
            features=FEATURES,
            entities=("who",),
            as_of="2023-03-01T00:00:00+00:00",
            embargo_days=30,
            splits=splits,
        )
        ref.write(staging)
    return ref


def judged_rows(rows: int = 500, positives: int = 60) -> pd.DataFrame:
    """Test rows that `good_evidence` is about: the ids and labels of its `predictions_of`."""
    labels = np.repeat([0, 1], [rows - positives, positives]).astype(np.int8)
    return training_rows(rows, 2).assign(row_id=[f"p{at}" for at in range(rows)], label=labels)


def publish_model(folder: Path, rows: TrainingSetRef, weight: float = 5.0, run: str = "") -> ModelRef:
    """A model folder that `LinearSpec` can score: probability = sigmoid(weight * (rate - 0.5))."""
    with publishing(folder) as staging:
        inner = staging / "model"
        inner.mkdir()
        signature = {
            "family": "causal_lm",
            "labels": ["no", "yes"],
            "label_token_ids": [1, 2],
            "features": list(FEATURES),
            "feature_service": rows.feature_service,
            "prompt": "",
            "bucket_edges": {name: [0.5] for name in FEATURES},
            "text_tokens": 8,
            "calibration": {"slope": 1.0, "intercept": 0.0},
            "training_set_digest": rows.digest,
            "weight": weight,
        }
        (inner / "pilotline.json").write_text(json.dumps(signature))
        (inner / "model.safetensors").write_bytes(weights(str(weight)))
        ref = model_ref(model_digest(inner), rows, run)
        ref.write(staging)
    return ref


def guard_verdict(rows: TrainingSetRef, **changes: Any) -> HandOver:
    """The guard lets this training set pass."""
    verdict = HandOver(
        passed=True,
        training_set_digest=rows.digest,
        snapshot_digest=rows.snapshot_digest,
        contract="",
        version="",
        contract_digest="",
        engine="",
        rows=sum(split.rows for split in rows.splits),
        guards=(RuleResult(rule="columns and types", outcome="pass", observed="", limit=""),),
        checks=(),
    )
    return replace(verdict, **changes)


def publish_handover(folder: Path, rows: TrainingSetRef, **changes: Any) -> HandOver:
    """What the guard publishes of a training set that it lets pass."""
    verdict = guard_verdict(rows, **changes)
    with publishing(folder) as staging:
        verdict.write(staging)
    return verdict


def model_ref(digest: str, rows: TrainingSetRef, run: str = "") -> ModelRef:
    """The record of a model that was trained on these rows."""
    return ModelRef(
        digest=digest,
        family="causal_lm",
        parameters=10,
        training_set_digest=rows.digest,
        recipe_digest="r" * 64,
        steps=1,
        world_size=2,
        zero_stage=1,
        checkpoint=None,
        mlflow_run_id=run,
        labels=("no", "yes"),
    )


class LinearSpec:
    """A model family that needs no torch: a sigmoid of one feature, its weight read from the signature."""

    family = "causal_lm"

    def text_traces(self, scorer: Any, frame: pd.DataFrame) -> None:
        """It has no language-model head."""

    def scorer(self, model_dir: Path) -> LinearScorer:
        """A scorer of the directory."""
        return LinearScorer(json.loads((model_dir / "pilotline.json").read_text())["weight"])


class LinearScorer:
    """Scores of `LinearSpec`; a weight of NaN gives NaN scores, as a broken model would."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def score(self, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
        """Probability of the positive label, shape (rows,)."""
        return 1 / (1 + np.exp(-self.weight * (frame["rate"].fillna(0.5).to_numpy() - 0.5)))


def interval(value: float | None, n: int = 500, positives: int = 60, half: float = 0.02) -> Interval:
    """An interval of a value, `half` to each side."""
    ends = (None, None) if value is None else (value - half, value + half)
    return Interval(value=value, low=ends[0], high=ends[1], n=n, positives=positives)


def good_evidence(**changes: Any) -> Evidence:
    """Evidence that passes an ordinary gate."""
    metrics = {"auc": 0.85, "average_precision": 0.5, "log_loss": 0.2, "brier": 0.07, "ece": 0.02}
    part = {"auc": interval(0.84, 200, 40), "brier": interval(0.07, 200, 40)}
    evidence = Evidence(
        model_digest="m" * 64,
        training_set_digest="t" * 64,
        test_digest="d" * 64,
        rows=500,
        positives=60,
        metrics={name: interval(value) for name, value in metrics.items()},
        baselines={"prior": {"auc": interval(0.5)}, "logistic_regression": {"auc": interval(0.84)}},
        slices={GROUP: part, f"{GROUP}:others": part},
        evaluation_digest=EVALUATION,
    )
    return replace(evidence, **changes)


def publish_evidence(folder: Path, model: ModelRef, rows: TrainingSetRef, **changes: Any) -> Evidence:
    """Published good evidence of this model on these rows."""
    evidence = good_evidence(
        model_digest=model.digest,
        training_set_digest=rows.digest,
        test_digest=rows.split("test").digest,
        **{"handover_digest": guard_verdict(rows).record_digest} | changes,
    )
    with publishing(folder) as staging:
        predictions_of(evidence).to_parquet(staging / "predictions.parquet", index=False)
        evidence.write(staging)
    return evidence


def predictions_of(evidence: Evidence) -> pd.DataFrame:
    """Predictions with as many rows and positives as the evidence says, whose AUC is the one that it names.

    The negatives lie one above the other, and each positive above so many of them that the pairs add up.
    """
    rows, positives = evidence.rows, evidence.positives
    negatives = rows - positives
    auc = evidence.metrics["auc"].value if "auc" in evidence.metrics else None
    won = round((0.5 if auc is None else auc) * positives * negatives)
    each = [won // positives + (at < won % positives) for at in range(positives)] if positives else []
    scores = [*(np.arange(negatives) * 2.0 + 1), *(2.0 * np.array(each))]
    return pd.DataFrame(
        {
            "row_id": [f"p{at}" for at in range(rows)],
            "label": np.repeat([0, 1], [negatives, positives]).astype(np.int8),
            "score": np.array(scores) / (2 * rows + 2),
        }
    )


def version_ref(number: str, champion: str = "", **changes: Any) -> ModelVersionRef:
    """A version that passed the gate; digests are made from version numbers."""
    ref = ModelVersionRef(
        name="triage",
        version=number,
        digest=digest_of(number),
        gate_passed=True,
        gate=(),
        champion_version=champion,
        champion_digest=digest_of(champion) if champion else "",
        evidence_digest="e" * 64,
        reason="gate passed",
    )
    return replace(ref, **changes)


def digest_of(number: str) -> str:
    """The digest that `version_ref` gives a version."""
    return value_digest(number)


def rollout_report(version: ModelVersionRef, **changes: Any) -> RolloutReport:
    """A rollout that passed beside the champion that the version was judged against."""
    report = RolloutReport(
        outcome="passed",
        reason="every metric proven within its margin",
        engine="reference",
        candidate_version=version.version,
        candidate_digest=version.digest,
        stable_version=version.champion_version,
        stable_digest=version.champion_digest,
        rules=(RuleResult(rule="golden", outcome="pass", observed=0.0, limit=0.001),),
        timeline=(),
        requests=300,
        failed_requests=0,
    )
    return replace(report, **changes)


def registered(tracking: Any, number: str) -> ModelVersionRef:
    """Put versions 1 to `number` into a fake registry, and return the ref of the last."""
    for at in range(1, int(number) + 1):
        folder = tracking.models / digest_of(str(at))
        folder.mkdir(parents=True, exist_ok=True)
        tracking.ensure_version("triage", digest_of(str(at)), folder, "", {"pilotline.key": str(at)})
    return version_ref(number)


def ledger_of(folder: Path) -> Ledger:
    """A ledger in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return Ledger(f"sqlite:///{folder / 'ledger.db'}")
