"""The last look at a version before it meets users: its record, bytes and signature, as they are now."""

from __future__ import annotations

from pathlib import Path

from components.core.errors import IntegrityError, PolicyRefusal
from components.core.ledger import Ledger
from components.core.records import ModelVersionRef
from components.models.signing import SIGNATURE_FILE, verify_signature
from components.registry.champions import CANDIDATE, REGISTERED
from components.registry.decision_signature import check_decision
from components.registry.store import MODEL, check_kept
from components.registry.trust import trusted_keys


def check_whole(name: str, version: str, digest: str, models_root: Path, ledger: Ledger) -> None:
    """The kept files are those of the digest, and a version that was signed still bears a signature that counts.

    A key that was withdrawn since counts no longer. A version whose entry names no signer is looked at by its bytes
    alone: the gate passes none without a signature, so its record is what refuses it.

    Raises:
        IntegrityError: bytes or signature do not hold.
    """
    kept = models_root / digest
    check_kept(kept / MODEL, digest, f"model {name} version {version}")
    signers = [
        entry.payload.get("signed_by", "")
        for entry in ledger.entries(CANDIDATE)
        if "record" in entry.payload
        and (entry.payload["name"], entry.payload["version"], entry.payload["digest"]) == (name, version, digest)
    ]
    if signers and signers[-1]:
        verify_signature(kept / MODEL, kept / SIGNATURE_FILE, trusted_keys(ledger))


def check_registered(version: ModelVersionRef, ledger: Ledger, known: bool) -> None:
    """The record that was handed on is the one that registration put into the ledger, whose gate passed.

    A record is a file between two steps, and whoever can write it can seal it anew; the ledger holds what was decided,
    signed where a key was at hand.

    Args:
        version: the record as it was handed on.
        ledger: what registration noted.
        known: whether a version that the ledger knows nothing of is refused.

    Raises:
        IntegrityError: the ledger holds another record of this version, or none, or the gate's decision is not as it
            was signed. PolicyRefusal: the gate refused it.
    """
    check_decision(version.name, version.version, ledger)
    title = f"model {version.name} version {version.version}"
    own = [
        entry.payload
        for entry in ledger.entries(CANDIDATE)
        if "record" in entry.payload
        and (entry.payload["name"], entry.payload["version"]) == (version.name, version.version)
    ]
    if not own and known:
        raise IntegrityError(f"{title}: the ledger holds no registration of it; register it again")
    for payload in own:
        noted = ModelVersionRef.from_dict(payload["record"])
        if not noted.gate_passed or payload["event"] != REGISTERED:
            raise PolicyRefusal(f"{title}: the gate did not pass: {noted.reason}")
        if noted.record_digest != version.record_digest:
            raise IntegrityError(
                f"{title}: the record that was handed on ({version.record_digest[:12]}) is not the one that was "
                f"registered ({noted.record_digest[:12]}); run the step register again"
            )
