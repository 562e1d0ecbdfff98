"""Writing the log: a bounded queue to one writer thread, off the answer's path.

Records wait for GATHER_SECONDS at most before they are committed, many at once: SIGTERM loses none (`close` writes what
is queued), SIGKILL those of that moment. JSON, seals and encryption are made in the writer thread too. Each decision
carries a seal, the digest of all that is written of it, so that a row that was altered later shows.

A batch that the disk does not take is kept and tried again, and meanwhile the log is not healthy; a record that no
disk would take is set aside with a line in the service's log, so that it holds up no other.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson

from components.core.errors import PilotlineError, TransientError, one_line
from components.serving.decision_log.keeping import Keeping
from components.serving.decision_log.parts import Parts, is_moved
from components.serving.decision_log.schema import (
    ConflictingFeedbackError,
    UnknownDecisionError,
    connect,
    now,
    seal,
)

QUEUE_LIMIT = 20_000  # records
QUEUE_BYTES = 64 << 20  # of texts
BATCH = 500
GATHER_SECONDS = 0.05
LATE_SECONDS = 1.0  # that a record may wait for the disk before nothing more is answered
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0  # before a batch that could not be written is tried again
LOOK_SECONDS = 1.0  # at the file, whether it is still the one that is written
Item = tuple[str, dict[str, Any], Future[None] | None]  # table, values, who waits for it

logger = logging.getLogger(__name__)


class DecisionLog:
    """Appends through a writer thread; `close` writes what is queued."""

    def __init__(
        self,
        path: Path,
        run_id: str,
        keeping: Keeping | None = None,
        *,
        store: str = "",
        part_seconds: float = 0.0,
        days: int = 0,
    ) -> None:
        """Open or make the active segment.

        Args:
            keeping: what is kept of a request; None writes values as they are given.
            store: folder or fsspec URL of the parts ("" = `decisions` beside the file).
            part_seconds: how often settled rows move to parts; 0 leaves them where they are.
            days: what is older is deleted; 0 keeps everything.

        Raises:
            UserError: the file cannot be opened.
        """
        self.path, self.run_id, self.error = path, run_id, ""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._keeping = keeping
        self._queue: queue.Queue[Item | None] = queue.Queue(QUEUE_LIMIT)
        self._bytes, self._counting = 0, threading.Lock()
        self._connection = connect(path)
        self._inode, self._looked = path.stat().st_ino, time.monotonic()
        self._behind: float | None = None  # since when the oldest record that is not written yet is being written
        self._writer = threading.Thread(target=self._write, name="decision-log", daemon=True)
        self._closing = threading.Event()
        self._mover: threading.Thread | None = None
        if part_seconds:
            told = (store or str(path.with_name("decisions")), part_seconds, days)
            self._mover = threading.Thread(target=self._move, args=told, name="decision-parts", daemon=True)
            self._mover.start()
        self._writer.start()

    @property
    def healthy(self) -> bool:
        """Whether records are being written; where not, nothing may be answered."""
        room = not self._queue.full() and self._bytes < QUEUE_BYTES
        return not self.error and self._writer.is_alive() and room

    @property
    def late(self) -> bool:
        """Whether a record has waited for the disk for longer than may be lost."""
        return (since := self._behind) is not None and time.monotonic() - since > LATE_SECONDS

    @property
    def waiting(self) -> int:
        """Records not written yet."""
        return self._queue.qsize()

    def decision(self, **values: Any) -> None:
        """Queue a decision; mappings become JSON, and of `text` is kept what the policy says.

        Raises:
            TransientError: too many records, or too much text, wait for the disk.
        """
        about = {"model": "", "text": None, "text_digest": "", "run_id": self.run_id}
        self._put("decisions", about | values)

    def shadow(self, **values: Any) -> None:
        """Queue the canary's answer to a mirrored decision; TransientError as `decision`."""
        self._put("shadows", values)

    def feedback(self, **values: Any) -> Future[None]:
        """Queue a label; the future fails with UnknownDecisionError or ConflictingFeedbackError."""
        done: Future[None] = Future()
        self._put("feedback", values, done)
        return done

    def close(self, seconds: float = 10.0) -> None:
        """Write what is queued and close the file; TransientError where the disk does not take it in time."""
        self._closing.set()
        with suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._writer.join(seconds)
        if self._mover is not None:
            self._mover.join(seconds)
        if self._writer.is_alive():
            raise TransientError(f"decision log {self.path}: {self.waiting} records could not be written")

    def _put(self, table: str, values: dict[str, Any], done: Future[None] | None = None) -> None:
        size = len(values.get("text") or "")
        try:
            if self._bytes + size > QUEUE_BYTES:
                raise queue.Full
            self._queue.put_nowait((table, values | {"time": now()}, done))
        except queue.Full as error:
            raise TransientError(
                f"decision log {self.path}: {self.waiting} records are waiting for the disk"
            ) from error
        with self._counting:
            self._bytes += size

    def _write(self) -> None:
        try:
            last = False
            while not last and (item := self._queue.get()) is not None:
                self._behind = time.monotonic()
                self._closing.wait(GATHER_SECONDS)
                batch = [item]
                while len(batch) < BATCH and not self._queue.empty():
                    following = self._queue.get()
                    if following is None:
                        last = True
                        break
                    batch.append(following)
                self._persist(batch)
                self._behind = None
        finally:
            self._connection.close()

    def _persist(self, batch: list[Item]) -> None:
        """Write the batch, however often it takes; who waits for a label to be written is told of the first failure."""
        size = sum(len(values.get("text") or "") for _, values, _ in batch)
        wait = FIRST_WAIT_SECONDS
        while batch and not self._commit(batch):
            batch = [item for item in batch if item[2] is None]
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        self.error = ""
        with self._counting:
            self._bytes -= size

    def _commit(self, batch: list[Item]) -> bool:
        """One transaction; whether it went through."""
        outcomes: list[tuple[Future[None], Exception | None]] = []
        try:
            self._follow_file()
            rows = [(table, row, done) for table, values, done in batch if (row := self._made(table, values, done))]
            with self._connection as connection:
                connection.execute("BEGIN IMMEDIATE")
                for table, row, done in rows:
                    if done is not None:
                        outcomes.append((done, _insert_feedback(connection, row)))
                    else:
                        _insert_or_set_aside(connection, table, row)
        except Exception as error:
            if not self.error:
                logger.exception("decision log")
            self.error = f"decision log {self.path}: {one_line(error)}"
            outcomes = [(done, TransientError(self.error)) for _, _, done in batch if done is not None]
            _tell(outcomes)
            return False
        _tell(outcomes)
        return True

    def _follow_file(self) -> None:
        """Begin a new file where the one that is written was deleted or moved: nobody would find its rows."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            here = self.path.stat().st_ino
        except FileNotFoundError:
            here = -1
        if here != self._inode:
            logger.error("decision log %s: was deleted or replaced; a new one is begun", self.path)
            fresh = connect(self.path)
            self._connection.close()
            self._connection, self._inode = fresh, self.path.stat().st_ino

    def _made(self, table: str, values: dict[str, Any], done: Future[None] | None) -> dict[str, Any] | None:
        """The row; None for values that cannot be written at all, whatever the disk."""
        try:
            return self._row(table, values)
        except (TypeError, ValueError, KeyError) as error:
            logger.error("decision log: record %s set aside: %s", values.get("id", "?"), one_line(error))
            if done is not None:
                done.set_exception(error)
            return None

    def _row(self, table: str, values: dict[str, Any]) -> dict[str, Any]:
        if table != "decisions":
            return values
        kept = self._keeping.applied(values) if self._keeping else values
        kept = kept | {name: orjson.dumps(kept[name]).decode() for name in ("entities", "features")}
        return kept | {"seal": seal(kept)}

    def _move(self, store: str, every: float, days: int) -> None:
        started = time.monotonic()
        while not self._closing.wait(max(0.0, started + every - time.monotonic())):
            started = time.monotonic()
            try:
                with closing(connect(self.path)) as connection:
                    parts = Parts(connection, store)
                    parts.move()
                    if days:
                        parts.drop(days)
            except (PilotlineError, sqlite3.Error) as error:  # rows stay where they are; the next round tries
                logger.error("decision log parts: %s", one_line(error))


def _tell(outcomes: list[tuple[Future[None], Exception | None]]) -> None:
    for done, failure in outcomes:
        done.set_exception(failure) if failure else done.set_result(None)


def _insert_or_set_aside(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    """A row that the table itself refuses (its id is there already, a value of a wrong kind) holds up no other."""
    try:
        _insert(connection, table, values)
    except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError) as error:
        logger.error("decision log: record %s set aside: %s", values.get("id", "?"), one_line(error))


def _insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    # The names are those of this package's calls.
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values()))  # noqa: S608


def _insert_feedback(connection: sqlite3.Connection, values: dict[str, Any]) -> Exception | None:
    wanted = (values["decision_id"],)
    before = connection.execute("SELECT label FROM feedback WHERE decision_id = ?", wanted).fetchone()
    if before is not None:
        return None if before["label"] == values["label"] else ConflictingFeedbackError(before["label"])
    there = connection.execute("SELECT 1 FROM decisions WHERE id = ?", wanted).fetchone()
    if there is None and not is_moved(connection, values["decision_id"]):
        return UnknownDecisionError(values["decision_id"])
    _insert(connection, "feedback", values)
    return None
