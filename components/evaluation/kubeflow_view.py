"""What the Kubeflow UI shows of the evidence: scalars, ROC curve, confusion matrix, page and notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from components.core.publish import write_atomic
from components.core.recipe import Recipe
from components.core.records import Evidence
from components.evaluation.curves import roc_points
from components.evaluation.evaluate import read_predictions
from components.evaluation.page import notes as notes_of
from components.evaluation.page import page as page_of

if TYPE_CHECKING:
    from kfp import dsl


def show(
    recipe: Recipe,
    folder: Path,
    metrics: dsl.Metrics,
    roc: dsl.ClassificationMetrics,
    page: Path,
    notes: Path,
) -> None:
    """Fill the step's artifacts from a published evidence folder; all numbers are finite Python numbers."""
    evidence = Evidence.read(folder)
    for name, interval in (evidence.metrics | evidence.operating).items():
        if interval.value is not None:
            metrics.log_metric(f"test_{name}", interval.value)
    for name, measured in evidence.baselines.items():
        if measured["auc"].value is not None:
            metrics.log_metric(f"baseline_{name}_auc", measured["auc"].value)
    rows = read_predictions(folder)
    labels, scores = rows["label"].to_numpy(np.float64), rows["score"].to_numpy(np.float64)
    if curve := roc_points(labels, scores):
        fpr, tpr, thresholds = (list(column) for column in zip(*curve, strict=True))
        roc.log_roc_curve(fpr, tpr, thresholds)
    roc.log_confusion_matrix(list(recipe.model.labels), evidence.confusion)
    for artifact in (metrics, roc):  # the local runner's cache holds only for artifacts whose file is there
        write_atomic(Path(artifact.path), json.dumps(artifact.metadata))
    write_atomic(page, page_of(evidence, recipe))
    write_atomic(notes, notes_of(evidence, recipe))
