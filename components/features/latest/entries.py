"""What a store of newest values keeps of an entity, as bytes; and the Protocol that both stores follow.

An entry has the moment of its event, the moment at which it was made, and a body. Of two entries for one key the
later event wins, of one event the one made later, whatever the order in which they are written; the same entry
written twice is one. So a write can be repeated, interrupted and completed, and an older one never overwrites.

A body of numbers is `d`, the checksum of the feature names (4 bytes), and one little-endian double a feature; NaN is
null. Others are the business of who writes them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

NUMBERS = b"d"
HEAD_BYTES = 5


class Entry(NamedTuple):
    """An entity's newest values. `event` and `created`: microseconds since 1970 in UTC."""

    event: int
    created: int
    body: bytes


class Written(NamedTuple):
    """One entry to write, with its key (see key_of)."""

    key: bytes
    event: int
    created: int
    body: bytes


class LatestStore(Protocol):
    """Newest entries by table and key. Safe from any thread and from several processes at once."""

    def write(self, table: str, entries: Iterable[Written]) -> int:
        """Write entries, newest wins; how many were, since nothing newer stood there. Interrupted: write again.

        Raises:
            TransientError: the store does not answer.
        """
        ...

    def read(self, asked: Sequence[tuple[str, bytes]]) -> list[Entry | None]:
        """The entry of each (table, key), None where there is none; one round trip.

        Raises:
            TransientError: the store does not answer.
        """
        ...

    def mark(self, table: str) -> str:
        """What `set_mark` last kept for the table, "" where nothing."""
        ...

    def set_mark(self, table: str, mark: str) -> None:
        """Keep how far a table is written."""
        ...

    def drop(self, table: str) -> None:
        """Forget a table and its mark."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def key_of(values: Sequence[str | int | bytes]) -> bytes:
    """The key of an entity's join key values, given in the order of the join keys' names; no two give one key."""
    return b"".join(_part(value) for value in values)


def pack_numbers(features: Sequence[str], matrix: np.ndarray) -> list[bytes]:
    """One body a row of a float64 matrix, shape (rows, features)."""
    head = NUMBERS + _names(tuple(features))
    packed = np.ascontiguousarray(matrix, dtype="<f8")
    width = packed.shape[1] * 8
    raw = packed.tobytes()
    return [head + raw[at : at + width] for at in range(0, len(raw), width)] if width else [head] * len(packed)


def unpack_numbers(features: Sequence[str], body: bytes) -> list[float | None] | None:
    """The values of a body of numbers, in the order of the features; None where it holds other features."""
    if body[:HEAD_BYTES] != NUMBERS + _names(tuple(features)) or len(body) != HEAD_BYTES + 8 * len(features):
        return None
    values = struct.unpack_from(f"<{len(features)}d", body, HEAD_BYTES)
    return [value if value == value else None for value in values]  # only NaN differs from itself


@lru_cache(maxsize=1024)
def _names(features: tuple[str, ...]) -> bytes:
    return zlib.crc32("\0".join(features).encode()).to_bytes(4, "little")


def _part(value: str | int | bytes) -> bytes:
    if isinstance(value, bytes):
        return b"b%d:%b" % (len(value), value)
    if isinstance(value, int):
        return b"i%d;" % value
    text = value.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(text), text)
