"""The decision log by hand: one subject's data made unreadable, settled rows moved to parts."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from components.core.errors import UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.people import Person
from components.serving.decision_log import DECISION_LOG
from components.serving.decision_log.keys import KEYS, SubjectKeys
from components.serving.decision_log.parts import Parts
from components.serving.decision_log.schema import connect, now

FORGOTTEN = "forgotten"  # kind of the ledger's entries


def forget(home: Home, subject: str, reason: str, who: Person) -> dict[str, Any]:
    """Destroy the subject's key and note that in the ledger, which names the subject by its pseudonym only.

    Raises:
        UserError: nothing was kept under keys in this home, or their master key is gone or another one.
        TransientError: the ledger does not answer; the key is destroyed all the same, and asking again notes it.
    """
    if not (home.root / KEYS).is_file():
        raise UserError(f"home {home.root}: no decisions were kept under a subject's key here; look at --home")
    with closing(SubjectKeys.at(home.root)) as keys:
        name = keys.pseudonym(subject)
        gone = keys.forget(subject, reason)
        times = keys.times_forgotten(subject)
    if times:
        payload = {"subject": name, "reason": reason, "who": who.to_dict(), "keys": 1}
        with closing(Ledger(home.ledger_url)) as ledger:
            ledger.append(FORGOTTEN, f"forgotten:{name}:{times}", payload)
    return {"subject": name, "keys": gone, "time": now()}


def compact(home: Home, store: str = "", days: int = 0) -> dict[str, Any]:
    """Move settled decisions to parts and, where `days` is given, delete what is older.

    Raises:
        UserError: no decisions here. TransientError: the store cannot be written.
    """
    path = home.root / DECISION_LOG
    if not path.exists():
        raise UserError(f"decision log {path}: no decisions were made in this home yet")
    if days < 0:
        raise UserError(f"--days {days}: a number of days, 0 deletes nothing")
    place = store or str(home.root / "decisions")
    with closing(connect(path)) as connection:
        parts = Parts(connection, place)
        written = parts.move()
        dropped = parts.drop(days) if days else 0
    return {"parts": written, "dropped": dropped, "store": place}
