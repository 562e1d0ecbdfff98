"""Reading the log: the active segment and the parts as one, what is encrypted opened where its key is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.protocols import ArrivedLabel
from components.serving.decision_log.keys import SubjectKeys
from components.serving.decision_log.parts import rows_of_parts
from components.serving.decision_log.schema import connect, seal

JOINED = """SELECT d.*, s.ok AS shadow_ok, s.score AS shadow_score, s.seconds AS shadow_seconds,
    s.version AS shadow_version, s.failure AS shadow_failure, f.label AS feedback_label,
    f.observed_at AS feedback_observed_at
    FROM decisions d LEFT JOIN shadows s ON s.decision_id = d.id LEFT JOIN feedback f ON f.decision_id = d.id"""


def find_decision(path: Path, decision_id: str) -> dict[str, Any] | None:
    """One decision with its shadow and feedback, or None.

    `intact` says whether its seal holds; `forgotten` that text and features were encrypted and their key is not here.
    """
    found = _select(path, "WHERE d.id = ?", (decision_id,), decision_id=decision_id)
    return found[0] if found else None


def read_decisions(path: Path, run_id: str = "", since: str = "", until: str = "9") -> list[dict[str, Any]]:
    """Decisions of a run ("" = all) in [since, until) (ISO 8601 UTC), in the order they were answered."""
    where = "WHERE (? = '' OR d.run_id = ?) AND d.time >= ? AND d.time < ?"
    found = _select(path, where, (run_id, run_id, since, until), since=since, until=until)
    return [row for row in found if not run_id or row["run_id"] == run_id]


def newest_shadow(path: Path) -> int:
    """Sequence number of the newest shadow record, 0 where there is none."""
    with closing(connect(path)) as connection:
        found = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'shadows'")
        return int(found.fetchone()[0])


def shadows_after(path: Path, seq: int) -> list[dict[str, Any]]:
    """Shadow records written after the one with this sequence number, oldest first; those of the active segment."""
    with closing(connect(path)) as connection:
        return [dict(row) for row in connection.execute("SELECT * FROM shadows WHERE seq > ? ORDER BY seq", (seq,))]


def labels_after(path: Path, run_id: str, seq: int) -> list[ArrivedLabel]:
    """Labels that arrived after the one with this number, for decisions of a run that are in the active segment."""
    if not path.exists():
        return []
    asked = """SELECT f.seq, f.decision_id, f.label, d.drawn, d.weight, d.score, d.status, d.answered_by,
        s.score AS shadow_score FROM feedback f JOIN decisions d ON d.id = f.decision_id
        LEFT JOIN shadows s ON s.decision_id = d.id WHERE f.seq > ? AND d.run_id = ? ORDER BY f.seq"""
    with closing(connect(path)) as connection:
        return [_arrived(dict(row)) for row in connection.execute(asked, (seq, run_id))]


def _arrived(row: dict[str, Any]) -> ArrivedLabel:
    status, answered_by = row.pop("status"), row.pop("answered_by")
    own = status == "ok" and answered_by == row["drawn"]
    return ArrivedLabel(**row | {"score": row["score"] if own else None})


def _select(path: Path, where: str, values: Sequence[Any], **parts: str) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(f"decision log {path}: no decisions were made in this home yet")
    with closing(connect(path)) as connection:
        # One transaction, so that rows that are moved to a part meanwhile are seen once: there or here.
        connection.execute("BEGIN")
        rows = [dict(row) for row in connection.execute(f"{JOINED} {where} ORDER BY d.seq", values)]
        moved = rows_of_parts(connection, **parts)
        told = {row["decision_id"]: row for row in connection.execute("SELECT * FROM feedback")} if moved else {}
    here = {row["id"] for row in rows}
    for row in moved:
        label = told.get(row["id"])
        row["feedback_label"] = label["label"] if label else None
        row["feedback_observed_at"] = label["observed_at"] if label else None
    rows = sorted([*(row for row in moved if row["id"] not in here), *rows], key=lambda row: int(row["seq"]))
    keys = SubjectKeys.existing(path.parent) if any(row["cipher"] for row in rows) else None
    try:
        return [_opened(row, keys) for row in rows]
    finally:
        if keys is not None:
            keys.close()


def _opened(row: dict[str, Any], keys: SubjectKeys | None) -> dict[str, Any]:
    row["intact"] = row.pop("seal") == seal(row)
    row["entities"], row["features"] = json.loads(row["entities"]), json.loads(row["features"])
    row["forgotten"] = False
    if row["cipher"]:
        inner = keys.open(row["cipher"], row["id"]) if keys else None
        row["forgotten"] = inner is None
        row |= json.loads(inner) if inner else {}
    return row
