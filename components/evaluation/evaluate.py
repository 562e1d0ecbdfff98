"""Evaluate a model on the untouched test rows, beside baselines, by group, and against the champion."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from components.core.errors import IntegrityError, PolicyRefusal
from components.core.installed import installed_digest
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import Evidence, HandOver, ModelRef, TrainingSetRef
from components.evaluation.answers import probabilities
from components.evaluation.evidence import Case, gather
from components.evaluation.metrics import Floats
from components.evaluation.windows import Windows
from components.models.feature_source import FeatureSource, check_source
from components.models.files import model_digest, read_signature
from components.models.signing import SIGNATURE_FILE, SignatureError, verify_signature
from components.models.spec import ModelSpec, Scorer, spec_for

PREDICTIONS = "predictions.parquet"
FITTED = ("train", "validation")


def evaluate(
    recipe: Recipe,
    training_set: Path,
    model: Path,
    out: Path,
    champion: tuple[str, Path] | None = None,
    *,
    handover: Path | None = None,
    windows: Windows | None = None,
    contract_digest: str = "",
    public_keys: Sequence[str] = (),
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Evidence:
    """Score the test rows once and publish the evidence: whole, with each part measured or said to be insufficient.

    Args:
        recipe: names baselines, groups, slices, number of resamples, sizes of the samples and seed.
        training_set: published folder of the training set.
        model: published folder of the trained model (`model/` and its record).
        out: folder to publish: predictions.parquet and record.json.
        champion: version and model directory of the current champion.
        handover: what the guard published of this training set; it has to have let it pass.
        windows: counts the candidates that were judged on the same test rows; None counts nothing.
        contract_digest: of the contract that the rows were read under.
        public_keys: whose signature of the model counts; none asks for no signature. One that is absent is left to the
            gate, which refuses it.
        clock: seconds, for latency and cost; cpu_clock: CPU seconds of this process, for the work of one row. All else
            is a function of the inputs.

    Returns:
        The evidence. Where the champion cannot score these rows its part is empty, which the gate does not let pass.

    Raises:
        IntegrityError: bytes differ from their digests, the model's signature is altered or of another key, the model
            was trained on other rows, rows are in two splits,
            the hand-over is of another training set, or the model or the champion reads features of another service,
            order or code.
        PolicyRefusal: no test rows, the guard did not let the training set pass, or a score is missing, not finite or
            not a probability.
    """
    rows, known = _verified(training_set, model)
    if public_keys:
        _check_signature(model, public_keys)
    guarded = _handed_over(handover, rows)
    source = FeatureSource.of(rows, recipe.features.model_inputs)
    signature = read_signature(model / "model")
    check_source(signature, source, f"model {known.digest[:12]}")
    if champion:
        every = FeatureSource.of(rows, rows.features)
        check_source(read_signature(champion[1]), every, f"champion version {champion[0]}", exact=False)
    frame = _test_frame(training_set, rows)
    uses = windows.use(frame["row_id"].tolist(), known.digest) if windows else 0  # before the first look
    spec = spec_for(known.family)
    scorer = spec.scorer(model / "model")
    began = clock()
    scores = _scores(scorer, frame)
    seconds = clock() - began
    case = Case(
        recipe=recipe,
        rows=rows,
        model_dir=model / "model",
        signature=signature,
        spec=spec,
        scorer=scorer,
        train=_train_frame(training_set),
        frame=frame,
        labels=frame["label"].to_numpy(np.float64),
        scores=scores,
        champion_version=champion[0] if champion else "",
        champion=_champion_scores(champion, spec, frame),
        seconds=seconds,
        clock=clock,
        cpu_clock=cpu_clock,
    )
    evidence = replace(
        gather(case, known.digest),
        test_window_uses=uses,
        contract_digest=contract_digest,
        handover_digest=guarded.record_digest if guarded else "",
        environment_digest=installed_digest(),
        evaluation_digest=recipe.evaluation_digest,
    )
    with publishing(out) as staging:
        _predictions(case).to_parquet(staging / PREDICTIONS, index=False)
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


def _check_signature(model: Path, public_keys: Sequence[str]) -> None:
    """A record and its manifest can be sealed anew after the bytes were swapped; a signature cannot."""
    try:
        verify_signature(model / "model", model / SIGNATURE_FILE, public_keys)
    except SignatureError as refused:
        if refused.state != "missing":
            raise


def _handed_over(folder: Path | None, rows: TrainingSetRef) -> HandOver | None:
    """The guard's verdict on this very training set."""
    if folder is None:
        return None
    verify(folder)
    verdict = HandOver.read(folder)
    if verdict.training_set_digest != rows.digest:
        raise IntegrityError(
            f"{folder}: is the hand-over of training set {verdict.training_set_digest[:12]}, not of "
            f"{rows.digest[:12]}; guard this one"
        )
    if not verdict.passed:
        raise PolicyRefusal(f"the guard did not let training set {rows.digest[:12]} pass: {verdict.reason}")
    return verdict


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


def _train_frame(training_set: Path) -> pd.DataFrame:
    """The training rows, oldest first."""
    return pd.read_parquet(training_set / "train.parquet").sort_values(["event_timestamp", "row_id"], kind="stable")


def _scores(scorer: Scorer, frame: pd.DataFrame) -> Floats:
    scores = probabilities(scorer, frame)
    if bad := int(np.isnan(scores).sum()):
        raise PolicyRefusal(f"{bad} of {len(frame)} test scores are no probabilities (NaN or out of 0..1)")
    return scores


def _champion_scores(champion: tuple[str, Path] | None, spec: ModelSpec, frame: pd.DataFrame) -> Floats | None:
    """The champion's scores, or None where there is none or it gives none that can be used."""
    if champion is None:
        return None
    family = str(read_signature(champion[1])["family"])
    try:
        return _scores((spec if family == spec.family else spec_for(family)).scorer(champion[1]), frame)
    except PolicyRefusal:
        return None


def _predictions(case: Case) -> pd.DataFrame:
    champion = np.full(len(case.labels), np.nan) if case.champion is None else case.champion
    return pd.DataFrame(
        {
            "row_id": case.frame["row_id"].astype(str),
            "label": case.labels.astype(np.int8),
            "score": case.scores,
            "champion_score": champion,
        }
    )
