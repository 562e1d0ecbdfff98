"""Tables of the active segment, the seal of a decision, and ids that tell their time."""

from __future__ import annotations

import math
import secrets
import sqlite3
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components.core.digest import value_digest
from components.core.errors import UserError

DECISION_LOG = "decisions.db"
SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run_id TEXT NOT NULL, time TEXT NOT NULL,
  status TEXT NOT NULL, failure TEXT NOT NULL, drawn TEXT NOT NULL, weight REAL NOT NULL, answered_by TEXT NOT NULL,
  version TEXT NOT NULL, digest TEXT NOT NULL, label TEXT, score REAL, threshold REAL, prompt_digest TEXT NOT NULL,
  seconds REAL NOT NULL, model_seconds REAL, entities TEXT NOT NULL, features TEXT NOT NULL,
  model TEXT NOT NULL DEFAULT '', text TEXT, text_digest TEXT NOT NULL DEFAULT '', seal TEXT NOT NULL DEFAULT '',
  subject TEXT NOT NULL DEFAULT '', cipher TEXT NOT NULL DEFAULT '', masked INTEGER NOT NULL DEFAULT 0,
  kind TEXT NOT NULL DEFAULT '', rule TEXT NOT NULL DEFAULT '', review INTEGER NOT NULL DEFAULT 0,
  client TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS decisions_time ON decisions (time);
CREATE TABLE IF NOT EXISTS shadows (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, decision_id TEXT NOT NULL UNIQUE, time TEXT NOT NULL, version TEXT NOT NULL,
  digest TEXT NOT NULL, ok INTEGER NOT NULL, failure TEXT NOT NULL, score REAL, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS feedback (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, decision_id TEXT NOT NULL UNIQUE, time TEXT NOT NULL, label TEXT NOT NULL,
  observed_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
  url TEXT PRIMARY KEY, kind TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, rows INTEGER NOT NULL,
  since TEXT NOT NULL, until TEXT NOT NULL, digest TEXT NOT NULL, state TEXT NOT NULL);
"""
ADDED = {"model": "TEXT NOT NULL DEFAULT ''", "text": "TEXT", "text_digest": "TEXT NOT NULL DEFAULT ''"}
ADDED |= dict.fromkeys(("seal", "subject", "cipher", "kind", "rule", "client"), "TEXT NOT NULL DEFAULT ''")
ADDED |= dict.fromkeys(("masked", "review"), "INTEGER NOT NULL DEFAULT 0")  # columns that an earlier log lacks
SEALED = (
    "id", "run_id", "time", "status", "failure", "drawn", "weight", "answered_by", "model", "version", "digest",
    "label", "score", "threshold", "prompt_digest", "seconds", "model_seconds", "entities", "features",
    "text", "text_digest",
)  # fmt: skip
# Not part of the seals that were made before these columns were.
SEALED_WHERE_THERE = ("subject", "cipher", "masked", "kind", "rule", "review", "client")


class UnknownDecisionError(LookupError):
    """Feedback for a decision that is not in the log."""


class ConflictingFeedbackError(ValueError):
    """Another label was already given for this decision."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the active segment, with the tables and columns of this version; UserError where it cannot be opened."""
    try:
        connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(SCHEMA)
        there = {row["name"] for row in connection.execute("PRAGMA table_info(decisions)")}
        for name, kind in ADDED.items():
            if name not in there:
                connection.execute(f"ALTER TABLE decisions ADD COLUMN {name} {kind}")
    except sqlite3.Error as error:
        raise UserError(f"decision log {path}: cannot be opened ({error}); choose another --home") from error
    return connection


def seal(values: Mapping[str, Any]) -> str:
    """sha256 of what is written of a decision, as SQLite gives it back: numbers as floats, NaN as nothing."""
    names = [*SEALED, *(name for name in SEALED_WHERE_THERE if values.get(name))]
    plain = {}
    for name in names:
        value = values[name]
        if isinstance(value, (int, float)):
            value = float(value) if math.isfinite(value) else None
        plain[name] = value
    return value_digest(plain)


def now() -> str:
    """ISO 8601 UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new_id() -> str:
    """A decision's id: UUID version 7 (RFC 9562) as 32 hex digits; its first 12 are milliseconds since 1970.

    So the part that holds a decision is found by its id alone.
    """
    milliseconds = time.time_ns() // 1_000_000
    rest = int.from_bytes(_random(10)) >> 6
    value = milliseconds << 80 | 7 << 76 | (rest >> 62) << 64 | 2 << 62 | rest & ((1 << 62) - 1)
    return f"{value:032x}"


class _Random(threading.local):
    """Bytes of the system's generator, asked for many at once: each question to it is a system call."""

    waiting = b""


_drawn = _Random()


def _random(count: int) -> bytes:
    if len(_drawn.waiting) < count:
        _drawn.waiting = secrets.token_bytes(4096)
    found, _drawn.waiting = _drawn.waiting[:count], _drawn.waiting[count:]
    return found


def time_of(decision_id: str) -> str | None:
    """The time that an id tells, as `now` writes it; None where it is not one of `new_id`."""
    try:
        milliseconds = int(decision_id[:12], 16)
        if len(decision_id) != 32 or decision_id[12] != "7":
            return None
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, OSError):
        return None
