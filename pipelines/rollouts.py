"""Rollouts from another terminal: how they stand, the way back, and going on after the controller died."""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from components.core.errors import PolicyRefusal, TransientError, UserError
from components.core.home import Home
from components.core.ledger import Entry, Ledger
from components.core.people import given_reason, identify
from components.core.processes import end_leftovers
from components.core.records import RuleResult
from components.rollout import journal as book
from components.rollout import states

ABORT_SECONDS, POLL_SECONDS = 120.0, 0.2
HANGS_SECONDS = 5.0  # a controller that lives goes the way back sooner


def status(home: Home, name: str = "") -> dict[str, Any]:
    """The rollout under way, else the last one; state "none" where there never was one.

    Args:
        name: of the model; any where absent.
    """
    with closing(Ledger(home.ledger_url)) as ledger:
        found = _of(ledger, name)
        if not found:
            return {"state": "none", "rollout": "", "outcome": None, "events": []}
        entries = _chosen(found)
        return _told(ledger, entries)


def abort(home: Home, reason: str, who: str | None = None, name: str = "") -> dict[str, Any]:
    """Return all traffic to stable from whatever state, and wait until it is so.

    Asked for again after that, it tells of the same end.

    A living controller sees the request within a second and goes the way back; one that has not after five seconds
    loses its canary's weight from here, and the lead when its lease is over. Where none lives, what it left in front of
    users is turned back to stable from here, after stable answered; where nothing of it answers, its processes are
    ended and the champion that `pilotline serve` serves is looked at. The end is recorded here.

    Raises:
        UserError: no rollout is under way. PolicyRefusal: it is over already.
        TransientError: its controller lives and did not end it within two minutes; or none lives and stable, which it
            left, does not answer or did not get the traffic. The way back stays asked for.
    """
    person = identify(who)
    with closing(Ledger(home.ledger_url)) as ledger:
        every = list(_of(ledger, name).values())
        going = [entries for entries in every if book.is_open(entries)]
        if not going and every and book.state_of(every[-1]) == states.ABORTED:
            return _told(ledger, every[-1])  # asked for again: it is so
        if not going:
            raise UserError("no rollout is under way; `pilotline rollout status` shows the last one")
        if len(going) > 1 and not name:
            names = ", ".join(book.about_of(entries).name for entries in going)
            raise UserError(f"rollouts of {names} are under way; name one with --name")
        about = book.about_of(going[-1])
        book.ask_abort(ledger, about.id, person.name, given_reason(reason) if reason else "no reason given")
        return _until_ended(home, ledger, about)


def unfinished(home: Home) -> str:
    """The run whose rollout was left half way last.

    Raises:
        UserError: there is none.
    """
    with closing(Ledger(home.ledger_url)) as ledger:
        going = [entries for entries in book.rollouts(ledger).values() if book.is_open(entries)]
        if not going:
            raise UserError("no rollout was left half way; `pilotline run` starts one at its step")
        return book.about_of(going[-1]).run_id


def _until_ended(home: Home, ledger: Ledger, about: book.About) -> dict[str, Any]:
    from pipelines.rollout_orphans import hurry

    began = time.monotonic()
    deadline, hangs = began + ABORT_SECONDS, began + HANGS_SECONDS
    while book.is_open(entries := book.of_rollout(ledger, about.id)):
        if not ledger.holder(book.lease_name(about.name)):
            _end_alone(home, ledger, about)
            continue
        if time.monotonic() > hangs:
            hurry(home, about)
            hangs = math.inf
        if time.monotonic() > deadline:
            holder = ledger.holder(book.lease_name(about.name))
            raise TransientError(f"rollout of {about.name}: asked, but its controller {holder} has not ended it yet")
        time.sleep(POLL_SECONDS)
    if book.state_of(entries) == states.DONE:
        raise PolicyRefusal(f"{about.name} version {about.version} was through already; `pilotline models rollback`")
    return _told(ledger, entries)


def _end_alone(home: Home, ledger: Ledger, about: book.About) -> None:
    """No controller lives: turn back what it left, record the end."""
    with ExitStack() as holding:
        try:
            journal = holding.enter_context(book.hold(ledger, about, (), wait=0.0))
        except TransientError:  # one began just now: it sees the request itself
            return
        if journal.report is not None or (asked := journal.abort()) is None:
            return
        stage = journal.state or "start"
        why = (
            f"FAIL, {stage}, aborted: asked for by {asked.who}: {asked.reason}; no controller leads it, "
            f"{_turn_back(home, about)}"
        )
        rule = RuleResult(rule="aborted", outcome="fail", observed=None, limit=None, subject=stage, reason=asked.reason)
        journal.leave(why, "rolled_back", (rule,))


def _turn_back(home: Home, about: book.About) -> str:
    """Traffic to stable where something answers, else end what is left of the run; what was done, for people.

    Processes are ended only where no run is active in this home: else they may be its own. One that hangs leads no
    more: when it wakes it finds weight 0 and the end in the ledger, and goes the way back.
    """
    from pipelines.rollout_orphans import to_stable

    if done := to_stable(home, about):
        return done
    with _no_run(home) as free:
        ended = end_leftovers(home.root) if free else []
    processes = f"its {len(ended)} processes were ended" if ended else "none of its processes was left"
    if not free:
        processes = "nothing of it answers, and the processes of the run that holds this home were left alone"
    return f"{processes}; {_stable_health(home)}; all traffic on stable"


def _stable_health(home: Home) -> str:
    """What users have meanwhile: the local service serves the ledger's champion and never a candidate."""
    from pipelines.serving_state import health

    return health(home)


@contextmanager
def _no_run(home: Home) -> Iterator[bool]:
    """Whether no run of this home is active; none can begin meanwhile."""
    with (home.root / "run.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _of(ledger: Ledger, name: str) -> dict[str, list[Entry]]:
    found = book.rollouts(ledger)
    return {key: entries for key, entries in found.items() if name in ("", book.about_of(entries).name)}


def _chosen(found: dict[str, list[Entry]]) -> list[Entry]:
    """The last one under way, else the last one."""
    every = list(found.values())
    return next((entries for entries in reversed(every) if book.is_open(entries)), every[-1])


def _told(ledger: Ledger, entries: list[Entry]) -> dict[str, Any]:
    about, state = book.about_of(entries), book.state_of(entries)
    moves = [entry for entry in entries if entry.payload["event"] in ("begin", "state", "passed", "abort", "end")]
    weights = [entry.payload["weight"] for entry in entries if "weight" in entry.payload]
    report, asked = book.report_of(entries), book.abort_of(ledger, about.id)
    ended = state in states.ENDS
    return {
        "rollout": about.id,
        "run_id": about.run_id,
        "model": about.name,
        "version": about.version,
        "stable_version": about.stable_version or None,
        "state": state or "begun",
        "weight": (100 if state == states.DONE else 0) if ended or state == states.ABORTING else (weights or [0])[-1],
        "since": moves[-1].time,
        "controller": "" if ended else ledger.holder(book.lease_name(about.name)),
        "abort": {"who": asked.who, "reason": asked.reason} if asked else None,
        "outcome": report.outcome if report else None,
        "reason": report.reason if report else moves[-1].payload.get("text", ""),
        "events": [
            {"time": entry.time, "event": entry.payload["event"], "state": entry.payload.get("state", ""),
             "text": entry.payload.get("text") or entry.payload.get("reason", "")}
            for entry in moves
        ],
    }  # fmt: skip
