"""Signs of progress: each rank touches its file as it goes on, and the launcher looks how old they are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from components.training.failpoints import reached

EVERY_SECONDS = 0.5
EXPORT = "export"  # among the signs: how much of the export is written


class Beat:
    """A rank's own sign; `show` costs a clock reading in most steps."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path, self._next = folder / f"rank-{rank}", 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def show(self) -> None:
        """This rank went on; called after steps and between the parts of long work, never from a thread."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_SECONDS
            self._path.touch()
            reached("rank.beat")


@contextmanager
def shown_by(network: Any, beat: Beat) -> Iterator[None]:
    """Each module of a network that has computed is a sign, so that a long validation is not taken for a hang."""
    handles = [module.register_forward_hook(lambda *_: beat.show()) for module in network.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def clear_beats(folder: Path) -> None:
    """Forget the signs of an earlier attempt."""
    for path in folder.glob("rank-*"):
        path.unlink(missing_ok=True)
    reached("launch.errors")


class Silence:
    """How long no rank has gone on, by this process's monotonic clock: a change of a sign counts, never its date.

    So a wall clock that is set, here or on another node, makes no gang look hung. A rank that exports writes a folder
    and cannot show itself meanwhile; then it is the folder's growth that counts.
    """

    def __init__(self, folder: Path, written: Path | None = None) -> None:
        self._folder, self._written = folder, written
        self._seen: dict[str, tuple[int, float]] = {}  # rank → its sign, and when it was first seen so
        self.restart()

    def restart(self) -> None:
        """The ranks start only now; signs that are there already are those of an earlier start."""
        self._since = time.monotonic()
        self._seen = {name: (sign, self._since) for name, sign in self._signs().items()}

    def look(self) -> tuple[float, str]:
        """Seconds since any rank went on, and which was the first to fall silent; called often."""
        now = time.monotonic()
        for name, sign in self._signs().items():
            if name not in self._seen or self._seen[name][0] != sign:
                self._seen[name] = sign, now
        last = {name: at for name, (_, at) in self._seen.items()}
        ranks = last.keys() - {EXPORT}  # of two that were seen at one look, the one with the older date
        slowest = min(ranks, key=lambda name: (last[name], self._seen[name][0])) if ranks else "no rank has started"
        return now - max([self._since, *last.values()]), slowest

    def _signs(self) -> dict[str, int]:
        found = {}
        with suppress(FileNotFoundError):  # published, or of another attempt, between two looks
            if self._written is not None and self._written.is_dir():
                found[EXPORT] = sum(path.stat().st_size + 1 for path in self._written.rglob("*"))
        for path in self._folder.glob("rank-*") if self._folder.is_dir() else ():
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_mtime_ns
        return found
