"""The append-only, hash-chained record of what happened: runs, verdicts, promotions.

An entry's hash covers its content and the hash before it, so an altered, missing or reordered entry shows.
Every entry has an idempotency key: appending the same key again returns the entry that is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from components.core.digest import canonical_json, value_digest
from components.core.errors import IntegrityError, TransientError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

GENESIS = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One entry; `time` is ISO 8601 UTC."""

    seq: int
    time: str
    kind: str
    key: str
    payload: dict[str, Any]
    previous: str
    hash: str


class Ledger:
    """A ledger behind a SQLAlchemy URL (SQLite embedded, Postgres in a cluster)."""

    def __init__(self, url: str) -> None:
        import sqlalchemy as sa

        self._sa = sa
        self._engine = sa.create_engine(url, connect_args={"timeout": 30} if url.startswith("sqlite") else {})
        self._table = sa.Table(
            "ledger",
            sa.MetaData(),
            sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("time", sa.String, nullable=False),
            sa.Column("kind", sa.String, nullable=False, index=True),
            sa.Column("key", sa.String, nullable=False, unique=True),
            sa.Column("payload", sa.Text, nullable=False),
            sa.Column("previous", sa.String, nullable=False),
            sa.Column("hash", sa.String, nullable=False),
        )
        with self._transaction() as connection:
            self._table.create(connection, checkfirst=True)

    def append(
        self,
        kind: str,
        key: str,
        payload: dict[str, Any],
        guard: Callable[[list[Entry]], None] | None = None,
    ) -> Entry:
        """Append an entry, or return the one that already has this key.

        Args:
            kind: what it is, for example run, promotion.
            key: idempotency key, made from input digests.
            payload: JSON values.
            guard: called inside the write transaction with all entries of this kind; raises to refuse.
        """
        with self._transaction() as connection:
            if found := self._select(connection, self._table.c.key == key):
                return found[0]
            if guard is not None:
                guard(self._select(connection, self._table.c.kind == kind))
            last = connection.execute(self._sa.select(self._table).order_by(self._table.c.seq.desc()).limit(1)).first()
            entry = _entry(
                seq=(last.seq + 1) if last else 1,
                time=datetime.now(UTC).isoformat(timespec="microseconds"),
                kind=kind,
                key=key,
                payload=payload,
                previous=last.hash if last else GENESIS,
            )
            row = dict(entry.__dict__) | {"payload": canonical_json(entry.payload)}
            connection.execute(self._table.insert().values(**row))
            return entry

    def entries(self, kind: str | None = None) -> list[Entry]:
        """All entries, or those of one kind, oldest first."""
        with self._engine.connect() as connection:
            return self._select(connection, self._table.c.kind == kind if kind else self._sa.true())

    def find(self, key: str) -> Entry | None:
        """The entry with this idempotency key."""
        with self._engine.connect() as connection:
            found = self._select(connection, self._table.c.key == key)
        return found[0] if found else None

    def verify(self) -> int:
        """Check the whole chain and return the number of entries; IntegrityError names the first bad one."""
        previous, expected = GENESIS, 1
        for entry in self.entries():
            if entry.seq != expected:
                raise IntegrityError(f"ledger: entry {expected} is missing (found {entry.seq})")
            if entry.previous != previous:
                raise IntegrityError(f"ledger: entry {entry.seq} does not follow entry {expected - 1}")
            if _hash(entry.__dict__) != entry.hash:
                raise IntegrityError(f"ledger: entry {entry.seq} ({entry.kind} {entry.key}) was altered")
            previous, expected = entry.hash, expected + 1
        return expected - 1

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def _select(self, connection: Connection, where: Any) -> list[Entry]:
        rows = connection.execute(self._sa.select(self._table).where(where).order_by(self._table.c.seq))
        return [_from_row(row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A write transaction that nobody else can interleave with."""
        try:
            with self._engine.connect() as connection:
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    yield connection
                else:
                    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7311)")
                    yield connection
                connection.commit()
        except self._sa.exc.OperationalError as error:
            raise TransientError(f"ledger {self._engine.url!r}: {error.orig}; run again") from error
        except self._sa.exc.DatabaseError as error:
            raise IntegrityError(f"ledger {self._engine.url!r}: {error.orig}; restore it from a backup") from error


def _entry(**values: Any) -> Entry:
    return Entry(**values, hash=_hash(values))


def _hash(values: dict[str, Any]) -> str:
    return value_digest({name: values[name] for name in ("seq", "time", "kind", "key", "payload", "previous")})


def _from_row(row: Row[Any]) -> Entry:
    try:
        payload = json.loads(row.payload)
    except ValueError as error:
        raise IntegrityError(f"ledger: entry {row.seq} ({row.kind} {row.key}) was altered") from error
    return Entry(row.seq, row.time, row.kind, row.key, payload, row.previous, row.hash)
