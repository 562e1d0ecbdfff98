"""Which store an address names."""

from __future__ import annotations

from pathlib import Path

from components.core.errors import UserError
from components.features.latest.entries import LatestStore


def open_latest(address: str) -> LatestStore:
    """A store by its address: a file's path, `sqlite:///path`, or `redis://host:port/db`.

    Raises:
        UserError: the address is of no known kind, or the file cannot be opened.
        TransientError: nothing answers there.
    """
    scheme, mark, rest = address.partition("://")
    if mark and scheme in ("redis", "rediss", "unix"):
        from components.features.latest.redis import RedisLatest

        return RedisLatest(address)
    if mark and scheme != "sqlite":
        raise UserError(f"features.online {scheme}://…: no such online store; write a path or redis://HOST:PORT/0")
    from components.features.latest.sqlite import SqliteLatest

    path = Path(rest[1:] if mark else address)  # as SQLAlchemy has it: three slashes and a path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"features.online {address}: its folder cannot be made ({error.strerror})") from error
    return SqliteLatest(path)
