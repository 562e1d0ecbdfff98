"""What a person sees while a run works: a line when a step starts and one when it ends, on standard error."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from components.core.home import Home

EVERY_SECONDS = 0.25


class Progress:
    """Follows the step notes of a run from a thread of its own."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._said: dict[str, str] = {}
        self._terminal = sys.stderr.isatty()
        self._began = time.time()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def say(self, text: str) -> None:
        """Print one line."""
        self._clear()
        print(f"[{time.time() - self._began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def follow(self, run_id: str) -> None:
        """Begin to follow a run; what earlier attempts finished is told as such."""
        folder = self._home.run(run_id) / "steps"
        done = [note["name"] for note in _notes(folder) if note["status"] == "done"]
        self._said = dict.fromkeys(done, "done")
        self.say(f"run {run_id}" + (f" resumed after {', '.join(done)}" if done else ""))
        self._thread = threading.Thread(target=self._watch, args=(folder,), daemon=True, name="progress")
        self._thread.start()

    def _watch(self, folder: Path) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self._look(folder)
        self._look(folder)
        self._clear()

    def _look(self, folder: Path) -> None:
        for note in _notes(folder):
            name, status = note["name"], note["status"]
            if self._said.get(name) == status:
                self._tick(name, status, note)
                continue
            self._said[name] = status
            if status == "running":
                self.say(f"{name} ...")
            elif status == "done":
                self.say(f"{name} done in {note['seconds']:.1f} s")
                for line in note.get("said", ()):
                    self.say(f"{name}: {line}")
            else:
                self.say(f"{name} failed: {note['error']}")

    def _tick(self, name: str, status: str, note: dict[str, Any]) -> None:
        if status == "running" and self._terminal:
            print(f"\r           {name} {time.time() - note['started']:4.0f} s", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr)


def _notes(folder: Path) -> list[dict[str, Any]]:
    notes = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(notes, key=lambda note: float(note["started"]))
