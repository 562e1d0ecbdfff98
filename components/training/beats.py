"""Signs of progress: each rank touches its file as it goes on, and the launcher looks how old they are."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from components.training.failpoints import reached

EVERY_SECONDS = 0.5


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


def clear_beats(folder: Path) -> None:
    """Forget the signs of an earlier attempt."""
    for path in folder.glob("rank-*"):
        path.unlink(missing_ok=True)
    reached("launch.errors")


class Silence:
    """How long no rank has gone on, by this process's monotonic clock: a change of a sign counts, never its date.

    So a wall clock that is set, here or on another node, makes no gang look hung.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        slowest = min(last, key=lambda name: last[name]) if last else "no rank has started"
        return now - max([self._since, *last.values()]), slowest

    def _signs(self) -> dict[str, int]:
        found = {}
        for path in self._folder.glob("rank-*") if self._folder.is_dir() else ():
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_mtime_ns
        return found
