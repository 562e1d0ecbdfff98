"""What the ledger says of one version after its registration: approvals, promotions, refusals, in rows for its card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.core.home import safe_name
from components.core.ledger import Ledger
from components.registry.approvals import APPROVAL, POLICY
from components.registry.champions import CANDIDATE, PROMOTION, REGISTERED

KINDS = (APPROVAL, CANDIDATE, POLICY, PROMOTION)


def said_of(ledger: Ledger, name: str, version: str) -> list[tuple[str, str, str, str]]:
    """Rows of time, event, by whom and reason, oldest first; registration itself is left out.

    Who was put in charge of the model by the ledger's owner is said of every version.
    """
    safe_name(name, "model name")
    found = [entry for kind in KINDS for entry in ledger.entries(kind)]
    own = [
        entry
        for entry in sorted(found, key=lambda entry: entry.seq)
        if (entry.payload.get("name"), entry.payload.get("version", version)) == (name, version)
        and entry.payload.get("event") != REGISTERED
    ]
    return [
        (entry.time[:19].replace("T", " ") + " UTC", *_words(entry.payload), str(entry.payload.get("reason", "")))
        for entry in own
    ]


def _words(payload: Mapping[str, Any]) -> tuple[str, str]:
    by = payload.get("by")
    name = by.get("name", "") if isinstance(by, dict) else str(by or "")
    return str(payload.get("event", "")).replace("_", " "), name or f"run {payload.get('run_id', '')}".strip()
