"""Signs of progress: each rank touches its file as it goes on, and the launcher looks how old they are."""

from __future__ import annotations

import time
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


def silence(folder: Path, since: float) -> tuple[float, str]:
    """Seconds since any rank went on, and which was the first to fall silent.

    Args:
        folder: where the ranks' files are.
        since: wall clock at which the ranks were started; older signs are those of an earlier start.
    """
    last = {path.name: path.stat().st_mtime for path in folder.glob("rank-*")} if folder.is_dir() else {}
    newest = max([since, *last.values()])
    slowest = min(last, key=lambda name: last[name]) if last else "no rank has started"
    return time.time() - newest, slowest
