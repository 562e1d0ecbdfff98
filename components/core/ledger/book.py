"""The ledger behind a SQLAlchemy URL: appends in a transaction that nobody interleaves with, reads, verifies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.digest import canonical_json
from components.core.errors import IntegrityError, PolicyRefusal, TransientError, UserError
from components.core.ledger.chain import Anchor, walk
from components.core.ledger.entries import COLUMNS, GENESIS, Entry, entry_hash, from_row
from components.core.ledger.leases import HeldError, Lease, check, give_back, held_by, new_holder, renew, take

if TYPE_CHECKING:
    from sqlalchemy import Connection

LEASE_SECONDS, LEASE_WAIT_SECONDS, POLL_SECONDS = 30.0, 60.0, 0.02
STATEMENT_SECONDS = 30
WRITERS = 7311  # the advisory lock that makes Postgres's writers take turns
ROWS_AT_ONCE = 10_000
UNDECODABLE = "Could not decode to UTF-8"  # what sqlite3 says of it
OWNERS = (
    "SELECT tableowner AS owner, pg_has_role(current_user, tableowner, 'MEMBER') AS mine FROM pg_tables "
    "WHERE to_regclass(quote_ident(schemaname) || '.' || quote_ident(tablename)) = to_regclass('ledger')"
)
NOT_ALLOWED = "42501"  # Postgres: insufficient privilege
POSTGRES_CLOCK = "SELECT extract(epoch FROM clock_timestamp())"


class UndecodableError(IntegrityError):
    """A text column holds bytes that are no text."""


class Ledger:
    """Entries and leases behind a SQLAlchemy URL (SQLite embedded, Postgres in a cluster).

    Args:
        url: where.
        clock: seconds since 1970; default the database's own clock.
        existing: open what is there and make nothing; IntegrityError where there is no ledger.

    Raises:
        UserError: the URL is none, or of a database whose driver is not installed.
    """

    def __init__(self, url: str, clock: Callable[[], float] | None = None, existing: bool = False) -> None:
        import sqlalchemy as sa

        from components.core.ledger import schema

        self._sa, self._clock, self._table = sa, clock, schema.LEDGER
        try:
            self._engine = sa.create_engine(url, connect_args=_bounds(url), pool_pre_ping=not url.startswith("sqlite"))
        except (sa.exc.ArgumentError, ImportError) as error:  # not shown: it may hold a password
            raise UserError(
                "ledger: its URL is none that this machine can open; write sqlite:///FILE or "
                "postgresql+psycopg://USER@HOST/NAME in $PILOTLINE_LEDGER_URL"
            ) from error
        if existing and _is_absent(self._engine.url):
            raise IntegrityError(f"ledger {self._engine.url!r}: is not there; restore it from a backup")
        with self._reading() as connection:
            made = schema.is_made(connection)
            if existing and not sa.inspect(connection).has_table(self._table.name):
                raise IntegrityError(f"ledger {self._engine.url!r}: holds no entries' table; restore it from a backup")
        if not made and not existing:
            with self._transaction() as connection:
                schema.make(connection)

    def append(
        self,
        kind: str,
        key: str,
        payload: dict[str, Any],
        guard: Callable[[list[Entry]], None] | None = None,
        fence: Lease | None = None,
    ) -> Entry:
        """Append an entry, or return the one that already has this key.

        Args:
            kind: what it is, for example run, promotion.
            key: idempotency key, made from input digests.
            payload: JSON values.
            guard: called inside the write transaction with all entries of this kind; raises to refuse.
            fence: the lease under which the writer decided; one that was taken over meanwhile is refused.

        Raises:
            TransientError: the database does not answer, or the lease is stale; nothing was written.
        """
        with self._transaction() as connection:
            if fence is not None:
                check(connection, fence)
            if found := self._select(connection, self._table.c.key == key):
                return found[0]
            if guard is not None:
                guard(self._select(connection, self._table.c.kind == kind))
            last = connection.execute(self._sa.select(self._table).order_by(self._table.c.seq.desc()).limit(1)).first()
            values: dict[str, Any] = {
                "seq": (last.seq + 1) if last else 1,
                "time": _after(self._now(connection), last.time if last else ""),
                "kind": kind,
                "key": key,
                "payload": canonical_json(payload),
                "previous": last.hash if last else GENESIS,
            }
            values["hash"] = entry_hash(**values)
            connection.execute(self._table.insert().values(**values))
            return Entry(**(values | {"payload": payload}))

    def entries(self, kind: str | None = None) -> list[Entry]:
        """All entries, or those of one kind, oldest first."""
        with self._reading() as connection:
            return self._select(connection, self._table.c.kind == kind if kind else self._sa.true())

    def find(self, key: str) -> Entry | None:
        """The entry with this idempotency key."""
        with self._reading() as connection:
            found = self._select(connection, self._table.c.key == key)
        return found[0] if found else None

    def verify(self, anchors: Sequence[Anchor] = ()) -> int:
        """Check the whole chain and return the number of entries; IntegrityError names the first bad one.

        Args:
            anchors: what others saw of it; only these show that its end was cut off or that all was written anew.
        """
        try:
            return self._walk(anchors)
        except UndecodableError:
            return self._walk(anchors, lenient=True)  # slower, and names the entry

    def _walk(self, anchors: Sequence[Anchor], lenient: bool = False) -> int:
        with self._reading() as connection, _any_bytes(connection, lenient):
            reading = self._sa.select(*(self._table.c[name] for name in COLUMNS)).order_by(self._table.c.seq)
            streaming = connection.execution_options(stream_results=True, max_row_buffer=ROWS_AT_ONCE)
            with streaming.execute(reading) as found:
                return walk((row for rows in found.partitions(ROWS_AT_ONCE) for row in rows), anchors)[0]

    def now(self) -> datetime:
        """The time by which entries and leases are judged."""
        with self._reading() as connection:
            return _moment(self._now(connection))

    @contextmanager
    def hold(self, name: str, seconds: float = LEASE_SECONDS, wait: float = LEASE_WAIT_SECONDS) -> Iterator[Lease]:
        """Hold a lease while deciding; pass it to `append` as `fence`.

        Args:
            name: what is decided about.
            seconds: after this time somebody else may take over.
            wait: how long to wait for somebody else's decision.

        Raises:
            TransientError: somebody else still holds it.
        """
        lease = self._take(name, seconds, wait)
        try:
            yield lease
        finally:
            with suppress(TransientError, IntegrityError), self._transaction() as connection:  # else it runs out
                give_back(connection, lease)

    def renew(self, lease: Lease, seconds: float = LEASE_SECONDS) -> Lease:
        """Hold a lease on for `seconds` from now, with the same token; TransientError where somebody took it over."""
        with self._transaction() as connection:
            return renew(connection, lease, seconds, self._now(connection))

    def holder(self, name: str) -> str:
        """Who holds a lease now (host:process:number), "" where nobody does."""
        with self._reading() as connection:
            return held_by(connection, name, self._now(connection))

    def refuse_strangers(self, action: str) -> None:
        """PolicyRefusal where whoever asks does not own the ledger: the file's user (or root), or the table's role.

        action: what only the owner may, for the message.
        """
        place = self._engine.url.database
        if self._engine.dialect.name == "sqlite":
            if place and os.geteuid() not in (0, owner := Path(place).stat().st_uid):
                raise PolicyRefusal(
                    f"only the ledger's owner may {action}: {place} belongs to user {owner}, not to {os.geteuid()}"
                )
            return
        with self._reading() as connection:
            found = connection.exec_driver_sql(OWNERS).first()
        if found is None or not found.mine:
            raise PolicyRefusal(
                f"only the ledger's owner may {action}: the table belongs to {found.owner if found else 'nobody'}"
            )

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def _take(self, name: str, seconds: float, wait: float) -> Lease:
        holder, deadline = new_holder(), time.monotonic() + wait
        while True:
            try:
                with self._transaction() as connection:
                    return take(connection, name, holder, seconds, self._now(connection))
            except HeldError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _now(self, connection: Connection) -> float:
        if self._clock is not None:
            return self._clock()
        if connection.dialect.name == "sqlite":  # embedded: all its writers are on this host
            return time.time()
        return float(connection.exec_driver_sql(POSTGRES_CLOCK).scalar_one())

    def _select(self, connection: Connection, where: Any) -> list[Entry]:
        rows = connection.execute(self._sa.select(self._table).where(where).order_by(self._table.c.seq))
        return [from_row(row) for row in rows]

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A write transaction that nobody else can interleave with."""
        with self._translated(), self._engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITERS})")
            yield connection
            connection.commit()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._sa.exc.OperationalError as error:
            if UNDECODABLE in str(error.orig):
                raise UndecodableError(
                    f"ledger {self._engine.url!r}: an entry holds bytes that are no text: it was altered; "
                    "`pilotline ledger verify` names it"
                ) from error
            raise TransientError(f"ledger {self._engine.url!r}: {_said(error)}; run again") from error
        except self._sa.exc.DatabaseError as error:
            if getattr(error.orig, "sqlstate", "") == NOT_ALLOWED:
                raise PolicyRefusal(f"ledger {self._engine.url!r}: this database user may not do that") from error
            raise IntegrityError(f"ledger {self._engine.url!r}: {_said(error)}; restore it from a backup") from error


@contextmanager
def _any_bytes(connection: Connection, lenient: bool) -> Iterator[None]:
    """Read text columns of SQLite that hold no UTF-8 as something that no hash can be of."""
    raw: Any = connection.connection.dbapi_connection
    if not lenient or connection.dialect.name != "sqlite":
        yield
        return
    raw.text_factory = lambda found: found.decode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        raw.text_factory = str


def _is_absent(url: Any) -> bool:
    """SQLite would make an empty file where there is none."""
    return bool(url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists())


def _bounds(url: str) -> dict[str, Any]:
    """How long a database may take before it counts as not answering."""
    if url.startswith("sqlite"):
        return {"timeout": STATEMENT_SECONDS}
    bound = STATEMENT_SECONDS * 1000
    return {"connect_timeout": 10, "options": f"-c lock_timeout={bound} -c statement_timeout={bound}"}


def _said(error: Any) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__


def _moment(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def _after(seconds: float, last: str) -> str:
    """Now as ISO 8601 UTC, but later than the last entry also where the clock was set back: one order, one history."""
    moment = _moment(seconds)
    if last:
        try:
            moment = max(moment, datetime.fromisoformat(last) + timedelta(microseconds=1))
        except ValueError as error:
            raise IntegrityError(f"ledger: the last entry's time {last!r} was altered; restore a backup") from error
    return moment.isoformat(timespec="microseconds")
