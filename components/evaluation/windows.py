"""How many candidates a window of test rows has been used for.

Whoever looks at the same test rows with one candidate after the other, and keeps the best, chooses by luck: the gate's
intervals hold for one look. So each look is counted, by the rows themselves and not by the file, which changes with
every feature.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.core.digest import value_digest
from components.core.errors import IntegrityError
from components.core.publish import write_atomic


class Windows(Protocol):
    """Keeps the candidates of each window."""

    def use(self, window: str, candidate: str) -> int:
        """Note that the candidate is judged on the window; its place among the window's candidates, from 1 on.

        Idempotent: the same candidate keeps its place.
        """
        ...


@dataclass(frozen=True)
class WindowsInHome:
    """One file a window in a folder: the candidates' digests in the order in which they came."""

    folder: Path

    def use(self, window: str, candidate: str) -> int:
        """See Windows; one process at a time.

        Raises:
            IntegrityError: the window's file is not a list of candidates.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{window}.json"
        with (self.folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._known(path)
            if candidate not in known:
                known.append(candidate)
                write_atomic(path, json.dumps(known))
            return known.index(candidate) + 1

    def _known(self, path: Path) -> list[str]:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise IntegrityError(f"{path}: is no list of candidates; put the file back from a copy of the home")
        return found


def window_digest(row_ids: Sequence[str]) -> str:
    """The name of a window: digest of its rows' ids, whatever their order."""
    return value_digest(sorted(map(str, row_ids)))
