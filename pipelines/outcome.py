"""How a run ended, derived from the records that its steps kept."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from components.core.digest import file_digest, value_digest
from components.core.errors import IntegrityError
from components.core.home import Home
from components.core.ledger import Anchor, Ledger
from components.core.people import starters
from components.core.publish import write_atomic
from components.core.recipe import Recipe
from components.core.steps import failure_of, read_record, step_notes
from pipelines.plan_record import keep_measurement

EXIT_CODES = {"promoted": 0, "failed": 1, "refused": 3, "rolled_back": 3, "inconclusive": 3, "awaiting_approval": 4}
FINAL = {"promoted", "refused", "rolled_back", "inconclusive"}  # stored: the same run again returns them
AWAITING = "awaiting_approval"
RUN_FILE, ANCHOR_FILE = "run.json", "ledger.json"
SEALED = "sealed"  # kind of the entries that name the digests of a run's records


@dataclass(frozen=True)
class Outcome:
    """What `pilotline run` prints; `seconds` is the wall time of the steps that ran."""

    run_id: str
    outcome: str
    reason: str
    exit_code: int
    recipe: str
    recipe_digest: str
    code_version: str
    engine: str
    started: float
    seconds: float
    steps: list[dict[str, Any]]
    snapshot: dict[str, Any] | None
    model: dict[str, Any] | None
    metrics: dict[str, float] = field(default_factory=dict)
    started_by: list[str] = field(default_factory=list)
    repeatable: bool = False  # damage on disk, not a verdict: the same run again may end otherwise

    @property
    def is_final(self) -> bool:
        """Whether running again would only repeat it."""
        return self.outcome in FINAL and not self.repeatable


def conclude(home: Home, run_id: str, recipe: Recipe, code_version: str) -> Outcome:
    """Derive the outcome and write `run.json`; what was measured goes beside what the planner predicted."""
    keep_measurement(home, run_id, recipe)
    notes = step_notes(home, run_id)
    outcome, reason, exit_code = _verdict(home, run_id)
    started = min((float(note["started"]) for note in notes), default=time.time())
    concluded = Outcome(
        run_id=run_id,
        outcome=outcome,
        reason=reason,
        exit_code=exit_code,
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        code_version=code_version,
        engine=str((read_record(home, run_id, "rollout") or {}).get("engine", "")),
        started=started,
        seconds=round(sum(float(note["seconds"]) for note in notes), 3),
        steps=[{name: note[name] for name in ("name", "status", "seconds")} for note in notes],
        snapshot=_snapshot(home, run_id),
        model=_model(home, run_id),
        metrics=_metrics(home, run_id),
        started_by=list(starters(home, run_id)),
        repeatable=isinstance(failure_of(home, run_id), IntegrityError),
    )
    write_atomic(home.run(run_id) / RUN_FILE, json.dumps(asdict(concluded), indent=1))
    return concluded


def store(home: Home, concluded: Outcome) -> None:
    """Append the run to the ledger where it is final: from then on the same run returns this outcome.

    The digests of its records are sealed in the ledger, also while it awaits approval; the run's folder notes the
    entry's hash, which shows where the ledger's end was cut off.
    """
    if not concluded.is_final and concluded.outcome != AWAITING:
        return
    run_id, records = concluded.run_id, record_digests(home, concluded.run_id)
    with closing(Ledger(home.ledger_url)) as ledger:
        sealed = {"run_id": run_id, "records": records}
        entry = ledger.append(SEALED, f"{SEALED}:{run_id}:{value_digest(records)}", sealed)
        if concluded.is_final:
            entry = ledger.append("run", f"run:{run_id}", asdict(concluded))
    write_atomic(home.run(run_id) / ANCHOR_FILE, json.dumps({"seq": entry.seq, "hash": entry.hash}))


def record_digests(home: Home, run_id: str) -> dict[str, str]:
    """sha256 of each record that a run's steps kept, and of its recipe."""
    folder = home.run(run_id)
    found = {path.name: file_digest(path) for path in sorted((folder / "records").glob("*.json"))}
    recipe = folder / "recipe.json"
    return found | ({recipe.name: file_digest(recipe)} if recipe.exists() else {})


def stored(home: Home, run_id: str) -> Outcome | None:
    """The final outcome of an earlier execution of this run, from the ledger."""
    if not home.root.joinpath("ledger.db").exists() and home.ledger_url.startswith("sqlite:///" + str(home.root)):
        return None
    with closing(Ledger(home.ledger_url)) as ledger:
        entry = ledger.find(f"run:{run_id}")
    return Outcome(**entry.payload) if entry else None


def missing_runs(home: Home) -> None:
    """The chain cannot show that its end was cut off; the runs' own files can.

    Raises:
        IntegrityError: a finished run of this home is not in the ledger.
    """
    for path in sorted((home.root / "runs").glob(f"*/{RUN_FILE}")):
        told = Outcome(**json.loads(path.read_text()))
        if told.is_final and stored(home, told.run_id) is None:
            raise IntegrityError(
                f"ledger: run {told.run_id} ended as {told.outcome} but has no entry; the ledger's end was cut off, or "
                "the run was killed as it ended: run it again"
            )


def run_anchors(home: Home) -> list[Anchor]:
    """What the runs of this home saw of the ledger."""
    found = []
    for folder in sorted((home.root / "runs").glob("*")):
        noted = _table(folder / ANCHOR_FILE)
        promotion = _table(folder / "records" / "promote.json")
        for seq, seen in (
            (noted.get("seq"), noted.get("hash")),
            (promotion.get("ledger_seq"), promotion.get("ledger_hash")),
        ):
            if seq and seen:
                found.append(Anchor(int(seq), str(seen), f"run {folder.name}"))
    return found


def _table(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _verdict(home: Home, run_id: str) -> tuple[str, str, int]:
    """Outcome, reason and exit code from what is there, the furthest step first."""
    if error := failure_of(home, run_id):
        outcome = "refused" if error.exit_code == EXIT_CODES["refused"] else "failed"
        return outcome, str(error), error.exit_code
    if promotion := read_record(home, run_id, "promote"):
        return _with_code(promotion["outcome"], promotion["reason"])
    if report := read_record(home, run_id, "rollout"):
        outcome = "failed" if report["outcome"] == "passed" else report["outcome"]
        return _with_code(outcome, report["reason"])
    if version := read_record(home, run_id, "register"):
        if not version["gate_passed"]:
            return _with_code("refused", version["reason"])
        return _with_code("failed", "the gate passed but the rollout left no report; run again to resume")
    handed = read_record(home, run_id, "guard")
    if handed and not handed["passed"]:
        return _with_code("refused", f"training set: {handed['reason']}")
    verdict = read_record(home, run_id, "validate")
    if verdict and not verdict["passed"]:
        return _with_code("refused", f"contract {verdict['contract']}: {verdict['reason']}")
    return _with_code("failed", "the run ended before its last step; run again to resume")


def _with_code(outcome: str, reason: str) -> tuple[str, str, int]:
    return outcome, reason, EXIT_CODES[outcome]


def _snapshot(home: Home, run_id: str) -> dict[str, Any] | None:
    record = read_record(home, run_id, "ingest")
    return {"rows": record["rows"], "digest": record["digest"]} if record else None


def _model(home: Home, run_id: str) -> dict[str, Any] | None:
    record = read_record(home, run_id, "register")
    return {name: record[name] for name in ("name", "version", "digest")} if record else None


def _metrics(home: Home, run_id: str) -> dict[str, float]:
    """Test metrics with their intervals, and the AUC of each baseline, as flat names."""
    evidence = read_record(home, run_id, "evaluate")
    if not evidence:
        return {}
    flat: dict[str, float] = {"test_rows": evidence["rows"], "test_positives": evidence["positives"]}
    for name, interval in evidence["metrics"].items():
        flat |= {f"test_{name}": interval["value"]}
        flat |= {f"test_{name}_{end}": interval[end] for end in ("low", "high") if interval[end] is not None}
    flat |= {f"baseline_{name}_auc": found["auc"]["value"] for name, found in evidence["baselines"].items()}
    return {name: value for name, value in flat.items() if value is not None}
