"""Newest values in Redis: one for all scoring services of a cluster. The only module that imports redis."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from components.core.errors import TransientError, UserError
from components.features.latest.entries import Entry, Written

KEYS_PER_CALL = 500
CALLS_PER_TRIP = 20
PREFIX = b"pilotline:"
STAMPS, STAMP_BYTES, ZERO = struct.Struct(">QQ"), 16, 1 << 63
# Atomic in the server, so that two writers cannot pass between reading and writing. Stamps compare byte by byte: Lua
# compares strings by the locale that the server happens to run under.
WRITE = """
local function older(given, kept)
  for at = 1, 16 do
    local a, b = string.byte(given, at), string.byte(kept, at)
    if a ~= b then return a < b end
  end
  return false
end
local written = 0
for i = 1, #KEYS do
  local kept = redis.call('GETRANGE', KEYS[i], 0, 15)
  if kept == '' or not older(ARGV[i], kept) then
    redis.call('SET', KEYS[i], ARGV[i])
    written = written + 1
  end
end
return written
"""


class RedisLatest:
    """A LatestStore in a Redis database (no cluster mode: a call writes many keys)."""

    def __init__(self, url: str, seconds: float = 2.0) -> None:
        """Connect.

        Args:
            url: redis:// or rediss://, with a password where it needs one.
            seconds: how long to wait for a connection or an answer.

        Raises:
            UserError: the URL is none of Redis.
            TransientError: nothing answers there.
        """
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                socket_timeout=max(seconds, 0.05),
                socket_connect_timeout=max(seconds, 0.05),
                retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
                health_check_interval=15,
            )
        except ValueError as error:
            raise UserError(f"features.online: {error}; write redis://HOST:PORT/0") from error
        kwargs = self._client.connection_pool.connection_kwargs
        self._place = f"{kwargs.get('host', kwargs.get('path', 'localhost'))}:{kwargs.get('port', '')}"
        self._write = self._client.register_script(WRITE)
        with self._told():
            self._client.ping()

    def write(self, table: str, entries: Iterable[Written]) -> int:
        """Write entries, many a round trip."""
        prefix = _prefix(table)
        count = 0
        rest = iter(entries)
        while chunk := list(islice(rest, KEYS_PER_CALL * CALLS_PER_TRIP)):
            with self._told():
                pipe = self._client.pipeline(transaction=False)
                for start in range(0, len(chunk), KEYS_PER_CALL):
                    part = chunk[start : start + KEYS_PER_CALL]
                    self._write(
                        keys=[prefix + entry.key for entry in part],
                        args=[_stamp(entry.event) + _stamp(entry.created) + entry.body for entry in part],
                        client=pipe,
                    )
                count += sum(pipe.execute())
        return count

    def read(self, asked: Sequence[tuple[str, bytes]]) -> list[Entry | None]:
        """The entry of each (table, key) by one MGET."""
        if not asked:
            return []
        try:
            found = self._client.execute_command("MGET", *[_prefix(table) + key for table, key in asked])
        except redis.RedisError as error:
            raise self._named(error) from error
        return [None if value is None else _entry(value) for value in found]

    def mark(self, table: str) -> str:
        """How far a table is written."""
        with self._told():
            value = self._client.get(_mark(table))
        return "" if value is None else value.decode()

    def set_mark(self, table: str, mark: str) -> None:
        """Keep how far a table is written."""
        with self._told():
            self._client.set(_mark(table), mark)

    def drop(self, table: str) -> None:
        """Forget a table."""
        pattern = b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\^-" else bytes([byte]) for byte in _prefix(table))
        with self._told():
            self._client.delete(_mark(table))
            keys = self._client.scan_iter(match=pattern + b"*", count=1000)
            while part := list(islice(keys, 1000)):
                self._client.delete(*part)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise self._named(error) from error

    def _named(self, error: redis.RedisError) -> Exception:
        """The error as one of ours."""
        if isinstance(error, redis.AuthenticationError):
            return UserError(
                f"features.online: Redis at {self._place} refuses the password; mend it in the environment"
            )
        what = str(error).split("\n", maxsplit=1)[0]
        return TransientError(
            f"features.online: Redis at {self._place} gives no answer ({what}); start it or mend the address, then run "
            "again"
        )


@lru_cache(maxsize=1024)
def _prefix(table: str) -> bytes:
    return PREFIX + table.encode() + b"\0"


def _mark(table: str) -> bytes:
    return PREFIX + b"mark:" + table.encode()


def _stamp(microseconds: int) -> bytes:
    """Eight bytes that compare as the numbers do, negative ones too."""
    return (microseconds + ZERO).to_bytes(8, "big")


def _entry(value: bytes) -> Entry:
    event, created = STAMPS.unpack_from(value)
    return Entry(event - ZERO, created - ZERO, value[STAMP_BYTES:])
