"""The largest memory of a model server while a rollout drives it, for the comparison with its prediction."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

SERVERS = ("vllm", "components.serving.reference_server")  # in the command line of a model server
EVERY_SECONDS = 1.0


class ServerMemory:
    """Samples, once a second, the resident memory of each model server below this process.

    Attributes:
        peak_gib: the largest of one server, None before one was seen.
    """

    def __init__(self, every_seconds: float = EVERY_SECONDS) -> None:
        self.peak_gib: float | None = None
        self._every, self._stop = every_seconds, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True, name="server-memory")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _sample(self) -> None:
        while not self._stop.wait(self._every):
            for gib in server_gibs():
                self.peak_gib = max(gib, self.peak_gib or 0.0)


def server_gibs() -> list[float]:
    """Resident memory of each model server started by this process, GiB.

    Of a server's processes the largest counts: it holds the model, the others start it or look things up.
    """
    import psutil

    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(word in " ".join(child.cmdline()) for word in SERVERS):
                family = [child, *child.children(recursive=True)]
                found.append(max(process.memory_info().rss for process in family) / 2**30)
    return found
