"""Evaluate a model on the untouched test rows, beside baselines, by group, and against the champion."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from components.core.engine_time import engine_time
from components.core.errors import IntegrityError, PolicyRefusal
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import Evidence, Interval, ModelRef, TrainingSetRef
from components.evaluation.baselines import score_baselines
from components.evaluation.metrics import Floats, calibration_points, measure, paired_auc_difference, roc_points
from components.models.causal_lm.text import normalise
from components.models.feature_source import FeatureSource, check_source
from components.models.files import model_digest, read_signature
from components.models.spec import spec_for

PREDICTIONS = "predictions.parquet"
GROUP_PREFIX = "group:"
FITTED = ("train", "validation")
REST = ":others"  # a group's name cannot hold a colon, so no group is called like this
BASELINE_TEXT_TOKENS = 64


@dataclass(frozen=True)
class ScoredRows:
    """The test split with its scores: the frame, labels and scores (n,), the champion's where there are any."""

    frame: pd.DataFrame
    labels: Floats
    scores: Floats
    champion: Floats | None


def evaluate(
    recipe: Recipe,
    training_set: Path,
    model: Path,
    out: Path,
    champion: tuple[str, Path] | None = None,
) -> Evidence:
    """Score the test rows once and publish the evidence.

    Args:
        recipe: names baselines, groups, number of resamples and seed.
        training_set: published folder of the training set.
        model: published folder of the trained model (`model/` and its record).
        out: folder to publish: predictions.parquet and record.json.
        champion: version and model directory of the current champion.

    Returns:
        The evidence. Where the champion cannot score these rows its part is empty, which the gate does not let pass.

    Raises:
        IntegrityError: bytes differ from their digests, the model was trained on other rows, rows are in two splits,
            or the model or the champion reads features of another service, order or code.
        PolicyRefusal: no test rows, or a score is missing, not finite or not a probability.
    """
    rows, known = _verified(training_set, model)
    source = FeatureSource.of(rows, recipe.features.model_inputs)
    check_source(read_signature(model / "model"), source, f"model {known.digest[:12]}")
    if champion:
        every = FeatureSource.of(rows, rows.features)
        check_source(read_signature(champion[1]), every, f"champion version {champion[0]}", exact=False)
    frame = _test_frame(training_set, rows)
    labels = frame["label"].to_numpy(np.float64)
    scores = _scores(model / "model", known.family, frame)
    test = ScoredRows(frame, labels, scores, _champion_scores(champion, frame))
    evidence = _evidence(recipe, training_set, rows, known, test, champion[0] if champion else "")
    with publishing(out) as staging:
        _predictions(test).to_parquet(staging / PREDICTIONS, index=False)
        evidence.write(staging)
    return evidence


def read_predictions(folder: Path) -> pd.DataFrame:
    """Columns row_id, label, score, champion_score (NaN where there was no champion) of a published evidence folder."""
    return pd.read_parquet(folder / PREDICTIONS)


def _verified(training_set: Path, model: Path) -> tuple[TrainingSetRef, ModelRef]:
    verify(training_set)
    verify(model)
    rows, known = TrainingSetRef.read(training_set), ModelRef.read(model)
    if (found := model_digest(model / "model")) != known.digest:
        raise IntegrityError(
            f"{model}: model/ has digest {found[:12]}, its record says {known.digest[:12]}; train again"
        )
    if known.training_set_digest != rows.digest:
        raise IntegrityError(
            f"model {known.digest[:12]} was trained on training set {known.training_set_digest[:12]}, "
            f"not on {rows.digest[:12]}; evaluate it with its own"
        )
    return rows, known


def _test_frame(training_set: Path, rows: TrainingSetRef) -> pd.DataFrame:
    """The test rows, checked against what the record says of them."""
    frame = pd.read_parquet(training_set / "test.parquet")
    split = rows.split("test")
    if not len(frame):
        raise PolicyRefusal("the test split has no rows: nothing can be said of the model; widen the interval")
    if not frame["label"].isin((0, 1)).all():
        raise IntegrityError(f"{training_set / 'test.parquet'}: labels are not all 0 or 1; featurise again")
    if (len(frame), int(frame["label"].sum())) != (split.rows, split.positives):
        raise IntegrityError(f"{training_set}: test rows differ from its record ({split.rows}); featurise again")
    seen = pd.concat([pd.read_parquet(training_set / f"{name}.parquet", columns=["row_id"]) for name in FITTED])
    if frame["row_id"].duplicated().any() or frame["row_id"].isin(seen["row_id"]).any():
        raise IntegrityError(f"{training_set}: a test row is there twice or is also a training row; featurise again")
    return frame


def _scores(model_dir: Path, family: str, frame: pd.DataFrame) -> Floats:
    with engine_time("transformers"):
        scores = np.asarray(spec_for(family).scorer(model_dir).score(frame), dtype=np.float64)
    if scores.shape != (len(frame),):
        raise PolicyRefusal(
            f"the model gave {scores.size} scores for {len(frame)} test rows; nothing can be said of it"
        )
    bad = ~(np.isfinite(scores) & (scores >= 0) & (scores <= 1))
    if bad.any():
        raise PolicyRefusal(f"{int(bad.sum())} of {len(frame)} test scores are no probabilities (NaN or out of 0..1)")
    return scores


def _champion_scores(champion: tuple[str, Path] | None, frame: pd.DataFrame) -> Floats | None:
    """The champion's scores, or None where there is none or it gives none that can be used."""
    if champion is None:
        return None
    signature = read_signature(champion[1])
    try:
        return _scores(champion[1], str(signature["family"]), frame)
    except PolicyRefusal:
        return None


def _evidence(
    recipe: Recipe,
    training_set: Path,
    rows: TrainingSetRef,
    known: ModelRef,
    test: ScoredRows,
    champion_version: str,
) -> Evidence:
    resamples, seed = recipe.evaluation.bootstrap, recipe.evaluation.seed
    measured = functools.partial(measure, resamples=resamples, seed=seed)
    train = pd.read_parquet(training_set / "train.parquet").sort_values(["event_timestamp", "row_id"], kind="stable")
    baselines = score_baselines(recipe.evaluation.baselines, train, test.frame, rows.features, _normalised_text(recipe))
    return Evidence(
        model_digest=known.digest,
        training_set_digest=rows.digest,
        test_digest=rows.split("test").digest,
        rows=len(test.labels),
        positives=int(test.labels.sum()),
        metrics=measured(test.labels, test.scores),
        baselines={name: measured(test.labels, scores) for name, scores in baselines.items()},
        slices={name: measured(test.labels[mask], test.scores[mask]) for name, mask in _slices(test.frame)},
        champion_version=champion_version,
        champion=_comparison(test, resamples, seed),
        curves={
            "roc": [[fpr, tpr] for fpr, tpr, _ in roc_points(test.labels, test.scores)],
            "calibration": calibration_points(test.labels, test.scores),
        },
    )


def _comparison(test: ScoredRows, resamples: int, seed: int) -> dict[str, Interval]:
    if test.champion is None:
        return {}
    difference = paired_auc_difference(test.labels, test.scores, test.champion, resamples, seed)
    return measure(test.labels, test.champion, resamples, seed) | {"auc_difference": difference}


def _slices(frame: pd.DataFrame) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each group's rows and its complement's, `NAME` and `NAME:others`."""
    for column in frame.columns:
        if column.startswith(GROUP_PREFIX):
            inside = frame[column].to_numpy(bool)
            name = column.removeprefix(GROUP_PREFIX)
            yield name, inside
            yield f"{name}{REST}", ~inside


def _normalised_text(recipe: Recipe) -> functools.partial[str]:
    """The model family's normalisation; the baselines read as much text as the model, or 64 tokens if it reads none."""
    return functools.partial(normalise, tokens=recipe.model.text_tokens or BASELINE_TEXT_TOKENS)


def _predictions(test: ScoredRows) -> pd.DataFrame:
    champion = np.full(len(test.labels), np.nan) if test.champion is None else test.champion
    return pd.DataFrame(
        {
            "row_id": test.frame["row_id"].astype(str),
            "label": test.labels.astype(np.int8),
            "score": test.scores,
            "champion_score": champion,
        }
    )
