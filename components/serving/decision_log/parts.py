"""Parquet parts: older rows of the active segment, moved to fsspec storage in order, and dropped when they are old.

    decisions/date=2026-01-31/000000000001-000000020000.parquet     decisions with their shadows
    feedback/date=2026-01-31/...                                    labels; they stay in the active segment as well

A part is named by the sequence numbers it holds and noted before it is written, so that a move that was cut short is
made again to the same file; rows leave the active segment in the transaction that notes the part as whole. In DuckDB:
`SELECT * FROM read_parquet('decisions/*/*.parquet')`.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError, TransientError, one_line
from components.serving.decision_log.keys import drop_unused
from components.serving.decision_log.schema import time_of

PART_ROWS, PART_BYTES = 20_000, 64 << 20
SETTLED_SECONDS = 120.0  # a row this old has its shadow, if it ever gets one
DECISIONS, FEEDBACK = "decisions", "feedback"
WRITING, WHOLE, LEAVING = "writing", "whole", "leaving"
TEXT = (
    "id", "run_id", "time", "status", "failure", "drawn", "answered_by", "model", "version", "digest", "label",
    "prompt_digest", "entities", "features", "text", "text_digest", "subject", "cipher", "kind", "seal",
    "rule", "client", "shadow_version", "shadow_failure",
)  # fmt: skip
NUMBERS = ("weight", "score", "threshold", "seconds", "model_seconds", "shadow_score", "shadow_seconds")
WHOLE_NUMBERS = ("seq", "masked", "shadow_ok", "review")
COLUMNS = {
    DECISIONS: (*WHOLE_NUMBERS, *TEXT, *NUMBERS),
    FEEDBACK: ("seq", "decision_id", "time", "label", "observed_at"),
}
ROWS = {
    DECISIONS: """SELECT d.*, s.ok AS shadow_ok, s.score AS shadow_score, s.seconds AS shadow_seconds,
        s.version AS shadow_version, s.failure AS shadow_failure
        FROM decisions d LEFT JOIN shadows s ON s.decision_id = d.id
        WHERE d.seq >= ? AND d.seq <= ? AND d.time < ? ORDER BY d.seq""",
    FEEDBACK: "SELECT * FROM feedback WHERE seq >= ? AND seq <= ? AND time < ? ORDER BY seq",
}

MOVED_SHADOWS = "DELETE FROM shadows WHERE decision_id IN (SELECT id FROM decisions WHERE seq >= ? AND seq <= ?)"


class Parts:
    """Moves rows of one active segment to a store."""

    def __init__(self, connection: sqlite3.Connection, store: str) -> None:
        """`store`: a folder or an fsspec URL; UserError and TransientError come with the first write."""
        self._connection, self._store = connection, store.rstrip("/")

    def move(self, settled_seconds: float = SETTLED_SECONDS) -> int:
        """Write all rows older than this to parts; how many parts were written.

        Raises:
            TransientError: the store cannot be written; what was not moved stays where it is.
        """
        with self._alone() as alone:
            return self._move(settled_seconds) if alone else 0

    def _move(self, settled_seconds: float) -> int:
        before = (datetime.now(UTC) - timedelta(seconds=settled_seconds)).isoformat(timespec="microseconds")
        written = 0
        for part in self._all("state = ?", WRITING):  # cut short by a crash
            written += self._write(part["kind"], part["first"], part["last"], before="9", url=part["url"])
        for kind in (DECISIONS, FEEDBACK):
            while self._write(kind, self._next(kind), (1 << 62), before):
                written += 1
        return written

    def drop(self, days: int) -> int:
        """Delete what is older than so many days: parts whose youngest row is, rows of the active segment, and the keys
        of subjects of whom nothing is left."""
        with self._alone() as alone:
            return self._drop(days) if alone else 0

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process moves rows of this log: two services of one home share it for a while."""
        path = self._path
        with path.with_name(f"{path.name}.parts.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _drop(self, days: int) -> int:
        until = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="microseconds")
        self._change("UPDATE parts SET state = ? WHERE state = ? AND until < ?", LEAVING, WHOLE, until)
        leaving = self._all("state = ?", LEAVING)
        for part in leaving:
            _delete(part["url"])
            self._change("DELETE FROM parts WHERE url = ?", part["url"])
        for table in ("decisions", "shadows", "feedback"):
            self._change(f"DELETE FROM {table} WHERE time < ?", until)  # noqa: S608 - names of this package
        drop_unused(self._path.parent, min(until, self._oldest()))
        return len(leaving)

    @property
    def _path(self) -> Path:
        """Of the active segment."""
        return Path(self._connection.execute("PRAGMA database_list").fetchone()["file"])

    def _oldest(self) -> str:
        """Time of the oldest decision that is left, in a part or not; "9" where there is none."""
        asked = "SELECT MIN(since) FROM parts WHERE kind = ? UNION ALL SELECT MIN(time) FROM decisions"
        return min((row[0] for row in self._connection.execute(asked, (DECISIONS,)) if row[0]), default="9")

    def _next(self, kind: str) -> int:
        found = self._connection.execute("SELECT COALESCE(MAX(last), 0) + 1 FROM parts WHERE kind = ?", (kind,))
        return int(found.fetchone()[0])

    def _write(self, kind: str, first: int, last: int, before: str, url: str = "") -> int:
        rows = self._rows(kind, first, last, before)
        if not rows:
            if url:
                self._change("DELETE FROM parts WHERE url = ? AND state = ?", url, WRITING)
            return 0
        first, last = int(rows[0]["seq"]), int(rows[-1]["seq"])
        url = url or f"{self._store}/{kind}/date={rows[0]['time'][:10]}/{first:012d}-{last:012d}.parquet"
        about = (kind, first, last, len(rows), rows[0]["time"], max(row["time"] for row in rows))
        self._change("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, '', ?)", url, *about, WRITING)
        content = _parquet(kind, rows)
        _put(url, content)
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            noted = (WHOLE, hashlib.sha256(content).hexdigest(), url)
            connection.execute("UPDATE parts SET state = ?, digest = ? WHERE url = ?", noted)
            if kind == DECISIONS:
                connection.execute(MOVED_SHADOWS, (first, last))
                connection.execute("DELETE FROM decisions WHERE seq >= ? AND seq <= ?", (first, last))
        return 1

    def _rows(self, kind: str, first: int, last: int, before: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        size = 0
        for row in self._connection.execute(ROWS[kind], (first, last, before)):
            if rows and row["time"][:10] != rows[0]["time"][:10]:
                break  # a part holds one day
            rows.append(dict(row))
            size += sum(len(value) for value in rows[-1].values() if isinstance(value, str))
            if len(rows) >= PART_ROWS or size >= PART_BYTES:
                break
        return rows

    def _all(self, where: str, *values: Any) -> list[dict[str, Any]]:
        found = self._connection.execute(f"SELECT * FROM parts WHERE {where} ORDER BY first", values)  # noqa: S608
        return [dict(row) for row in found]

    def _change(self, sql: str, *values: Any) -> None:
        with self._connection as connection:
            connection.execute(sql, values)


def rows_of_parts(
    connection: sqlite3.Connection, *, decision_id: str = "", since: str = "", until: str = "9"
) -> list[dict[str, Any]]:
    """Decisions that were moved: one, or those in [since, until); [] where there are none.

    Raises:
        IntegrityError: a part is gone or its bytes are not those that were written.
    """
    where, values = "until >= ? AND since < ?", [since, until]
    if decision_id and (told := time_of(decision_id)):
        near = datetime.fromisoformat(told)
        values = [
            (near - timedelta(hours=1)).isoformat(timespec="microseconds"),
            (near + timedelta(hours=1)).isoformat(timespec="microseconds"),
        ]
    sql = f"SELECT * FROM parts WHERE kind = ? AND state = ? AND {where} ORDER BY first"  # noqa: S608
    found: list[dict[str, Any]] = []
    for part in connection.execute(sql, (DECISIONS, WHOLE, *values)).fetchall():
        rows = _read(part["url"], part["digest"], decision_id)
        found += rows if decision_id else [row for row in rows if since <= row["time"] < until]
    return found


def is_moved(connection: sqlite3.Connection, decision_id: str) -> bool:
    """Whether a part holds the decision; asked of ids that tell their time only, so that a guess reads no old parts."""
    return time_of(decision_id) is not None and bool(rows_of_parts(connection, decision_id=decision_id))


def _parquet(kind: str, rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = dict.fromkeys(NUMBERS, pa.float64()) | dict.fromkeys(WHOLE_NUMBERS, pa.int64())
    columns = COLUMNS[kind]
    schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
    table = pa.table({name: [row[name] for row in rows] for name in columns}, schema=schema)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=2_000)
    return buffer.getvalue()


def _read(url: str, digest: str, decision_id: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    filesystem, path = _place(url)
    try:
        content = filesystem.cat_file(path)
    except FileNotFoundError as error:
        raise IntegrityError(f"{url}: a part of the decision log is gone; restore it") from error
    except OSError as error:
        raise TransientError(f"{url}: cannot be read ({one_line(error)})") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise IntegrityError(f"{url}: not the bytes that the decision log wrote; restore it")
    filters = [("id", "=", decision_id)] if decision_id else None
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(content), filters=filters).to_pylist()
    return found


def _put(url: str, content: bytes) -> None:
    """Whole or not at all: a rename on a disk, one request at an object store."""
    filesystem, path = _place(url)
    try:
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        if "file" in (filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)):
            staging = Path(path).with_name(f".{Path(path).name}.tmp")
            with staging.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            staging.replace(path)
        else:
            filesystem.pipe_file(path, content)
    except OSError as error:
        raise TransientError(f"{url}: a part of the decision log cannot be written ({one_line(error)})") from error


def _delete(url: str) -> None:
    filesystem, path = _place(url)
    try:
        if filesystem.exists(path):
            filesystem.rm_file(path)
    except OSError as error:
        raise TransientError(f"{url}: a part of the decision log cannot be deleted ({one_line(error)})") from error


def _place(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(url)
    return filesystem, str(path)


__all__ = ["DECISIONS", "FEEDBACK", "Parts", "is_moved", "rows_of_parts"]
