"""Which policy about people governs a model: that of its last promotion, never merely that of the run that asks."""

from __future__ import annotations

from components.core.ledger import Ledger
from components.core.people import Policy
from components.registry.approvals import APPROVAL, requests
from components.registry.champions import CANDIDATE, PROMOTION, REGISTERED


def policy_in_force(name: str, ledger: Ledger) -> Policy:
    """The policy of the model's last promotion; until one says anything, that of the oldest request still open.

    A candidate that was refused, or that nobody approved, changes nothing.
    """
    promoted = [e for e in ledger.entries(PROMOTION) if e.payload["name"] == name and "policy" in e.payload]
    standing = Policy.from_dict(promoted[-1].payload["policy"]) if promoted else Policy()
    if standing.says_something:
        return standing
    asked = [r for r in requests(ledger.entries(APPROVAL)) if r.entry.payload["name"] == name and r.end is None]
    ended = {entry.payload["run_id"] for entry in promoted}
    still = [r.candidate.policy for r in asked if r.candidate.run_id not in ended and ledger.now() < r.expires]
    return still[0] if still else standing


def policy_for(name: str, declared: Policy, ledger: Ledger) -> Policy:
    """What a run's recipe declares, never weaker than what is in force."""
    return declared.under(policy_in_force(name, ledger))


def declared_for(name: str, version: str, ledger: Ledger) -> Policy:
    """What the recipe of a version that passed the gate declares."""
    own = [
        entry.payload["policy"]
        for entry in ledger.entries(CANDIDATE)
        if (entry.payload["name"], entry.payload["version"]) == (name, version)
        and entry.payload["event"] == REGISTERED
        and "policy" in entry.payload
    ]
    return Policy.from_dict(own[-1]) if own else Policy()
