"""Whose signature counts: public keys pinned in the ledger, the first one when the first model is registered.

A key that is trusted later stands beside the earlier ones, so that versions signed before can still be served; one that
is withdrawn counts for nothing from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.ledger import Ledger
from components.core.people import given_reason
from components.models.signing import SignatureError, key_id, signature_check, verify_signature
from components.models.trusted import SIGNING_KEY, TRUSTED, WITHDRAWN, keys_of, trusted_keys

__all__ = [
    "SIGNING_KEY", "check_before_serving", "keys_of", "pin_first", "signer_of", "trust", "trusted_keys", "withdraw",
]  # fmt: skip


def pin_first(ledger: Ledger, public_key: str) -> list[str]:
    """The trusted keys; where the ledger never held one, this one is pinned first ("" pins nothing)."""
    if public_key and not ledger.entries(SIGNING_KEY):
        ledger.append(SIGNING_KEY, "signing-key:first", _payload(TRUSTED, public_key, "first use"))
    return trusted_keys(ledger)


def trust(ledger: Ledger, public_key: str, reason: str) -> dict[str, Any]:
    """Count this key's signatures from now on, with a reason; a key that is trusted already stays as it is."""
    return _change(ledger, TRUSTED, public_key, reason)


def withdraw(ledger: Ledger, public_key: str, reason: str) -> dict[str, Any]:
    """Count this key's signatures no longer; versions that only it signed can then not be served.

    Raises:
        UserError: the key is not trusted, or the reason is empty.
    """
    if public_key not in trusted_keys(ledger):
        raise UserError(f"key {key_id(public_key)[:12]} is not trusted; there is nothing to withdraw")
    return _change(ledger, WITHDRAWN, public_key, reason)


def signer_of(model_dir: Path, signature: Path, public_keys: Sequence[str]) -> str:
    """The id of the trusted key that signed the model; "" where there is no signature, which the gate refuses.

    Raises:
        SignatureError: there is one and it does not hold.
    """
    try:
        return verify_signature(model_dir, signature, public_keys)
    except SignatureError as refused:
        if refused.state == "missing":
            return ""
        raise


def _change(ledger: Ledger, event: str, public_key: str, reason: str) -> dict[str, Any]:
    reason = given_reason(reason)
    entries = ledger.entries(SIGNING_KEY)
    payload = _payload(event, public_key, reason)
    if (public_key in keys_of(entries)) != (event == TRUSTED):
        ledger.append(SIGNING_KEY, f"signing-key:{len(entries)}:{event}:{payload['key_id']}", payload)
    return payload


def _payload(event: str, public_key: str, reason: str) -> dict[str, Any]:
    return {"event": event, "key_id": key_id(public_key), "public_key": public_key, "reason": reason}


def check_before_serving(url: str) -> Callable[[Path], None]:
    """A check of a kept model directory by the keys that the ledger at this URL trusts now.

    It raises SignatureError where the model is not signed by one of them.
    """
    with closing(Ledger(url)) as ledger:
        return signature_check(trusted_keys(ledger))
