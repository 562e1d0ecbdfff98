"""The decision log: every answer with its request, version and true status, in SQLite under the home.

Writing never adds to a request's time: records go through a bounded queue to one writer thread. Of the text only the
digest of the prompt's token ids is kept, unless `serving.keep_text` asks for its sha256 or for all of it. Each decision
carries a seal, the digest of all that is written of it, so that a row that was altered later shows.
"""

from __future__ import annotations

import json
import math
import queue
import sqlite3
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components.core.digest import value_digest
from components.core.errors import TransientError, UserError

DECISION_LOG = "decisions.db"
QUEUE_LIMIT = 20_000
BATCH = 500
Item = tuple[str, dict[str, Any], Future[None] | None]  # table, values, who waits for it
SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run_id TEXT NOT NULL, time TEXT NOT NULL,
  status TEXT NOT NULL, failure TEXT NOT NULL, drawn TEXT NOT NULL, weight REAL NOT NULL, answered_by TEXT NOT NULL,
  version TEXT NOT NULL, digest TEXT NOT NULL, label TEXT, score REAL, threshold REAL, prompt_digest TEXT NOT NULL,
  seconds REAL NOT NULL, model_seconds REAL, entities TEXT NOT NULL, features TEXT NOT NULL,
  model TEXT NOT NULL DEFAULT '', text TEXT, text_digest TEXT NOT NULL DEFAULT '', seal TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS decisions_time ON decisions (time);
CREATE TABLE IF NOT EXISTS shadows (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, decision_id TEXT NOT NULL UNIQUE, time TEXT NOT NULL, version TEXT NOT NULL,
  digest TEXT NOT NULL, ok INTEGER NOT NULL, failure TEXT NOT NULL, score REAL, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS feedback (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, decision_id TEXT NOT NULL UNIQUE, time TEXT NOT NULL, label TEXT NOT NULL,
  observed_at TEXT NOT NULL);
"""
ADDED = {"model": "TEXT NOT NULL DEFAULT ''", "text": "TEXT", "text_digest": "TEXT NOT NULL DEFAULT ''"}
ADDED |= {"seal": "TEXT NOT NULL DEFAULT ''"}  # columns that a log of an earlier version lacks
SEALED = (
    "id", "run_id", "time", "status", "failure", "drawn", "weight", "answered_by", "model", "version", "digest",
    "label", "score", "threshold", "prompt_digest", "seconds", "model_seconds", "entities", "features",
    "text", "text_digest",
)  # fmt: skip


class UnknownDecisionError(LookupError):
    """Feedback for a decision that is not in the log."""


class ConflictingFeedbackError(ValueError):
    """Another label was already given for this decision."""


class DecisionLog:
    """Appends through a writer thread; `close` writes what is queued."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.run_id = path, run_id
        self.error = ""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._queue: queue.Queue[Item | None] = queue.Queue(QUEUE_LIMIT)
        self._connection = _connect(path)
        self._writer = threading.Thread(target=self._write, name="decision-log", daemon=True)
        self._writer.start()

    @property
    def healthy(self) -> bool:
        """Whether records are being written; where not, nothing may be answered."""
        return not self.error and self._writer.is_alive() and not self._queue.full()

    @property
    def waiting(self) -> int:
        """Records not written yet."""
        return self._queue.qsize()

    def decision(self, **values: Any) -> None:
        """Queue a decision; mappings become JSON."""
        values |= {"entities": json.dumps(values["entities"]), "features": json.dumps(values["features"])}
        about = {"model": "", "text": None, "text_digest": "", "run_id": self.run_id}
        self._put("decisions", about | values)

    def shadow(self, **values: Any) -> None:
        """Queue the canary's answer to a mirrored decision."""
        self._put("shadows", values)

    def feedback(self, **values: Any) -> Future[None]:
        """Queue a label; the future fails with UnknownDecisionError or ConflictingFeedbackError."""
        done: Future[None] = Future()
        self._put("feedback", values, done)
        return done

    def close(self, seconds: float = 10.0) -> None:
        """Write what is queued and close the file."""
        self._queue.put(None)
        self._writer.join(seconds)

    def _put(self, table: str, values: dict[str, Any], done: Future[None] | None = None) -> None:
        try:
            self._queue.put_nowait((table, values | {"time": now()}, done))
        except queue.Full as error:
            raise TransientError(f"decision log {self.path}: {QUEUE_LIMIT} records are waiting for the disk") from error

    def _write(self) -> None:
        with closing(self._connection) as connection:
            while (item := self._queue.get()) is not None:
                batch, last = [item], False
                while len(batch) < BATCH and not self._queue.empty():
                    following = self._queue.get()
                    if following is None:
                        last = True
                        break
                    batch.append(following)
                self._commit(connection, batch)
                if last:
                    return

    def _commit(self, connection: sqlite3.Connection, batch: list[Item]) -> None:
        outcomes: list[tuple[Future[None], Exception | None]] = []
        try:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for table, values, done in batch:
                    if done is None:
                        sealed = {"seal": _seal(values)} if table == "decisions" else {}
                        _insert(connection, table, values | sealed)
                    else:
                        outcomes.append((done, _insert_feedback(connection, values)))
        except sqlite3.Error as error:
            self.error = f"decision log {self.path}: {error}"
            outcomes = [(done, TransientError(self.error)) for _, _, done in batch if done is not None]
        for done, failure in outcomes:
            done.set_exception(failure) if failure else done.set_result(None)


def now() -> str:
    """ISO 8601 UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def find_decision(path: Path, decision_id: str) -> dict[str, Any] | None:
    """One decision with its shadow and feedback, or None; `intact` says whether its seal holds."""
    found = _select(path, "WHERE d.id = ?", (decision_id,))
    return found[0] if found else None


def read_decisions(path: Path, run_id: str = "", since: str = "", until: str = "9") -> list[dict[str, Any]]:
    """Decisions of a run ("" = all) in [since, until) (ISO 8601 UTC), in the order they were answered."""
    where = "WHERE (? = '' OR d.run_id = ?) AND d.time >= ? AND d.time < ?"
    return _select(path, where, (run_id, run_id, since, until))


def newest_shadow(path: Path) -> int:
    """Sequence number of the newest shadow record, 0 where there is none."""
    with closing(_connect(path)) as connection:
        return int(connection.execute("SELECT COALESCE(MAX(seq), 0) FROM shadows").fetchone()[0])


def shadows_after(path: Path, seq: int) -> list[dict[str, Any]]:
    """Shadow records written after the one with this sequence number, oldest first."""
    with closing(_connect(path)) as connection:
        return [dict(row) for row in connection.execute("SELECT * FROM shadows WHERE seq > ? ORDER BY seq", (seq,))]


def _select(path: Path, where: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(f"decision log {path}: no decisions were made in this home yet")
    query = f"""SELECT d.*, s.ok AS shadow_ok, s.score AS shadow_score, s.seconds AS shadow_seconds,
        s.version AS shadow_version, f.label AS feedback_label, f.observed_at AS feedback_observed_at
        FROM decisions d LEFT JOIN shadows s ON s.decision_id = d.id LEFT JOIN feedback f ON f.decision_id = d.id
        {where} ORDER BY d.seq"""  # noqa: S608 - `where` is one of two constants of this module
    with closing(_connect(path)) as connection:
        rows = [dict(row) for row in connection.execute(query, values)]
    for row in rows:
        row["intact"] = row.pop("seal") == _seal(row)
        row["entities"], row["features"] = json.loads(row["entities"]), json.loads(row["features"])
    return rows


def _connect(path: Path) -> sqlite3.Connection:
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


def _seal(values: dict[str, Any]) -> str:
    """sha256 of what is written of a decision, as SQLite gives it back: numbers as floats, NaN as nothing."""
    plain = {}
    for name in SEALED:
        value = values[name]
        if isinstance(value, (int, float)):
            value = float(value) if math.isfinite(value) else None
        plain[name] = value
    return value_digest(plain)


def _insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    # The names are those of this package's calls.
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values()))  # noqa: S608


def _insert_feedback(connection: sqlite3.Connection, values: dict[str, Any]) -> Exception | None:
    wanted = (values["decision_id"],)
    if connection.execute("SELECT 1 FROM decisions WHERE id = ?", wanted).fetchone() is None:
        return UnknownDecisionError(values["decision_id"])
    before = connection.execute("SELECT label FROM feedback WHERE decision_id = ?", wanted).fetchone()
    if before is None:
        _insert(connection, "feedback", values)
        return None
    return None if before["label"] == values["label"] else ConflictingFeedbackError(before["label"])
