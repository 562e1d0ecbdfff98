"""The last look at a version's files before it meets users: bytes and signature, as they are now."""

from __future__ import annotations

from pathlib import Path

from components.core.ledger import Ledger
from components.models.signing import SIGNATURE_FILE, verify_signature
from components.registry.champions import CANDIDATE
from components.registry.store import MODEL, check_kept
from components.registry.trust import trusted_keys


def check_whole(name: str, version: str, digest: str, models_root: Path, ledger: Ledger) -> None:
    """The kept files are those of the digest, and a version that was signed still bears a signature that counts.

    A key that was withdrawn since counts no longer. A version that was registered without a signature, because the
    recipe's gate allowed it, is checked by its bytes alone.

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
