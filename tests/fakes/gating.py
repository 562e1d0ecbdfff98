"""Evidence that passes every rule of a policy that uses all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from components.core.recipe import BaselineMargin, Gate
from components.core.records import ContractVerdict, Evidence, Fairness, HandOver, Interval, RuleResult
from components.registry.gate import Handed
from tests.fakes.judged import EVALUATION, GROUP, good_evidence, interval

__all__ = ["GROUP", "REST", "SIGNED", "STRICT", "compared", "full_evidence", "handed", "interval", "under_guard"]

REST = f"{GROUP}:others"
HELD = RuleResult(rule="a rule", outcome="pass", observed=0.0, limit=0.0)
DIFFERENCES = ("auc", "ece", "equalized_odds", "fpr", "recall", "selection_rate")
STRICT = Gate(
    min_auc=0.7,
    max_ece=0.1,
    floors={"average_precision": 0.3, "precision": 0.3, "recall": 0.3, "accuracy": 0.5},
    ceilings={"log_loss": 0.4, "brier": 0.2, "fpr": 0.3},
    min_test_positives=30,
    baselines=(BaselineMargin(baseline="logistic_regression", margin=0.05),),
    champion_margin=0.03,
    min_group_positives=30,
    max_group_auc_gap=0.1,
    max_differences={f"{name}_difference": 0.2 for name in DIFFERENCES},  # type: ignore[misc]
    blocking_groups=(GROUP,),
    max_skew=0.01,
    max_invalid_rate=0.02,
    max_mean_shift={"typos": 0.1, "injection": 0.1},
    max_flip_rate={"typos": 0.1, "injection": 0.1},
    max_offline_p95_ms=20.0,
    max_offline_cpu_p95_ms=20.0,
    max_completion_difference=0.1,
    max_membership_auc=0.6,
    max_personal_data=0,
    max_window_uses=5,
)


def compared(**changes: Any) -> Evidence:
    """Good evidence beside champion 4."""
    champion = {
        "auc": interval(0.84),
        "auc_difference": Interval(value=0.01, low=-0.01, high=0.03, n=500, positives=60),
    }
    return under_guard(good_evidence(champion_version="4", champion=champion, **changes))


def full_evidence() -> Evidence:
    """Every part measured, and good."""
    fair = Fairness(
        state="measured",
        compared=(GROUP, REST),
        differences={f"{name}_difference": interval(0.05) for name in DIFFERENCES},
    )
    moved = {"mean_shift": interval(0.01, 90), "flip_rate": interval(0.02, 90)}
    return replace(
        compared(),
        threshold=0.5,
        operating={
            "precision": interval(0.6, 80),
            "recall": interval(0.6),
            "accuracy": interval(0.9),
            "fpr": interval(0.05),
        },
        fairness={GROUP: fair},
        robustness={"typos": moved, "injection": moved},
        invalid_rate=interval(0.001, 90),
        latency_ms={"offline_p95": 8.0, "offline_cpu_p95": 9.0, "rows": 50.0},
        memorisation={"completion_difference": interval(0.01, 90), "membership_auc": interval(0.51, 90)},
        personal_data={"email": 0, "phone": 0, "social_security": 0, "card": 0},
        test_window_uses=1,
    )


def handed(evidence: Evidence) -> Handed:
    """Signed, contract and guard passed, no skew; about this evidence's training set."""
    contract = ContractVerdict(
        passed=True, contract="rows", version="1.0.0", contract_digest="k" * 64, snapshot_digest="5" * 64, rows=900,
        clean=900, quarantined=0, engine="duckdb", checks=(HELD,), clean_digest="c" * 64,
    )  # fmt: skip
    guard = HandOver(
        passed=True, training_set_digest=evidence.training_set_digest, snapshot_digest="5" * 64, contract="",
        version="", contract_digest="", engine="", rows=900, guards=(HELD,), checks=(),
    )  # fmt: skip
    return Handed(signed_by="a" * 64, contract=contract, guard=guard, skew=0.0, evaluation=EVALUATION)


def under_guard(evidence: Evidence) -> Evidence:
    """The evidence as an evaluation under `handed`'s guard makes it."""
    guard = handed(evidence).guard
    assert guard is not None
    return replace(evidence, handover_digest=guard.record_digest)


SIGNED = handed(good_evidence())
