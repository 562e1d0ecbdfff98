"""How many candidates a window of test rows has been used for.

Whoever looks at the same test rows with one candidate after the other, and keeps the best, chooses by luck: the gate's
intervals hold for one look. So each look is counted, by the rows themselves and not by the file, which changes with
every feature. Rows that were added or dropped make no new window: windows that share at least half of the smaller
one's rows count as one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from components.core.digest import value_digest
from components.core.errors import IntegrityError
from components.core.publish import write_atomic

SAME_SHARE = 0.5  # of the smaller window's rows


class Windows(Protocol):
    """Keeps the candidates of each window."""

    def use(self, row_ids: Sequence[str], candidate: str) -> int:
        """Note that the candidate is judged on these rows; its place among the candidates that were, from 1 on.

        Idempotent: the same candidate keeps its place.
        """
        ...


@dataclass(frozen=True)
class WindowsInHome:
    """Two files a window in a folder: the candidates' digests with their places, and the rows' ids as 64-bit hashes."""

    folder: Path

    def use(self, row_ids: Sequence[str], candidate: str) -> int:
        """See Windows; one process at a time.

        Raises:
            IntegrityError: a window's file does not hold candidates, or rows.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        window, rows = window_digest(row_ids), _hashes(row_ids)
        path = self.folder / f"{window}.json"
        with (self.folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._known(path)
            if candidate not in known:
                seen = {candidate, *known}
                for other in sorted(self.folder.glob("*.rows")):
                    if other.stem != window and _overlap(rows, self._rows(other)) >= SAME_SHARE:
                        seen |= set(self._known(other.with_suffix(".json")))
                known[candidate] = len(seen)
                write_atomic(self.folder / f"{window}.rows", json.dumps(rows.tolist()))
                write_atomic(path, json.dumps(known))
            return known[candidate]

    def _known(self, path: Path) -> dict[str, int]:
        """Candidate to place; a list, of an earlier version, is in the order of places."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(item, str) for item in found):
            return {name: at for at, name in enumerate(found, 1)}
        if not isinstance(found, dict) or not all(type(place) is int and place > 0 for place in found.values()):
            raise IntegrityError(f"{path}: is no list of candidates; put the file back from a copy of the home")
        return found

    def _rows(self, path: Path) -> NDArray[np.uint64]:
        try:
            return np.array(json.loads(path.read_text(encoding="utf-8")), dtype=np.uint64)
        except (OSError, ValueError, TypeError, OverflowError) as error:
            raise IntegrityError(f"{path}: is no list of rows; put the file back from a copy of the home") from error


def window_digest(row_ids: Sequence[str]) -> str:
    """The name of a window: digest of its rows' ids, whatever their order."""
    return value_digest(sorted(map(str, row_ids)))


def _hashes(row_ids: Sequence[str]) -> NDArray[np.uint64]:
    """64 bits of each id's hash, ascending."""
    found = (int.from_bytes(hashlib.blake2b(str(row).encode(), digest_size=8).digest(), "big") for row in row_ids)
    return np.unique(np.fromiter(found, np.uint64))


def _overlap(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """The share of the smaller window's rows that are in both."""
    smaller = min(len(one), len(other))
    return len(np.intersect1d(one, other)) / smaller if smaller else 0.0
