"""The one adapter of fairlearn: how far selection and error rates of groups lie apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from components.core.engine_time import engine_time
from components.evaluation.metrics import Flags, Floats


def disparities(labels: Floats, said: Flags, groups: Mapping[str, Flags]) -> dict[str, float]:
    """Differences between the groups' rates at the operating point, largest less smallest (fairlearn's MetricFrame).

    Args:
        labels: 0 or 1, shape (rows,).
        said: whether the model says the positive label (rows,).
        groups: disjoint rows by name, each with both labels; rows in none of them play no part.

    Returns:
        selection_rate, recall (true positive rate), fpr and equalized_odds (the larger of the last two; Hardt et al.,
        Equality of Opportunity in Supervised Learning, 2016).
    """
    with engine_time("fairlearn"):
        from fairlearn.metrics import MetricFrame, false_positive_rate, selection_rate, true_positive_rate

        member = np.full(len(labels), -1)
        for at, mask in enumerate(groups.values()):
            member[mask] = at
        rows = member >= 0
        frame = MetricFrame(
            metrics={"selection_rate": selection_rate, "recall": true_positive_rate, "fpr": false_positive_rate},
            y_true=labels[rows].astype(int),
            y_pred=said[rows].astype(int),
            sensitive_features=member[rows],
        )
        found = {name: float(value) for name, value in frame.difference(method="between_groups").items()}
    return found | {"equalized_odds": max(found["recall"], found["fpr"])}
