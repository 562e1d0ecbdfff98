"""A rollout in a process of its own that is killed at a chosen entry of the ledger, as kill -9 would."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from components.core.ledger import Entry, Ledger
from components.rollout import journal as book
from tests.fakes.fake_serving import Behaviour, FakeServing
from tests.fakes.rollout_case import Case

RUN = "run-1"


def entries(case: Case) -> list[Entry]:
    """What the ledger holds of the case's rollouts."""
    with closing(Ledger(case.ledger_url)) as ledger:
        return ledger.entries(book.KIND)


def moments(case: Case) -> list[str]:
    """The keys of a rollout's entries, without the rollout's name: where it can be killed."""
    return [entry.key.removeprefix(f"{book.KIND}:{entry.payload['rollout']}:") for entry in entries(case)]


def run_and_die(case: Case, at: str, after: bool, behaviours: Mapping[str, Behaviour]) -> None:
    """Run the case in a child that is gone before, or just after, it writes the entry `at`."""
    child = multiprocessing.get_context("fork").Process(target=_doomed, args=(case, at, after, dict(behaviours)))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL, (at, after, child.exitcode)


def _doomed(case: Case, at: str, after: bool, behaviours: dict[str, Behaviour]) -> None:
    write: Callable[..., Any] = book.Journal._write

    def dying(self: book.Journal, key: str, *rest: Any, **more: Any) -> None:
        if key == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, key, *rest, **more)
        if key == at:
            os.kill(os.getpid(), signal.SIGKILL)

    book.Journal._write = dying  # type: ignore[method-assign]
    case.run(FakeServing(behaviours), out="doomed", run_id=RUN)
    os._exit(0)
