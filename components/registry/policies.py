"""Which policy about people governs a model: that of its last promotion, never merely that of the run that asks.

Where nobody whom it names is left, the ledger's owner can put another one in force: an entry of kind `policy` with a
reason, which history, audit and the model's card show. The owner is whom the file or the table belongs to, who could
write the whole ledger anew anyway; nobody else gets around the people in charge.
"""

from __future__ import annotations

from typing import Any

from components.core.digest import value_digest
from components.core.errors import UserError
from components.core.home import safe_name
from components.core.ledger import Entry, Ledger
from components.core.people import Person, Policy, given_reason
from components.registry.approvals import POLICY, requests
from components.registry.champions import CANDIDATE, PROMOTION, REGISTERED
from components.registry.transaction import lease_name

CHANGED = "policy_changed"


def policy_in_force(name: str, ledger: Ledger) -> Policy:
    """The policy of the model's last promotion or change; until one says anything, that of the oldest request open.

    A candidate that was refused, or that nobody approved, changes nothing.
    """
    promoted = [e for e in ledger.entries(PROMOTION) if e.payload["name"] == name and "policy" in e.payload]
    said = sorted([*promoted, *changes(name, ledger)], key=lambda entry: entry.seq)
    standing = Policy.from_dict(said[-1].payload["policy"]) if said else Policy()
    if standing.says_something:
        return standing
    asked = [r for r in requests(ledger) if r.entry.payload["name"] == name and r.end is None]
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


def changes(name: str, ledger: Ledger) -> list[Entry]:
    """The entries by which the ledger's owner changed the model's policy, oldest first."""
    return [entry for entry in ledger.entries(POLICY) if entry.payload["name"] == name]


def change_policy(name: str, policy: Policy, ledger: Ledger, reason: str, who: Person) -> Entry:
    """Put a policy in force for a model, of open requests too; one that is in force already is not noted again.

    Raises:
        UserError: no reason, or nothing was ever registered under this name. PolicyRefusal: whoever asks does not own
            the ledger. TransientError: somebody else is deciding.
    """
    safe_name(name, "model name")
    reason = given_reason(reason)
    ledger.refuse_strangers("change a model's policy about people")
    if not any(entry.payload["name"] == name for kind in (CANDIDATE, PROMOTION) for entry in ledger.entries(kind)):
        raise UserError(f"model {name}: nothing was ever registered under this name; its first run brings its policy")
    with ledger.hold(lease_name(name)) as lease:
        done, before = changes(name, ledger), policy_in_force(name, ledger)
        if done and policy == before == Policy.from_dict(done[-1].payload["policy"]):
            return done[-1]
        payload: dict[str, Any] = {
            "event": CHANGED,
            "name": name,
            "policy": policy.to_dict(),
            "before": before.to_dict(),
            "reason": reason,
            "by": who.to_dict(),
        }
        key = f"policy:{name}:{len(done)}:{value_digest(policy.to_dict())}"
        return ledger.append(POLICY, key, payload, fence=lease)


def told(entry: Entry) -> str:
    """A change in words."""
    policy = Policy.from_dict(entry.payload["policy"])
    by = entry.payload["by"]
    return (
        f"policy changed by the ledger's owner {by['name']} ({by['source']}, user {by['os_user']}): {policy.words}: "
        f"{entry.payload['reason']}"
    )
