"""Between the controller and its stack: a request for the way back takes effect at once, whatever is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from components.core.errors import TransientError, one_line
from components.core.ledger import Lease, StaleLeaseError
from components.core.protocols import ArrivedLabel, Decision, GoldenRow, Served, ServingStack
from components.rollout.journal import LEASE_SECONDS, Abort, AbortedError, Journal

POLL_SECONDS = 0.5
RENEW_SECONDS = LEASE_SECONDS / 4

Row = Mapping[str, object]


class Steered:
    """A serving stack that stops when it is told to: then each call raises AbortedError, until `release`.

    `turn_back` comes from another thread: the canary's weight and the mirroring are off when it returns, where stable
    lives; a canary that is being started is ended.
    """

    def __init__(self, stack: ServingStack) -> None:
        self.stack = stack
        self._lock = threading.RLock()
        self._abort: Abort | None = None
        self._failure: TransientError | None = None
        self._starting = ""

    @property
    def stopped(self) -> bool:
        """Whether the controller has to leave what it does."""
        return self._abort is not None or self._failure is not None

    def check(self) -> None:
        """Raise what stopped it: AbortedError, or TransientError where another controller took over."""
        if self._failure is not None:
            raise self._failure
        if self._abort is not None:
            raise AbortedError(self._abort)

    def turn_back(self, abort: Abort) -> None:
        """A person asked for the way back."""
        with self._lock:
            self._abort = abort
            self._stop_traffic()

    def lose(self, failure: TransientError) -> None:
        """The controller may decide no more."""
        with self._lock:
            self._failure = failure
            self._stop_traffic()

    def release(self) -> ServingStack:
        """The stack itself, for the way back."""
        with self._lock:
            return self.stack

    def launch(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> None:
        """As the stack."""
        self.check()
        self.stack.launch(arm, model_dir, version, digest, golden)

    def start(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> Served:
        """As the stack; a canary's start ends early where the way back was asked for."""
        self.check()
        self._starting = arm
        try:
            served = self.stack.start(arm, model_dir, version, digest, golden)
        except Exception:
            self.check()  # it was ended for that
            raise
        finally:
            self._starting = ""
        self.check()
        return served

    def stop(self, arm: str) -> None:
        """As the stack."""
        self.stack.stop(arm)

    def alive(self, arm: str) -> bool:
        """As the stack."""
        return self.stack.alive(arm)

    def set_weight(self, percent: int) -> None:
        """As the stack; no weight is given to the canary once the way back was asked for."""
        with self._lock:
            self.check()
            self.stack.set_weight(percent)

    def set_shadow(self, on: bool) -> None:
        """As the stack."""
        with self._lock:
            self.check()
            self.stack.set_shadow(on)

    def decide(
        self, rows: Sequence[Row], rate: float, stop: object = None, under_way: object = None
    ) -> Sequence[Decision]:
        """As the stack."""
        self.check()
        return self.stack.decide(rows, rate, stop, under_way)

    def score_arm(self, arm: str, rows: Sequence[Row]) -> list[float | None]:
        """As the stack."""
        self.check()
        return self.stack.score_arm(arm, rows)

    def labels(self, after: int) -> Sequence[ArrivedLabel]:
        """As the stack."""
        return self.stack.labels(after)

    def _stop_traffic(self) -> None:
        """What fails here is done again on the way back, which says what it could not do."""
        with suppress(Exception):
            if self.stack.alive("stable"):
                self.stack.set_weight(0)
                self.stack.set_shadow(False)
        if self._starting == "canary":
            with suppress(Exception):
                self.stack.stop("canary")


class Watch:
    """Looks for a request to abort twice a second and renews the lease, beside the controller."""

    def __init__(self, journal: Journal, steered: Steered, poll_seconds: float = POLL_SECONDS) -> None:
        self._journal, self._steered, self._poll = journal, steered, poll_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollout-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        turns: list[Callable[[], None]] = [self._look, _Renewal(self._journal)]
        while not self._ended.wait(self._poll):
            for turn in turns:
                try:
                    turn()
                except StaleLeaseError as error:
                    self._steered.lose(error)
                except TransientError:
                    continue  # the ledger is busy: the next look is half a second away
                except Exception as error:  # a watch that died would leave the rollout deaf
                    self._steered.lose(TransientError(f"rollout: its ledger cannot be read ({one_line(error)})"))

    def _look(self) -> None:
        if not self._steered.stopped and (asked := self._journal.abort()):
            self._steered.turn_back(asked)


class _Renewal:
    """Renews the lease when a quarter of its time is over."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._at = journal, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._at >= RENEW_SECONDS:
            renewed: Lease = self._journal.ledger.renew(self._journal.lease, LEASE_SECONDS)
            self._journal.lease, self._at = renewed, time.monotonic()
