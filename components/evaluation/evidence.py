"""Each part of the evidence: measured, not asked, or insufficient with the reason."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from components.core.engine_time import engine_time
from components.core.recipe import Recipe
from components.core.records import Evidence, Interval, TrainingSetRef
from components.evaluation.answers import answers
from components.evaluation.baselines import score_baselines
from components.evaluation.curves import calibration_points, confusion, precision_recall_points, roc_points
from components.evaluation.drift import measure_drift
from components.evaluation.memorisation import FEWEST, measure_memorisation, sample_texts
from components.evaluation.metrics import METRICS, OPERATING, Floats, measure, measure_each, paired_auc_difference
from components.evaluation.personal_data import find_personal_data
from components.evaluation.robustness import INJECTION, Robustness, measure_robustness
from components.evaluation.slices import INSUFFICIENT, MEASURED, Sliced, attributes, measure_slices
from components.models.spec import ModelSpec, Scorer
from components.models.text import normalise

BASELINE_TEXT_TOKENS = 64
NOT_ASKED = "not asked"
MOST_TEXTS = 50_000  # kept in their normal form, which baselines and memorisation both ask for


@dataclass(frozen=True)
class Case:
    """A verified model and the rows that it is judged on, scored: labels, scores and the champion's scores (n,).

    train: training rows, oldest first. seconds: that scoring the test rows took. clock: seconds. cpu_clock: CPU seconds
    of all threads of this process.
    """

    recipe: Recipe
    rows: TrainingSetRef
    model_dir: Path
    signature: dict[str, Any]
    spec: ModelSpec
    scorer: Scorer
    train: pd.DataFrame
    frame: pd.DataFrame
    labels: Floats
    scores: Floats
    champion_version: str
    champion: Floats | None
    seconds: float
    clock: Callable[[], float]
    cpu_clock: Callable[[], float]

    @property
    def features(self) -> tuple[str, ...]:
        """Those that the model reads."""
        return tuple(self.signature["features"])

    @property
    def reads_text(self) -> bool:
        """Whether the model reads any."""
        return bool(self.signature.get("text_tokens"))

    @functools.cached_property
    def normalised(self) -> Callable[[str], str]:
        """As much text as the model reads, or the 64 tokens of the baselines if it reads none, in its own form."""
        tokens = self.recipe.model.text_tokens or BASELINE_TEXT_TOKENS
        return functools.lru_cache(maxsize=MOST_TEXTS)(functools.partial(normalise, tokens=tokens))


def gather(case: Case, model_digest: str) -> Evidence:
    """Measure everything that the recipe asks for."""
    asked, threshold = case.recipe.evaluation, case.recipe.serving.threshold
    measured = functools.partial(measure, resamples=asked.bootstrap, seed=asked.seed)
    own = measured(case.labels, case.scores, threshold=threshold)
    baselines = score_baselines(asked.baselines, case.train, case.frame, case.rows.features, case.normalised)
    sliced = measure_slices(case.labels, case.scores, attributes(case.frame, case.recipe), case.recipe)
    robust = _robustness(case)
    memorised = _memorisation(case)
    latency, price = _latency(case), asked.price_per_hour
    return Evidence(
        model_digest=model_digest,
        training_set_digest=case.rows.digest,
        test_digest=case.rows.split("test").digest,
        snapshot_digest=case.rows.snapshot_digest,
        rows=len(case.labels),
        positives=int(case.labels.sum()),
        metrics={name: own[name] for name in METRICS},
        operating={name: own[name] for name in OPERATING},
        threshold=threshold,
        confusion=confusion(case.labels, case.scores, threshold),
        resamples=asked.bootstrap,
        baselines=measure_each(case.labels, baselines, asked.bootstrap, asked.seed),
        champion_version=case.champion_version,
        champion=_comparison(case),
        slices=sliced.slices,
        slice_states=sliced.states,
        fairness=sliced.fairness,
        curves={
            "roc": [[fpr, tpr] for fpr, tpr, _ in roc_points(case.labels, case.scores)],
            "precision_recall": precision_recall_points(case.labels, case.scores),
            "calibration": calibration_points(case.labels, case.scores),
        },
        robustness=robust.shifts,
        invalid_rate=robust.invalid_rate,
        drift=_drift(case),
        latency_ms=latency,
        cost_per_thousand=price / 3600 * 1000 * case.seconds / len(case.labels) if price else None,
        memorisation=memorised,
        personal_data=find_personal_data(case.model_dir),
        parts=_parts(case, own, sliced, robust, memorised, set(baselines)),
    )


def _comparison(case: Case) -> dict[str, Interval]:
    if case.champion is None:
        return {}
    resamples, seed = case.recipe.evaluation.bootstrap, case.recipe.evaluation.seed
    difference = paired_auc_difference(case.labels, case.scores, case.champion, resamples, seed)
    return measure(case.labels, case.champion, resamples, seed) | {"auc_difference": difference}


def _robustness(case: Case) -> Robustness:
    asked = case.recipe.evaluation
    return measure_robustness(
        case.scorer, case.frame, case.scores, features=case.features, reads_text=case.reads_text,
        labels=case.recipe.model.labels, threshold=case.recipe.serving.threshold, rows=asked.robustness_rows,
        resamples=asked.bootstrap, seed=asked.seed,
    )  # fmt: skip


def _drift(case: Case) -> dict[str, dict[str, float]]:
    """Of all features, of the entities and, by a seeded sample of training rows, of the model's score."""
    asked = case.recipe.evaluation
    if not asked.drift_rows or not len(case.train):
        return {}
    draw = np.random.default_rng([asked.seed, 3])
    size = min(asked.drift_rows, len(case.train))
    sample = case.train.iloc[np.sort(draw.choice(len(case.train), size, replace=False))]
    scores = answers(case.scorer, sample)
    pair = (scores[np.isfinite(scores)], case.scores)
    return measure_drift(case.train, case.frame, case.rows.features, case.rows.entities, pair)


def _latency(case: Case) -> dict[str, float]:
    """Milliseconds to score one row alone, on whatever machine evaluates: a yardstick, not the latency of serving."""
    asked = case.recipe.evaluation
    size = min(asked.latency_rows, len(case.frame))
    if not size:
        return {}
    chosen = np.random.default_rng([asked.seed, 4]).choice(len(case.frame), size, replace=False)
    with engine_time("transformers"):
        case.scorer.score(case.frame.iloc[chosen[:1]])  # the first call pays for what the others find ready
        taken, worked = [], []
        for at in chosen:
            row, began, busy = case.frame.iloc[[at]], case.clock(), case.cpu_clock()
            case.scorer.score(row)
            worked.append((case.cpu_clock() - busy) * 1000)
            taken.append((case.clock() - began) * 1000)
    p50, p95 = (float(value) for value in np.percentile(taken, [50, 95]))
    cpu_p95 = float(np.percentile(worked, 95))
    return {"offline_p50": p50, "offline_p95": p95, "offline_cpu_p95": cpu_p95, "rows": float(size)}


def _memorisation(case: Case) -> dict[str, Interval]:
    asked = case.recipe.evaluation
    if not asked.memorisation_rows or not case.reads_text:
        return {}
    member, other = sample_texts(case.train, case.frame, case.normalised, asked.memorisation_rows, asked.seed)
    if min(len(member), len(other)) < FEWEST:
        return {}
    with engine_time("transformers"):
        traces = [case.spec.text_traces(case.scorer, frame) for frame in (member, other)]
    if traces[0] is None or traces[1] is None:
        return {}
    return measure_memorisation(traces[0], traces[1], asked.bootstrap, asked.seed)


def _parts(
    case: Case,
    own: dict[str, Interval],
    sliced: Sliced,
    robust: Robustness,
    memorised: dict[str, Interval],
    baselines: set[str],
) -> dict[str, str]:
    """What became of each part; nothing is measured by being absent."""
    asked = case.recipe.evaluation
    left_out = [name for name in asked.baselines if name not in baselines]
    small = [name for name, state in sliced.states.items() if state != MEASURED]
    undefined = [name for name in METRICS if own[name].value is None]
    vague = [name for name in OPERATING if own[name].value is None]
    found = {
        "metrics": _short(undefined, "not defined on these rows: "),
        "operating": _short(vague, "nothing is counted that it is a share of: "),
        "baselines": _short(left_out, "no text or features for ") if asked.baselines else NOT_ASKED,
        "champion": MEASURED if case.champion is not None else _insufficient("it gives no usable scores"),
        "slices": _short(small, "too few rows or positives: ") if sliced.states else NOT_ASKED,
        "robustness": MEASURED if robust.shifts else _insufficient("the model reads no input that could change"),
        "injection": MEASURED if INJECTION in robust.shifts else _insufficient("the model reads no text"),
        "drift": MEASURED if asked.drift_rows else NOT_ASKED,
        "latency": MEASURED if asked.latency_rows else NOT_ASKED,
        "cost": MEASURED if asked.price_per_hour else NOT_ASKED,
        "memorisation": MEASURED if memorised else _insufficient(_why_not_memorised(case)),
        "personal_data": MEASURED,
    }
    if not case.champion_version:
        found["champion"] = "not asked: there is none yet"
    if not asked.robustness_rows:
        found |= dict.fromkeys(("robustness", "injection"), NOT_ASKED)
    if not asked.memorisation_rows:
        found["memorisation"] = NOT_ASKED
    return found


def _why_not_memorised(case: Case) -> str:
    if not case.reads_text:
        return "the model reads no text"
    return f"no language-model head, or fewer than {FEWEST} texts in training or held out that are not in both"


def _short(names: list[str], why: str) -> str:
    return _insufficient(why + ", ".join(names)) if names else MEASURED


def _insufficient(why: str) -> str:
    return f"{INSUFFICIENT}: {why}"
