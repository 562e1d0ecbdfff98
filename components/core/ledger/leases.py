"""A lease on a name, with a fencing token: who holds it decides alone, and whoever held it before decides nothing more.

Clocks decide only when somebody else may take over, and only the database's clock is asked, so the clocks of two
machines are never compared. Safety rests on the token: each holder gets a higher one, and an append with a token that
is no longer the lease's is refused inside the transaction. See M. Kleppmann, "How to do distributed locking" (2016).
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, replace

import sqlalchemy as sa

from components.core.errors import TransientError
from components.core.ledger.schema import LEASES


@dataclass(frozen=True)
class Lease:
    """Held by `holder` (host:process:number) until `expires` (seconds since 1970, the database's clock)."""

    name: str
    holder: str
    token: int
    expires: float


class HeldError(TransientError):
    """Somebody else holds the lease."""


class StaleLeaseError(TransientError):
    """The lease was taken over meanwhile: nothing was written."""


def new_holder() -> str:
    """A name for this process and this attempt."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


def take(connection: sa.Connection, name: str, holder: str, seconds: float, now: float) -> Lease:
    """Take a lease inside a write transaction; HeldError where another holder's has not run out."""
    found = connection.execute(sa.select(LEASES).where(LEASES.c.name == name)).first()
    if found is None:
        lease = Lease(name, holder, 1, now + seconds)
        connection.execute(LEASES.insert().values(**lease.__dict__))
        return lease
    if found.holder not in ("", holder) and now < found.expires and not _is_dead(found.holder):
        raise HeldError(f"{name}: {found.holder} is deciding (for {found.expires - now:.0f} s more at most); run again")
    lease = Lease(name, holder, found.token + 1, now + seconds)
    connection.execute(LEASES.update().where(LEASES.c.name == name).values(**lease.__dict__))
    return lease


def check(connection: sa.Connection, lease: Lease) -> None:
    """StaleLeaseError where the token is no longer the lease's; asked inside the transaction that writes.

    A lease that ran out but that nobody took over still holds: nobody else can have decided.
    """
    found = connection.execute(sa.select(LEASES).where(LEASES.c.name == lease.name)).first()
    if found is None or (found.holder, found.token) != (lease.holder, lease.token):
        who = (found.holder if found else "") or "another"
        raise StaleLeaseError(f"{lease.name}: {who} took over meanwhile; nothing was written; run again")


def renew(connection: sa.Connection, lease: Lease, seconds: float, now: float) -> Lease:
    """The same lease, token and all, for `seconds` from now; StaleLeaseError where somebody took it over."""
    check(connection, lease)
    renewed = replace(lease, expires=now + seconds)
    mine = (LEASES.c.name == lease.name) & (LEASES.c.token == lease.token)
    connection.execute(LEASES.update().where(mine).values(expires=renewed.expires))
    return renewed


def held_by(connection: sa.Connection, name: str, now: float) -> str:
    """Who holds a lease (host:process:number); "" where nobody does, it ran out, or its process of this host died."""
    found = connection.execute(sa.select(LEASES).where(LEASES.c.name == name)).first()
    if found is None or now >= found.expires or _is_dead(found.holder):
        return ""
    return str(found.holder)


def give_back(connection: sa.Connection, lease: Lease) -> None:
    """End a lease where it is still held; the token stays, so that the next one is higher."""
    mine = (LEASES.c.name == lease.name) & (LEASES.c.token == lease.token) & (LEASES.c.holder == lease.holder)
    connection.execute(LEASES.update().where(mine).values(holder="", expires=0.0))


def _is_dead(holder: str) -> bool:
    """Whether the holder was a process of this host that is gone: no need to wait, the token keeps it out anyway."""
    host, _, rest = holder.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
