"""A run that awaited approval: where it stands now, and its end once people decided."""

from __future__ import annotations

import json

from components.core.home import Home
from components.core.publish import write_atomic
from components.core.recipe import parse_recipe
from components.core.records import PromotionRef
from components.core.steps import read_record
from pipelines.outcome import AWAITING, RUN_FILE, Outcome, conclude, store, stored

__all__ = ["awaiting", "settle"]


def awaiting(home: Home, run_id: str) -> Outcome | None:
    """What a run told last, where that was that it awaits approval."""
    told = _told(home, run_id)
    return told if told is not None and told.outcome == AWAITING else None


def settle(home: Home, run_id: str) -> Outcome | None:
    """The run's outcome as it stands now, without repeating a step; None where it did not await approval.

    Once people decided, or the time ran out, the run's record, outcome, report and ledger entry say so. Killed anywhere
    and called again, the end is the same.
    """
    told, record = _told(home, run_id), read_record(home, run_id, "promote")
    if told is None or record is None:
        return None
    if told.outcome != AWAITING and not (told.is_final and stored(home, run_id) is None):
        return None  # the second: a kill came between its last file and its entry in the ledger
    now = _stands(home, PromotionRef.from_dict(record))
    if now.to_dict() != record:
        path = home.run(run_id) / "records" / "promote.json"
        write_atomic(path, json.dumps(now.to_dict(), indent=1, sort_keys=True))
    elif now.outcome == AWAITING:
        return told
    recipe = parse_recipe((home.run(run_id) / "recipe.json").read_text())
    outcome = conclude(home, run_id, recipe, told.code_version)
    _report(home, run_id)
    store(home, outcome)
    return outcome


def _told(home: Home, run_id: str) -> Outcome | None:
    path = home.run(run_id) / RUN_FILE
    return Outcome(**json.loads(path.read_text())) if path.exists() else None


def _stands(home: Home, kept: PromotionRef) -> PromotionRef:
    """The record that was kept where a kill came after it, else what the ledger says now."""
    if kept.outcome != AWAITING:
        return kept
    from components.registry.models import follow_up

    return follow_up(home, kept.ledger_seq)


def _report(home: Home, run_id: str) -> None:
    from pipelines.report import write_report

    write_report(home, run_id)
