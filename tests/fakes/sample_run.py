"""Runs as their steps leave them, made up but consistent: the inputs of the report's tests and pictures."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from components.core.digest import value_digest
from components.core.home import Home
from components.core.records import (
    CheckpointRef,
    ContractVerdict,
    Evidence,
    Fairness,
    HandOver,
    Interval,
    ModelRef,
    ModelVersionRef,
    PromotionRef,
    Record,
    RolloutEvent,
    RolloutReport,
    RuleResult,
    SnapshotRef,
    SplitRef,
    TrainingSetRef,
)

STARTED = 1_795_000_000.0
ORDER = ("ingest", "validate", "featurise", "guard", "train", "evaluate", "register", "rollout", "promote")
SECONDS = (2.9, 7.4, 9.8, 3.6, 48.2, 14.6, 3.3, 96.5, 1.2)
RECIPE = {
    "name": "laptop",
    "source": {"uri": "generator://complaints?rows=20000&seed=7", "until": ""},
    "model": {"name": "complaints", "hidden_size": 64, "layers": 2},
    "gate": {"min_auc": 0.8, "max_ece": 0.1},
    "rollout": {
        "error_margin": 0.05,
        "latency_ratio": 2.0,
        "score_shift": 0.05,
        "deadline_seconds": 150.0,
        "requests_per_second": 30.0,
        "steps": [50],
    },
}


def sample_run(home: Home, outcome: str = "promoted", run_id: str = "", wish: str = "") -> str:
    """Write a run that ended in `outcome` and return its id.

    Args:
        home: where.
        outcome: promoted, first_version (promoted without a champion), refused_contract, refused_leakage, refused_gate,
            rolled_back, inconclusive, failed (training broke) or awaiting_approval.
        run_id: the run's name, made from the outcome where empty.
        wish: a text that is put into every place where text of users or of data may appear.
    """
    run_id = run_id or f"laptop-{outcome.replace('_', '-')}"
    reached = {
        "refused_contract": 2,
        "refused_leakage": 4,
        "failed": 5,
        "refused_gate": 7,
        "rolled_back": 8,
        "inconclusive": 8,
    }.get(outcome, 9)
    folder = home.run(run_id)
    records = _records(outcome, wish)
    for index, name in enumerate(ORDER[:reached]):
        broken = outcome == "failed" and index == reached - 1
        _note(folder, name, index, _broken(wish) if broken else {})
        if not broken:
            _write(folder / "records" / f"{name}.json", records[name].to_dict())
    _write(folder / "arguments.json", {"recipe": json.dumps(RECIPE | {"name": f"laptop{wish}"})})
    if reached > 2:
        _write(folder / "records" / "statistics.json", _statistics())
    if outcome == "refused_contract" or wish:
        _write(folder / "records" / "quarantine.json", {"rows": _quarantined(wish)})
    _write(folder / "run.json", _run(run_id, outcome, reached, records, wish))
    return run_id


def _run(run_id: str, outcome: str, reached: int, records: dict[str, Record], wish: str) -> dict[str, Any]:
    said = {
        "first_version": "promoted",
        "refused_contract": "refused",
        "refused_gate": "refused",
        "refused_leakage": "refused",
    }.get(outcome, outcome)
    reasons = {
        "promoted": "version 3 passed its canary against version 2 and replaced it",
        "first_version": "version 1 passed the golden set and the SLO check and became champion",
        "refused_contract": "contract complaints: 3 of 24 rules failed, 2,140 of 20,000 rows put aside",
        "refused_leakage": "training set: Amount refunded: tells the outcome of its own row by itself: AUC 0.984",
        "refused_gate": "min_auc: AUC 0.712 is below the floor 0.8; baseline logistic_regression: 0.151 below it",
        "rolled_back": "errors: canary 6/61, stable 3/560, margin +5 pp, evidence 144 of 20; traffic back on stable",
        "inconclusive": "latency p95 was not proven within 150 s; not proven bad; traffic back on stable",
        "failed": "train: rank 1 ended with exit status -9; run again to resume",
        "awaiting_approval": "version 3 passed its canary; approve it with `pilotline models approve complaints 3`",
    }
    codes = {"promoted": 0, "failed": 1, "awaiting_approval": 4}
    return {
        "run_id": run_id,
        "outcome": said,
        "reason": reasons[outcome] + wish,
        "exit_code": codes.get(said, 3),
        "recipe": f"laptop{wish}",
        "recipe_digest": value_digest(RECIPE),
        "code_version": "src-5f0c1d2e3a4b5c6d",
        "engine": "vllm 0.32.0" if reached >= 8 else "",
        "started": STARTED,
        "seconds": round(sum(SECONDS[:reached]), 1),
        "snapshot_digest": getattr(records["ingest"], "digest", ""),
        "metrics": {"test_auc": 0.847},
    }


def _records(outcome: str, wish: str) -> dict[str, Record]:
    snapshot = SnapshotRef(
        digest=value_digest("snapshot"),
        rows=20000,
        columns=("Complaint ID", "Company", "State", f"Tags{wish}"),
        time_column="Date received",
        time_min="2025-01-01T00:00:00+00:00",
        time_max="2026-10-31T00:00:00+00:00",
        source=f"generator://complaints?rows=20000&seed=7{wish}",
        since="",
        until="2026-11-01",
    )
    contract = _contract(snapshot, broken=outcome == "refused_contract", wish=wish)
    rows = _training_set(snapshot, contract)
    model = _model(rows, good=outcome != "refused_gate")
    first = outcome == "first_version"
    evidence = _evidence(rows, model, good=outcome != "refused_gate", first=first, wish=wish)
    version = _version(model, evidence, outcome, first, wish)
    return {
        "ingest": snapshot,
        "validate": contract,
        "featurise": rows,
        "guard": _handover(rows, leaks=outcome == "refused_leakage", wish=wish),
        "train": model,
        "evaluate": evidence,
        "register": version,
        "rollout": _rollout(version, outcome, first, wish),
        "promote": PromotionRef(
            outcome="awaiting_approval" if outcome == "awaiting_approval" else "promoted",
            reason="passed",
            name="complaints",
            version=version.version,
            digest=version.digest,
            previous_version=version.champion_version,
            ledger_seq=7,
        ),
    }


def _rule(rule: str, outcome: str, observed: Any, limit: Any, subject: str = "", reason: str = "") -> RuleResult:
    return RuleResult(rule=rule, outcome=outcome, observed=observed, limit=limit, subject=subject, reason=reason)


def _contract(snapshot: SnapshotRef, broken: bool, wish: str) -> ContractVerdict:
    checks = [
        _rule("row_count", "pass", 20000, "at least 1,000"),
        _rule("unique", "pass", 0, 0, "Complaint ID"),
        _rule("not_null", "pass", 0, 0, "Date received"),
        _rule("date_format", "pass", 0, 0, "Date received"),
        _rule("accepted_values", "pass", 0, 0, "Product"),
        _rule("max_length", "pass", 0.0004, 0.01, "Consumer complaint narrative"),
    ]
    if broken:
        checks[3] = _rule("date_format", "fail", 0.107, 0.01, "Date received", f"2,140 rows, e.g. '31.12.2025'{wish}")
        checks[4] = _rule("accepted_values", "fail", 0.093, 0.0, "Product", f"1,861 rows, e.g. 'Mortgages!'{wish}")
        checks.append(_rule("sent_after_received", "insufficient", None, 0.01, "Date sent", "no row could be compared"))
    return ContractVerdict(
        passed=not broken,
        contract="complaints",
        version="1.2.0",
        contract_digest=value_digest("contract"),
        snapshot_digest=snapshot.digest,
        rows=20000,
        clean=17860 if broken else 19991,
        quarantined=2140 if broken else 9,
        engine="great_expectations 1.24.1",
        checks=tuple(checks),
        clean_digest=value_digest("clean"),
        reason=f"date_format Date received: 10.7 % of rows, 1 % allowed{wish}" if broken else "",
    )


def _handover(rows: TrainingSetRef, leaks: bool, wish: str) -> HandOver:
    guards = [
        _rule("outcomes known before", "pass", "30.00 days", "at least 30 days", "train, validation"),
        _rule("feature tells the outcome", "pass", 0.7703, "below 0.95", "company_relief_rate"),
        _rule("column tells the outcome", "pass", 0.7606, "below 0.95", "Company"),
        _rule("rows shared by key", "pass", 0.0, "0 rows", "row_id"),
    ]
    told = f"Amount refunded: tells the outcome of its own row by itself: AUC 0.984{wish}"
    if leaks:
        guards.append(_rule("column tells the outcome", "fail", 0.984, "below 0.95", f"Amount refunded{wish}", told))
    return HandOver(
        passed=not leaks,
        training_set_digest=rows.digest,
        snapshot_digest=rows.snapshot_digest,
        contract="Complaint training rows",
        version="1.0.0",
        contract_digest=value_digest("training contract"),
        engine="great_expectations 1.24.1",
        rows=sum(split.rows for split in rows.splits),
        guards=tuple(guards),
        checks=(_rule("row_count", "pass", 3998, "≥ 100 rows", "test"),),
        reason=told if leaks else "",
    )


def _training_set(snapshot: SnapshotRef, contract: ContractVerdict) -> TrainingSetRef:
    spans = (
        ("train", 13120, 1190, "2025-01-01", "2026-04-20"),
        ("validation", 1990, 171, "2026-05-21", "2026-06-24"),
        ("test", 3998, 362, "2026-06-24", "2026-10-31"),
    )
    return TrainingSetRef(
        digest=value_digest("training set"),
        snapshot_digest=snapshot.digest,
        clean_digest=contract.clean_digest,
        feature_repo="feature_repo/complaints",
        feature_service="complaint_triage_v1",
        features=("company_complaints", "company_relief_rate"),
        entities=("company", "state"),
        as_of="2026-11-30T00:00:00+00:00",
        embargo_days=30,
        splits=tuple(
            SplitRef(name=name, rows=rows, positives=hits, digest=value_digest(name), time_min=low, time_max=high)
            for name, rows, hits, low, high in spans
        ),
    )


def _model(rows: TrainingSetRef, good: bool) -> ModelRef:
    draw = random.Random(3)
    curve: list[dict[str, float]] = []
    for step in range(10, 401, 10):
        curve.append({"step": step, "loss": 0.36 + 0.34 * math.exp(-step / 70) + draw.uniform(-0.02, 0.02), "lr": 1e-3})
        if step % 20 == 0:
            dip = 0.29 + 0.09 * math.exp(-step / 90) + max(0, step - 300) * 1e-4
            rank = 0.85 - 0.2 * math.exp(-step / 60) if good else 0.71
            curve.append({"step": step, "validation_loss": dip, "validation_auc": rank})
    digest = value_digest(f"model {good}")
    return ModelRef(
        digest=digest,
        family="causal_lm",
        parameters=214_528,
        training_set_digest=rows.digest,
        recipe_digest=value_digest(RECIPE),
        steps=400,
        world_size=2,
        zero_stage=1,
        checkpoint=CheckpointRef(
            digest=value_digest("checkpoint"), step=400, world_size=2, zero_stage=1, recipe_digest=value_digest(RECIPE)
        ),
        mlflow_run_id="b2f0c4",
        labels=("no", "yes"),
        metrics={"validation_loss": 0.2912, "validation_auc": 0.851, "tokens_per_second": 9120.5},
        curve=tuple(curve),
    )


def _interval(value: float, width: float, rows: int = 3998, positives: int = 362) -> Interval:
    return Interval(value=value, low=round(value - width, 4), high=round(value + width, 4), n=rows, positives=positives)


def _measures(auc: float, width: float = 0.02, rows: int = 3998, positives: int = 362) -> dict[str, Interval]:
    return {
        "auc": _interval(auc, width, rows, positives),
        "average_precision": _interval(round(auc - 0.4, 3), 1.8 * width, rows, positives),
        "log_loss": _interval(round(0.55 - 0.35 * auc, 3), width / 2, rows, positives),
        "brier": _interval(round(0.14 - 0.08 * auc, 3), width / 4, rows, positives),
        "ece": _interval(0.021, width / 3, rows, positives),
    }


def _behaviour(wish: str) -> dict[str, Any]:
    """The parts of the evidence beside rank and calibration."""
    rates = {"precision": 0.61, "recall": 0.34, "fpr": 0.022, "selection_rate": 0.051, "accuracy": 0.92}
    spread = {"selection_rate": 0.012, "recall": 0.06, "fpr": 0.008, "equalized_odds": 0.06, "auc": 0.02, "ece": 0.01}
    shift = {"mean_shift": 0.031, "p95_shift": 0.11, "flip_rate": 0.02, "invalid_rate": 0.0}
    changes = ("typos", "upper_case", "shuffled_features", f"injection{wish}")
    return {
        "parts": {"robustness": "measured", "champion": f"insufficient: no usable scores{wish}", "cost": "not asked"},
        "threshold": 0.2,
        "operating": {name: _interval(value, 0.02) for name, value in rates.items()},
        "confusion": [[3556, 80], [239, 123]],
        "slice_states": {"Servicemember": "insufficient"},
        "fairness": {
            f"Older American{wish}": Fairness(
                state="measured", differences={f"{name}_difference": _interval(at, 0.01) for name, at in spread.items()}
            ),
            "Servicemember": Fairness(state="insufficient", reason="Servicemember has 38 rows, 3 positive"),
        },
        "robustness": {
            name: {key: _interval(value * at, 0.01) for key, value in shift.items()}
            for at, name in enumerate(changes, start=1)
        },
        "invalid_rate": _interval(0.0, 0.001, 1448, 0),
        "drift": {
            f"company{wish}": {"psi": 0.03, "noise": 0.01, "new_share": 0.002, "train_rows": 9000, "test_rows": 3998},
            "company_relief_rate": {"psi": 0.31, "noise": 0.01, "train_rows": 9000, "test_rows": 3998},
        },
        "latency_ms": {"offline_p50": 1.1, "offline_p95": 1.9, "rows": 50},
        "memorisation": {"membership_auc": _interval(0.53, 0.04, 600, 300)},
        "personal_data": {"email": 0, "phone": 1},
        "test_window_uses": 2,
    }


def _evidence(rows: TrainingSetRef, model: ModelRef, good: bool, first: bool, wish: str) -> Evidence:
    auc = 0.847 if good else 0.712
    shape = 3.3 if good else 1.9
    champion = {} if first else _measures(0.839) | {"auc_difference": _interval(round(auc - 0.839, 3), 0.017)}
    return Evidence(
        model_digest=model.digest,
        training_set_digest=rows.digest,
        test_digest=rows.split("test").digest,
        rows=3998,
        positives=362,
        metrics=_measures(auc),
        baselines={
            "logistic_regression": _measures(0.863),
            "text_logistic_regression": _measures(0.771),
            "gradient_boosting": _measures(0.79),
            "prior": _measures(0.5, 0.0),
        },
        slices={
            f"Older American{wish}": _measures(auc + 0.01, 0.055, 512, 47),
            f"Older American{wish}:others": _measures(auc - 0.002, 0.022, 3486, 315),
            "Servicemember": _measures(auc - 0.03, 0.07, 388, 34),
            "Servicemember:others": _measures(auc + 0.003, 0.022, 3610, 328),
        },
        champion_version="" if first else "2",
        champion=champion,
        **_behaviour(wish),
        curves={
            "precision_recall": [[x / 60, 0.9 - 0.75 * (x / 60) ** 0.7] for x in range(61)],
            "roc": [[x / 60, 1 - (1 - x / 60) ** shape] for x in range(61)],
            "calibration": [
                [s, s * (1.07 if s < 0.2 else 0.94), 400] for s in (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.19, 0.33)
            ],
        },
    )


def _version(model: ModelRef, evidence: Evidence, outcome: str, first: bool, wish: str) -> ModelVersionRef:
    passed = outcome != "refused_gate"
    auc = evidence.metrics["auc"].value
    rules = [
        _rule("signature", "pass", "present", "present"),
        _rule("evidence", "pass", 5, 5),
        _rule("min_test_positives", "pass", 362, 30),
        _rule(
            "min_auc",
            "pass" if passed else "fail",
            auc,
            0.8,
            "",
            "" if passed else f"AUC 0.712 is below the floor 0.8{wish}",
        ),
        _rule("max_ece", "pass", 0.021, 0.1),
        _rule(
            "baseline",
            "pass" if passed else "fail",
            -0.016 if passed else -0.151,
            -0.05,
            "logistic_regression",
            "" if passed else "0.151 below it, 0.05 allowed",
        ),
        _rule(
            "champion", "info" if first else "pass", None if first else -0.009, None if first else -0.03, "version 2"
        ),
        _rule("group_gap", "pass", 0.012, 0.15, f"Older American{wish}"),
        _rule("group_gap", "insufficient" if outcome == "refused_gate" else "pass", 0.033, 0.15, "Servicemember"),
    ]
    return ModelVersionRef(
        name="complaints",
        version="1" if first else "3",
        digest=model.digest,
        gate_passed=passed,
        gate=tuple(rules),
        champion_version="" if first else "2",
        champion_digest="" if first else value_digest("champion"),
        evidence_digest=evidence.record_digest,
        mlflow_run_id="b2f0c4",
        reason="" if passed else "min_auc: AUC 0.712 is below the floor 0.8",
    )


def _rollout(version: ModelVersionRef, outcome: str, first: bool, wish: str) -> RolloutReport:
    ends = {"rolled_back": "rolled_back", "inconclusive": "inconclusive"}
    end = ends.get(outcome, "passed")
    said = {
        "passed": "PASS, step 50 %: no worse within the margins; α 0.05 for the whole rollout at any number of looks",
        "rolled_back": "FAIL, step 50 %, errors: canary 6/61, stable 3/560, margin +5 pp, evidence 144 of 20",
        "inconclusive": "INCONCLUSIVE, step 50 %, latency p95: evidence 11.2 of 20 at the deadline of 150 s",
    }[end]
    events = [
        RolloutEvent(seconds=0.0, stage="start", weight=0, text="stable: version 2 answers (vllm 0.32.0)"),
        RolloutEvent(
            seconds=31.5, stage="start", weight=0, text="candidate: version 3 answers as canary (vllm 0.32.0)"
        ),
        RolloutEvent(
            seconds=36.2, stage="golden", weight=0, text="64 of 64 answers as evaluated, within 0.001", verdict="pass"
        ),
        RolloutEvent(
            seconds=43.1,
            stage="shadow",
            weight=0,
            text=f"200 mirrored requests, score shift 0.004{wish}",
            verdict="pass",
        ),
        RolloutEvent(seconds=43.3, stage="step 50 %", weight=50, text="50 % of draws to the canary"),
    ]
    last = {"passed": ("pass", 100), "rolled_back": ("fail", 0), "inconclusive": ("insufficient", 0)}[end]
    events += [
        RolloutEvent(seconds=88.4, stage="step 50 %", weight=50, text=said, verdict=last[0]),
        RolloutEvent(seconds=88.6, stage="end", weight=last[1], text="traffic set", verdict=""),
    ]
    if first:
        events = [
            RolloutEvent(
                seconds=0.0, stage="start", weight=0, text="candidate: version 1 answers as stable (vllm 0.32.0)"
            ),
            RolloutEvent(seconds=33.0, stage="golden", weight=0, text="64 of 64 answers as evaluated", verdict="pass"),
            RolloutEvent(seconds=39.0, stage="slo", weight=0, text="150 requests, p95 84 ms, 0 failed", verdict="pass"),
        ]
    harmed = end == "rolled_back"
    rules = [
        _rule("golden", "pass", 0.0003, 0.001, "golden"),
        _rule("errors", "fail" if harmed else "pass", 144.0 if harmed else 41.2, 20.0, "step 50 %", said),
        _rule(
            "latency p95",
            "insufficient" if end == "inconclusive" else "pass",
            11.2 if end == "inconclusive" else 33.0,
            20.0,
            "step 50 %",
        ),
        _rule("scores", "pass", 87.0, 20.0, "shadow"),
    ]
    return RolloutReport(
        outcome=end,
        reason=said,
        engine="vllm 0.32.0",
        candidate_version=version.version,
        candidate_digest=version.digest,
        stable_version=version.champion_version,
        stable_digest=version.champion_digest,
        rules=tuple(rules),
        timeline=tuple(events),
        requests=1412,
        failed_requests=6 if harmed else 0,
        latency_ms={"stable_p50": 31.2, "stable_p95": 74.8, "canary_p50": 32.5, "canary_p95": 79.3},
    )


def _statistics() -> dict[str, Any]:
    def split(mean: float, tilt: float) -> dict[str, Any]:
        counts = [round(1000 * (1 + tilt * (index - 5.5) / 11)) for index in range(12)]
        return {
            "count": sum(counts),
            "null_share": 0.021,
            "mean": mean,
            "sd": mean / 2,
            "quantiles": {"0.05": mean / 4, "0.5": mean * 0.9, "0.95": mean * 2},
            "histogram": counts,
        }

    return {
        "rows": {"all": 20000, "train": 13120, "validation": 1990, "test": 3998},
        "embargoed": 883,
        "views": {
            "company_history": {"rows": 19991, "entities": 300, "newest": "2026-11-30T00:00:00+00:00"},
            "state_history": {"rows": 19991, "entities": 51, "newest": "2026-11-29T00:00:00+00:00"},
        },
        "features": {
            "company_complaints": {"train": split(212.4, 0.2), "test": split(265.9, 0.9)},
            "company_relief_rate": {"train": split(0.0912, -0.3), "test": split(0.0887, -0.2)},
        },
    }


def _quarantined(wish: str) -> list[dict[str, Any]]:
    return [
        {
            "rule": f"date_format Date received{wish}",
            "row": 17,
            "values": {"Complaint ID": "4001", "Date received": f"31.12.2025{wish}"},
        },
        {"rule": "accepted_values Product", "row": 230, "values": {"Complaint ID": "4214", "Product": "Mortgages!"}},
        {
            "rule": "accepted_values Product",
            "row": 231,
            "values": {"Complaint ID": f"4215{wish}", "Product": "x" * 400},
        },
    ]


def _broken(wish: str) -> dict[str, Any]:
    return {
        "status": "failed",
        "kind": "transient",
        "error": f"rank 1 ended with exit status -9{wish}",
        "type": "TransientError",
    }


def _note(folder: Path, name: str, index: int, more: dict[str, Any]) -> None:
    about = {"name": name, "status": "done", "started": STARTED + sum(SECONDS[:index]), "seconds": SECONDS[index]}
    engines = {"validate": {"great_expectations": 6.1}, "train": {"torchrun": 44.0}}
    _write(folder / "steps" / f"{name}.json", about | {"engines": engines.get(name, {})} | more)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")


OUTCOMES = (
    "promoted",
    "first_version",
    "refused_contract",
    "refused_leakage",
    "refused_gate",
    "rolled_back",
    "inconclusive",
    "failed",
    "awaiting_approval",
)
