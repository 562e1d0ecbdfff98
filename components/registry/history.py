"""What happened to a model, in the ledger's order, and which version was in front of users at a moment."""

from __future__ import annotations

from typing import Any

from components.core.home import safe_name
from components.core.ledger import Entry, Ledger
from components.registry.approvals import APPROVAL, APPROVED, LAPSED, POLICY, REJECTED, REQUESTED
from components.registry.champions import (
    CANDIDATE,
    INCONCLUSIVE,
    PROMOTED,
    PROMOTION,
    REFUSED,
    REGISTERED,
    ROLLBACK,
    ROLLED_BACK,
    live_at,
)
from components.registry.policies import told as policy_told

SAID = {
    PROMOTED: "promoted",
    ROLLBACK: "in front again",
    REGISTERED: "passed the gate, not rolled out yet",
    REFUSED: "stopped by the gate",
    ROLLED_BACK: "stopped by the canary",
    INCONCLUSIVE: "stopped: not proven good",
    REQUESTED: "passed the canary and awaits approval",
    APPROVED: "approved",
    REJECTED: "rejected",
    LAPSED: "not approved",
}


def history(name: str, ledger: Ledger, at: str | None = None) -> list[dict[str, Any]]:
    """The story of a model, oldest first; with `at` (ISO 8601) exactly the one version that was champion then.

    Each item has time, version, event, reason, digest, run_id, auc (where known) and text, a sentence for people.

    Raises:
        UserError: the name or the time is none, or no version was champion then.
    """
    safe_name(name, "model name")
    if at is not None:
        return [live_at(name, ledger.entries(PROMOTION), at)]
    kinds = (PROMOTION, CANDIDATE, APPROVAL, POLICY)
    entries = [e for e in ledger.entries() if e.kind in kinds and e.payload["name"] == name]
    aucs = {e.payload["version"]: e.payload["auc"] for e in entries if e.payload.get("auc") is not None}
    concluded = {e.payload.get("version") for e in entries if e.payload["event"] != REGISTERED}
    told = [e for e in entries if e.payload["event"] != REGISTERED or e.payload["version"] not in concluded]
    return [
        _of_policy(entry) if entry.kind == POLICY else _item(entry, aucs.get(entry.payload["version"]))
        for entry in told
    ]


def _of_policy(entry: Entry) -> dict[str, Any]:
    payload = entry.payload
    return {
        "time": entry.time,
        "version": "",
        "event": payload["event"],
        "text": policy_told(entry),
        "by": payload["by"]["name"],
        "reason": payload["reason"],
        "auc": None,
        "digest": "",
        "run_id": "",
    }


def _item(entry: Entry, auc: float | None) -> dict[str, Any]:
    payload = entry.payload
    said = SAID[payload["event"]]
    if payload["event"] == REFUSED and "record" not in payload:
        said = "refused at promotion"
    by = payload.get("by", {}).get("name", "")
    return {
        "time": entry.time,
        "version": payload["version"],
        "event": payload["event"],
        "text": f"v{payload['version']} {said}{f' by {by}' if by else ''}: {payload['reason']}",
        "by": by,
        "reason": payload["reason"],
        "auc": auc,
        "digest": payload["digest"],
        "run_id": payload["run_id"],
    }
