"""The public keys whose signatures count: those that the ledger pins, read for every step that verifies a model.

Who pins and withdraws them is the registry's (`components/registry/trust.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing

from components.core.home import Home
from components.core.ledger import Entry, Ledger
from components.models.signing import public_key_at

SIGNING_KEY = "signing_key"
TRUSTED, WITHDRAWN = "trusted", "withdrawn"


def trusted_keys(ledger: Ledger) -> list[str]:
    """The public keys (PEM) that count now, oldest first."""
    return keys_of(ledger.entries(SIGNING_KEY))


def keys_of(entries: Sequence[Entry]) -> list[str]:
    """The public keys that count after these entries, of any kind, oldest first."""
    keys: list[str] = []
    for entry in entries:
        if entry.kind != SIGNING_KEY:
            continue
        keys = [key for key in keys if key != entry.payload["public_key"]]
        if entry.payload["event"] == TRUSTED:
            keys.append(entry.payload["public_key"])
    return keys


def keys_at(home: Home, variables: Mapping[str, str] = os.environ) -> list[str]:
    """The keys that count in a home: its ledger's; where that never held one, the key that the home signs with.

    Raises:
        UserError: a file that is named is no public key. TransientError: the ledger does not answer.
    """
    with closing(Ledger(home.ledger_url)) as ledger:
        pinned = ledger.entries(SIGNING_KEY)
    return keys_of(pinned) if pinned else [public_key_at(home, variables)]
