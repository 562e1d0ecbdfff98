"""What a run left behind, read without trust: a file that is absent or unreadable is a fact of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from components.core.errors import IntegrityError
from components.core.home import Home
from components.core.records import (
    ContractVerdict,
    Evidence,
    HandOver,
    ModelRef,
    ModelVersionRef,
    PromotionRef,
    Record,
    RolloutReport,
    SnapshotRef,
    TrainingSetRef,
)

R = TypeVar("R", bound=Record)


@dataclass
class Facts:
    """All records of a run, None where a step left none; `unreadable` names files that could not be understood.

    `run` is run.json, `notes` the steps' notes by name, `plan` what the planner predicted and what was measured.
    `statistics` (feature statistics) and `quarantined` (example
    rows: {"rule", "row", "values"}) are shown where a step kept them.
    """

    run_id: str
    run: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    snapshot: SnapshotRef | None = None
    contract: ContractVerdict | None = None
    training_set: TrainingSetRef | None = None
    handover: HandOver | None = None
    model: ModelRef | None = None
    evidence: Evidence | None = None
    version: ModelVersionRef | None = None
    rollout: RolloutReport | None = None
    promotion: PromotionRef | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_facts(home: Home, run_id: str) -> Facts:
    """Read the run's folder; an empty folder gives empty facts."""
    folder = home.run(run_id)
    facts = Facts(run_id)
    reader = _Reader(folder, facts.unreadable)
    facts.run = reader.table("run.json")
    facts.recipe = reader.table("recipe.json") or _recipe_of(reader.table("arguments.json"))
    facts.notes = {path.stem: reader.table(f"steps/{path.name}") for path in sorted((folder / "steps").glob("*.json"))}
    facts.snapshot = reader.record("ingest", SnapshotRef)
    facts.contract = reader.record("validate", ContractVerdict)
    facts.training_set = reader.record("featurise", TrainingSetRef)
    facts.handover = reader.record("guard", HandOver)
    facts.model = reader.record("train", ModelRef)
    facts.evidence = reader.record("evaluate", Evidence)
    facts.version = reader.record("register", ModelVersionRef)
    facts.rollout = reader.record("rollout", RolloutReport)
    facts.promotion = reader.record("promote", PromotionRef)
    facts.plan = reader.table("records/plan.json")
    facts.statistics = reader.table("records/statistics.json")
    rows = reader.table("records/quarantine.json").get("rows", [])
    facts.quarantined = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return facts


@dataclass(frozen=True)
class _Reader:
    folder: Path
    unreadable: list[str]

    def table(self, name: str) -> dict[str, Any]:
        """A JSON object, {} where it is absent or unreadable."""
        path = self.folder / name
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            found = None
        if isinstance(found, dict):
            return found
        self.unreadable.append(name)
        return {}

    def record(self, step: str, kind: type[R]) -> R | None:
        """A step's record, None where it is absent or not of its kind."""
        values = self.table(f"records/{step}.json")
        if not values:
            return None
        try:
            return kind.from_dict(values)
        except IntegrityError:
            self.unreadable.append(f"records/{step}.json")
            return None


def _recipe_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved recipe among a run's arguments."""
    try:
        found = json.loads(str(arguments.get("recipe", "")))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
