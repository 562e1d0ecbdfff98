"""One entry, the bytes that its hash covers, and its row in the table."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from components.core.errors import IntegrityError

GENESIS = "0" * 64
COLUMNS = ("seq", "time", "kind", "key", "payload", "previous", "hash")


@dataclass(frozen=True)
class Entry:
    """One entry; `time` is ISO 8601 UTC and later than that of the entry before."""

    seq: int
    time: str
    kind: str
    key: str
    payload: dict[str, Any]
    previous: str
    hash: str


def entry_hash(seq: int, time: str, kind: str, key: str, payload: str, previous: str) -> str:
    """sha256 of the entry's canonical JSON, with the payload as the canonical JSON text that is stored.

    The text is put together by hand: a million entries are hashed in seconds, and a payload that was only written
    differently counts as altered. It cannot be read in two ways: what follows the payload has one form.
    """
    said = (
        f'{{"key":{encode_basestring(key)},"kind":{encode_basestring(kind)},"payload":{payload},'
        f'"previous":{encode_basestring(previous)},"seq":{seq},"time":{encode_basestring(time)}}}'
    )
    return hashlib.sha256(said.encode()).hexdigest()


def from_row(row: Any) -> Entry:
    """An entry from its row; IntegrityError where its payload is no JSON object or another column is no text."""
    try:
        payload = json.loads(row.payload)
    except (ValueError, TypeError, RecursionError):
        payload = None
    texts = (row.time, row.kind, row.key, row.previous, row.hash)
    if not isinstance(payload, dict) or not all(isinstance(text, str) for text in texts):
        raise IntegrityError(f"ledger: entry {row.seq} ({shown(row.kind)} {shown(row.key)}) was altered")
    return Entry(row.seq, row.time, row.kind, row.key, payload, row.previous, row.hash)


def shown(text: Any) -> str:
    """What an altered row holds, as one line that no terminal takes for a command."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))[:200]
