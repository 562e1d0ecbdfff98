"""Newest values in one SQLite file: embedded, for a laptop and for a published folder."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path

from components.core.errors import IntegrityError, TransientError, UserError
from components.features.latest.entries import Entry, Written

ROWS_PER_TRANSACTION = 50_000
WAIT_SECONDS = 30.0
TABLES = """
CREATE TABLE IF NOT EXISTS latest (
    view TEXT NOT NULL, key BLOB NOT NULL, event INTEGER NOT NULL, created INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (view, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks (view TEXT PRIMARY KEY, mark TEXT NOT NULL) WITHOUT ROWID;
"""
WRITE = """
INSERT INTO latest VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET event = excluded.event, created = excluded.created, body = excluded.body
WHERE (excluded.event, excluded.created) >= (latest.event, latest.created)
"""
READ = "SELECT {at}, event, created, body FROM latest WHERE view = ? AND key = ?"
KEYS_PER_READ = 100


class SqliteLatest:
    """A LatestStore in a file."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        """Open the file, made where absent.

        Args:
            path: the file.
            read_only: it is published and never changes: nothing is created beside it.

        Raises:
            UserError: it cannot be opened, or is absent though read only.
            IntegrityError: it is no such store.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            if read_only:
                uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
                self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
                self._connection.execute("SELECT 1 FROM latest LIMIT 1").fetchall()
            else:
                self._connection = sqlite3.connect(path, timeout=WAIT_SECONDS, check_same_thread=False)
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.executescript(TABLES)
        except sqlite3.OperationalError as error:
            raise UserError(f"online store {path}: cannot be opened ({error}); materialize it first") from error
        except sqlite3.DatabaseError as error:
            raise IntegrityError(f"online store {path}: is damaged ({error}); remove it and materialize") from error

    def write(self, table: str, entries: Iterable[Written]) -> int:
        """Write entries in transactions of bounded size."""
        count = 0
        rest = iter(entries)
        while chunk := list(islice(rest, ROWS_PER_TRANSACTION)):
            with self._told(), self._connection:
                count += self._connection.executemany(WRITE, ((table, *entry) for entry in chunk)).rowcount
        return count

    def read(self, asked: Sequence[tuple[str, bytes]]) -> list[Entry | None]:
        """The entry of each (table, key), all of one moment where there are not more than a hundred."""
        found: list[Entry | None] = [None] * len(asked)
        for start in range(0, len(asked), KEYS_PER_READ):
            part = asked[start : start + KEYS_PER_READ]
            given = [value for pair in part for value in pair]
            with self._lock:
                try:
                    rows = self._connection.execute(_select(len(part)), given).fetchall()
                except sqlite3.Error as error:
                    raise self._named(error) from error
            for at, event, created, body in rows:
                found[start + at] = Entry(event, created, body)
        return found

    def mark(self, table: str) -> str:
        """How far a table is written."""
        with self._told():
            row = self._connection.execute("SELECT mark FROM marks WHERE view = ?", (table,)).fetchone()
        return row[0] if row else ""

    def set_mark(self, table: str, mark: str) -> None:
        """Keep how far a table is written."""
        with self._told(), self._connection:
            self._connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (table, mark))

    def drop(self, table: str) -> None:
        """Forget a table."""
        with self._told(), self._connection:
            self._connection.execute("DELETE FROM latest WHERE view = ?", (table,))
            self._connection.execute("DELETE FROM marks WHERE view = ?", (table,))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise self._named(error) from error

    def _named(self, error: sqlite3.Error) -> Exception:
        """The error as one of ours, where it is of the store."""
        if isinstance(error, sqlite3.OperationalError):
            return TransientError(f"online store {self._path}: {error}; run again when its writer is done")
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.ProgrammingError):
            return IntegrityError(f"online store {self._path}: is damaged ({error}); remove it and materialize")
        return error


@lru_cache(maxsize=KEYS_PER_READ)
def _select(count: int) -> str:
    """One statement for many keys, as much faster than one a key as a call costs more than a look-up."""
    return " UNION ALL ".join(READ.format(at=at) for at in range(count))


def settle(path: Path) -> None:
    """Make a written store one file, fit to be published: no log beside it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
