"""Evaluation of 100,000 scored rows with 2,000 bootstrap resamples and ten slices, beside scikit-learn and fairlearn.

    python benchmarks/bench_evaluation.py [--rows N] [--resamples N] [--naive N]

Ours measures the candidate, the champion with the paired difference, four baselines and ten slices (five groups and
the rows outside each) with their differences, all with intervals. The naive way calls scikit-learn's metrics and
fairlearn's MetricFrame once a resample, for the candidate and the ten slices only; it is timed on `--naive` resamples
and the figure is extrapolated, as each resample costs the same. CPU seconds of this process, one thread for BLAS in
both.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from components.core.recipe import Recipe, parse_recipe
from components.evaluation.metrics import measure, measure_each, paired_auc_difference
from components.evaluation.slices import attributes, measure_slices

GROUPS = {"a": 0.02, "b": 0.05, "c": 0.1, "d": 0.3, "e": 0.5}  # share of the rows in each
TARGET_SECONDS = 20.0
THRESHOLD = 0.2
BASELINES = 4


def main() -> None:
    """Print CPU seconds of both, their ratio and how far their intervals lie apart."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--resamples", type=int, default=2_000)
    options.add_argument("--naive", type=int, default=10)
    args = options.parse_args()
    frame, labels, scores = scored_rows(args.rows)
    with threadpool_limits(1):
        ours = cpu_seconds(lambda: evaluate_all(frame, labels, scores, args.resamples))
        slices = cpu_seconds(lambda: evaluate_slices(frame, labels, scores, args.resamples))
        naive = cpu_seconds(lambda: naively(frame, labels, scores, args.naive)) / args.naive * args.resamples
    verdict = "met" if ours < TARGET_SECONDS else "MISSED"
    print(f"evaluation of {args.rows:,} rows, {args.resamples:,} resamples, 10 slices: {ours:.1f} CPU s", end=" ")
    print(f"(target under {TARGET_SECONDS:.0f}: {verdict})")
    print(f"of it the candidate and its ten slices: {slices:.1f} CPU s")
    print(f"scikit-learn and fairlearn, one call a resample: {naive:,.0f} CPU s, extrapolated from {args.naive}")
    print(f"ratio for the candidate and its ten slices: {naive / slices:.0f} times")
    agreement(labels, scores)


def scored_rows(rows: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Groups, labels (9 % positive) and the scores of a candidate, a champion and baselines: shape (2 + 4, rows)."""
    draw = np.random.default_rng(0)
    labels = (draw.random(rows) < 0.09).astype(np.float64)
    signal = np.linspace(1.6, 0.8, 2 + BASELINES)[:, None] * labels
    scores = 1 / (1 + np.exp(2.3 - signal - draw.normal(size=(2 + BASELINES, rows))))
    return pd.DataFrame({f"group:{name}": draw.random(rows) < share for name, share in GROUPS.items()}), labels, scores


def evaluate_all(frame: pd.DataFrame, labels: np.ndarray, scores: np.ndarray, resamples: int) -> None:
    """What the evaluation step computes of scored rows."""
    measure(labels, scores[1], resamples, 0)
    paired_auc_difference(labels, scores[0], scores[1], resamples, 0)
    measure_each(labels, {str(at): row for at, row in enumerate(scores[2:])}, resamples, 0)
    evaluate_slices(frame, labels, scores, resamples)


def evaluate_slices(frame: pd.DataFrame, labels: np.ndarray, scores: np.ndarray, resamples: int) -> None:
    """The candidate, its ten slices and their differences."""
    measure(labels, scores[0], resamples, 0, THRESHOLD)
    recipe = recipe_of(resamples)
    found = measure_slices(labels, scores[0], attributes(frame, recipe), recipe)
    if len(found.slices) != 2 * len(GROUPS) or any(fair.state != "measured" for fair in found.fairness.values()):
        raise SystemExit("the benchmark did not measure its ten slices")


def naively(frame: pd.DataFrame, labels: np.ndarray, scores: np.ndarray, resamples: int) -> None:
    """The candidate and the ten slices, one resample after the other."""
    from fairlearn.metrics import MetricFrame, equalized_odds_difference, false_positive_rate, selection_rate
    from sklearn import metrics

    def rank(truth: np.ndarray, said: np.ndarray) -> float:
        return float(metrics.roc_auc_score(truth, said))

    measures: dict[str, Callable[..., float]] = {"accuracy": metrics.accuracy_score, "fpr": false_positive_rate}
    measures |= {"precision": metrics.precision_score, "recall": metrics.recall_score, "selected": selection_rate}
    ranked: dict[str, Callable[..., float]] = {"auc": rank, "ap": metrics.average_precision_score}
    ranked |= {"log_loss": metrics.log_loss, "brier": metrics.brier_score_loss}
    draw = np.random.default_rng(0)
    for _ in range(resamples):
        rows = draw.integers(0, len(labels), len(labels))
        truth, score = labels[rows].astype(int), scores[0][rows]
        said = (score >= THRESHOLD).astype(int)
        for measure_of in ranked.values():
            measure_of(truth, score)
        for measure_of in measures.values():
            measure_of(truth, said)
        for name in frame:
            group = frame[name].to_numpy()[rows]
            MetricFrame(metrics=measures, y_true=truth, y_pred=said, sensitive_features=group).difference()
            MetricFrame(metrics=ranked, y_true=truth, y_pred=score, sensitive_features=group).difference()
            equalized_odds_difference(truth, said, sensitive_features=group)


def agreement(labels: np.ndarray, scores: np.ndarray, resamples: int = 200) -> None:
    """How far the ends of the AUC's interval lie from those of scikit-learn on the same resamples of the rows."""
    from sklearn.metrics import roc_auc_score

    draw, values = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = draw.integers(0, len(labels), size=len(labels))
        values.append(roc_auc_score(labels[rows], scores[0][rows]))
    ours = measure(labels, scores[0], resamples, 0)["auc"]
    low, high = np.percentile(values, [2.5, 97.5])
    apart = max(abs((ours.low or 0.0) - low), abs((ours.high or 0.0) - high))
    print(f"ends of the AUC's interval, {resamples} equal resamples: {apart:.1e} apart, width {high - low:.4f}")


def recipe_of(resamples: int) -> Recipe:
    """The smallest recipe, of which only the evaluation is read."""
    return parse_recipe(
        {
            "name": "bench",
            "source": {"uri": "rows.csv", "time_column": "when", "key": ["id"]},
            "contract": {"path": "contract.yaml"},
            "features": {"repo": "repo", "service": "s", "entities": {"who": "who"}, "model_inputs": ["rate"]},
            "model": {"name": "m", "label_column": "answer", "positive_values": ["yes"]},
            "evaluation": {"bootstrap": resamples},
            "serving": {"threshold": THRESHOLD},
        }
    )


def cpu_seconds(work: Callable[[], None]) -> float:
    """CPU seconds of this process that the work takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        work()
        return time.process_time() - began


if __name__ == "__main__":
    main()
