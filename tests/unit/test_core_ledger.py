"""The ledger: nothing twice, nothing altered unseen, compare-and-set under a race."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from components.core.errors import IntegrityError, PolicyRefusal
from components.core.ledger import Entry, Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of five entries."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'l.db'}")
    for number in range(5):
        ledger.append("run", f"run:{number}", {"n": number})
    return tmp_path / "l.db"


def test_the_same_key_returns_the_entry_that_is_there(path: Path) -> None:
    """An effect that is tried again leaves one entry."""
    ledger = Ledger(f"sqlite:///{path}")
    assert ledger.append("run", "run:3", {"n": 99}).payload == {"n": 3}
    assert len(ledger.entries()) == ledger.verify() == 5


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("update ledger set payload='{\"n\":7}' where seq=3", "entry 3"),
        ("update ledger set time='x' where seq=2", "entry 2"),
        ("delete from ledger where seq=2", "entry 2"),
        ("update ledger set previous='x' where seq=4", "entry 4"),
        ("update ledger set seq=9 where seq=5", "entry 5"),
    ],
)
def test_the_first_bad_entry_is_named(path: Path, sql: str, names: str) -> None:
    """Altered, missing and reordered entries all show."""
    with sqlite3.connect(path) as connection:
        connection.execute(sql)
    with pytest.raises(IntegrityError, match=names):
        Ledger(f"sqlite:///{path}").verify()


def test_of_racing_writers_with_a_guard_one_wins(tmp_path: Path) -> None:
    """The guard sees all entries of its kind inside the write transaction."""
    url = f"sqlite:///{tmp_path / 'race.db'}"
    Ledger(url)
    refused: list[str] = []

    def only_first(found: list[Entry]) -> None:
        if found:
            raise PolicyRefusal(found[0].key)

    def race(number: int) -> None:
        try:
            Ledger(url).append("promotion", f"p{number}", {}, guard=only_first)
        except PolicyRefusal as error:
            refused.append(str(error))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    winner = Ledger(url).entries("promotion")
    assert len(winner) == 1
    assert refused == [winner[0].key] * 7
