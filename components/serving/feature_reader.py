"""Features read in one thread beside the event loop: what waits together is read in one go and answered in one wake-up.

A hand-over between threads costs more than most reads; under load several requests come at once and share it. The store
is touched by this thread alone (SQLite's handles stay in one), and one that hangs holds up no answer: each has its
deadline, and the thread does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

TOGETHER_SECONDS = 0.001  # that the first of several may wait for the others

Asked = tuple["asyncio.Future[Any]", Mapping[str, str], Mapping[str, Any]]
Answered = tuple["asyncio.Future[Any]", Any, Exception | None]


class FeatureReader:
    """Calls the source's `read` in a thread of its own, in the order of asking."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, entities: Mapping[str, str], request: Mapping[str, Any]) -> asyncio.Future[Any]:
        """What the source gives or raises for this row; a future of the running loop, which may be cancelled."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(loop,), name="features", daemon=True)
            self._thread.start()
        answer: asyncio.Future[Any] = loop.create_future()
        self._asked.put((answer, entities, request))
        return answer

    def close(self) -> None:
        """Read nothing more; a read under way is not waited for."""
        self._asked.put(None)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (asked := self._asked.get()) is not None:
            until, read = time.perf_counter() + TOGETHER_SECONDS, [self._answer(asked)]
            last = False
            while not last and time.perf_counter() < until:
                try:
                    following = self._asked.get_nowait()
                except queue.Empty:
                    break
                last = following is None
                if following is not None:
                    read.append(self._answer(following))
            try:
                loop.call_soon_threadsafe(_tell, read)
            except RuntimeError:  # the loop has ended
                return
            if last:
                return

    def _answer(self, asked: Asked) -> Answered:
        answer, entities, request = asked
        if answer.cancelled():  # its time was over before its turn
            return answer, None, None
        try:
            return answer, self._source.read(entities, request), None
        except Exception as error:  # told to whoever asked
            return answer, None, error


def _tell(read: list[Answered]) -> None:
    for answer, found, error in read:
        if answer.done():
            continue
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found)
