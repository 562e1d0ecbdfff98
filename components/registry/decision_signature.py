"""The gate's decision, signed as models are: a ledger's chain can be written anew by whoever may write its rows.

The signature is in the entry of kind `candidate` that registers a version, over everything else that this entry says:
the record with the gate's table, the digests, the policy about people. Where no trusted key is at hand the decision is
unsigned and `audit` says so. Once a model's decision was signed, an unsigned one that came later is not acted on: else
leaving the signature away would undo it. A key that counts is one that the ledger pins (see trust.py), so this holds
against who alters decisions, not against who can also pin a key of their own, which `models keys` shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from components.core.digest import canonical_json
from components.core.errors import IntegrityError
from components.core.ledger import Entry, Ledger
from components.models.signing import SignatureError, Signer, verify_text
from components.registry.champions import CANDIDATE
from components.registry.trust import SIGNING_KEY, keys_of

SIGNATURE = "decision_signature"


def signed(payload: dict[str, Any], signer: Signer | None, trusted: Sequence[str]) -> dict[str, Any]:
    """The payload with its signature; as it is where there is no signer, or one whose key does not count."""
    if signer is None:
        return payload
    signature = signer.sign_text(_said(payload))
    try:
        verify_text(_said(payload), signature, trusted)
    except SignatureError:
        return payload
    return payload | {SIGNATURE: signature}


def signer_of_decision(payload: Mapping[str, Any], trusted: Sequence[str]) -> str:
    """The id of the trusted key that signed a decision; "" where it is unsigned.

    Raises:
        SignatureError: it has a signature that does not hold.
    """
    if SIGNATURE not in payload:
        return ""
    return verify_text(_said(payload), str(payload[SIGNATURE]), trusted)


def check_decision(name: str, version: str, ledger: Ledger) -> None:
    """`check_decisions` on a ledger as it is now."""
    check_decisions(name, version, sorted([*ledger.entries(SIGNING_KEY), *ledger.entries(CANDIDATE)], key=_place))


def check_decisions(name: str, version: str, entries: Sequence[Entry]) -> None:
    """Every decision about a version is signed, or nobody signed one of this model before it.

    Args:
        name: of the model. version: its version. entries: the ledger's, of any kinds, oldest first.

    Raises:
        IntegrityError: a signature does not hold, or is missing although an earlier decision bears one.
    """
    trusted, before = keys_of(entries), ""
    for entry in decisions(name, entries):
        if entry.payload["version"] == version:
            _check(entry, trusted, before)
        before = before or (f"entry {entry.seq}" if SIGNATURE in entry.payload else "")


def told_signature(payload: Mapping[str, Any], trusted: Sequence[str]) -> str:
    """In words who signed a decision; raises as `signer_of_decision` does."""
    signed_by = signer_of_decision(payload, trusted)
    return f"signed by key {signed_by[:12]}" if signed_by else "unsigned"


def decisions(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that register a version of the model, passed or not."""
    return [e for e in entries if e.kind == CANDIDATE and "record" in e.payload and e.payload["name"] == name]


def _check(entry: Entry, trusted: Sequence[str], before: str) -> None:
    title = f"model {entry.payload['name']} version {entry.payload['version']}"
    try:
        signed_by = signer_of_decision(entry.payload, trusted)
    except SignatureError as refused:
        raise IntegrityError(
            f"{title}: the gate's decision (entry {entry.seq}) is not as it was signed: {refused}; register it again"
        ) from refused
    if before and not signed_by:
        raise IntegrityError(
            f"{title}: the gate's decision (entry {entry.seq}) is unsigned, those since {before} are signed; register "
            "it again where a trusted signing key is at hand"
        )


def _place(entry: Entry) -> int:
    return entry.seq


def _said(payload: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in payload.items() if name != SIGNATURE})
