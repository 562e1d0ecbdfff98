"""The ledger on SQLite and on a real PostgreSQL: nothing twice, nothing altered, nothing late, compare-and-set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.core.digest import value_digest
from components.core.errors import IntegrityError, PilotlineError, PolicyRefusal, TransientError, UserError
from components.core.ledger import GENESIS, Anchor, Entry, Ledger
from tests.fakes.ledger_places import change

APPEND_ONLY = "append-only"
OPEN: list[Ledger] = []


def opened(url: str, **options: Any) -> Ledger:
    """A ledger that is closed after the test."""
    OPEN.append(Ledger(url, **options))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def closing_all() -> Iterator[None]:
    """Give all connections back."""
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture
def five(ledger_url: str) -> str:
    """URL of a ledger with five entries."""
    ledger = opened(ledger_url)
    for number in range(5):
        ledger.append("run", f"run:{number}", {"n": number, "text": 'ü " \\ \n'})
    ledger.close()
    return ledger_url


def test_the_same_key_returns_the_entry_that_is_there(five: str) -> None:
    """An effect that is tried again leaves one entry."""
    ledger = opened(five)
    assert ledger.append("run", "run:3", {"n": 99}).payload["n"] == 3
    assert len(ledger.entries()) == ledger.verify() == 5
    assert ledger.find("run:4") == ledger.entries("run")[4]
    assert ledger.find("run:9") is None


def test_hashes_are_of_the_canonical_json_of_the_whole_entry(five: str) -> None:
    """Whoever reads the table can check it without this code: sha256 of sorted JSON without white space."""
    before = GENESIS
    for entry in opened(five).entries():
        content = {name: value for name, value in entry.__dict__.items() if name != "hash"}
        assert entry.hash == value_digest(content)
        assert entry.previous == before
        before = entry.hash


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        (["update ledger set payload='{\"n\":7}' where seq=3"], "entry 3 .* was altered"),
        (["update ledger set payload=replace(payload, ':', ': ') where seq=3"], "entry 3 .* was altered"),
        (["update ledger set payload='{' where seq=1"], "entry 1 .* was altered"),
        (["update ledger set time='x' where seq=2"], "entry 2 .* was altered"),
        (["update ledger set kind='promotion' where seq=5"], "entry 5 .* was altered"),
        (["update ledger set key='other' where seq=4"], "entry 4 .* was altered"),
        (["delete from ledger where seq=2"], r"entry 2 is missing \(found 3\)"),
        (["delete from ledger where seq=1"], r"entry 1 is missing \(found 2\)"),
        (["update ledger set previous='x' where seq=4"], "entry 4 does not follow entry 3"),
        (["update ledger set seq=9 where seq=5"], r"entry 5 is missing \(found 9\)"),
        (
            [f"update ledger set seq={new} where seq={old}" for old, new in ((2, 20), (3, 2), (20, 3))],
            "entry 2 does not follow entry 1: altered or out of order",
        ),
        (["delete from ledger where seq=2", "update ledger set seq=seq-1 where seq>2"], "entry 2 does not follow"),
    ],
)
def test_the_first_bad_entry_is_named(five: str, statements: list[str], names: str) -> None:
    """Altered, missing and reordered entries all show, by whoever got past the triggers."""
    change(five, *statements)
    with pytest.raises(IntegrityError, match=names):
        opened(five).verify()


@pytest.mark.parametrize("value", ["x'ff7b'", "cast(x'ff7b' as text)", "x''"])
@pytest.mark.parametrize("column", ["time", "kind", "key", "payload", "previous", "hash"])
def test_bytes_that_are_no_text_are_an_altered_entry(tmp_path: Path, column: str, value: str) -> None:
    """Not a database that could be asked again: the entry is named, and whoever reads it is told the same."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = opened(url)
    for number in range(3):
        ledger.append("run", f"run:{number}", {"n": number})
    change(url, f"update ledger set {column}={value} where seq=2")
    with pytest.raises(IntegrityError, match=r"entry 2\b.*altered"):
        ledger.verify()
    with pytest.raises(IntegrityError, match="altered"):
        ledger.entries()
    change(url, f"update ledger set {column}='\x1b[2J' where seq=2")
    with pytest.raises(IntegrityError) as refused:
        ledger.verify()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("payload", ["[1]", "1", "null", "[" * 100_000])
def test_a_payload_that_is_no_object_is_an_altered_entry(five: str, payload: str) -> None:
    """Also for who reads without verifying."""
    change(five, f"update ledger set payload='{payload}' where seq=3")
    for read in (opened(five).verify, opened(five).entries):
        with pytest.raises(IntegrityError, match=r"entry 3 .* was altered"):
            read()


@pytest.mark.parametrize(
    "statement",
    [
        "update ledger set payload='{}' where seq=3",
        "update ledger set time='x'",
        "delete from ledger where seq=5",
        "delete from ledger",
        "insert into ledger select 9, time, kind, 'k9', payload, previous, hash from ledger where seq=1",
    ],
)
def test_the_database_refuses_to_alter_or_drop_an_entry(five: str, statement: str) -> None:
    """Triggers hold also against whoever goes past this code."""
    with pytest.raises(sa.exc.DatabaseError, match=APPEND_ONLY):
        change(five, statement, off_guard=False)
    assert opened(five).verify() == 5


def test_ways_around_the_triggers_are_refused_too(five: str) -> None:
    """TRUNCATE on Postgres; INSERT OR REPLACE on SQLite, which deletes without a DELETE."""
    sqlite = "insert or replace into ledger select seq, time, kind, key, '{}', previous, hash from ledger where seq=5"
    statement = sqlite if five.startswith("sqlite") else "truncate ledger"
    with pytest.raises(sa.exc.DatabaseError, match=APPEND_ONLY):
        change(five, statement, off_guard=False)
    assert opened(five).verify() == 5


def test_a_ledger_without_triggers_gets_them_when_it_is_opened(five: str) -> None:
    """A ledger that an earlier version wrote, or whose triggers somebody dropped."""
    change(five, "drop table ledger_leases")
    assert opened(five).verify() == 5
    with pytest.raises(sa.exc.DatabaseError, match=APPEND_ONLY):
        change(five, "delete from ledger", off_guard=False)
    with opened(five).hold("x") as lease:
        assert lease.token == 1


def test_an_end_that_was_cut_off_shows_by_what_others_saw(five: str) -> None:
    """The chain alone cannot show it; an anchor does, and names the first entry that is gone."""
    entries = opened(five).entries()
    anchors = [Anchor(entry.seq, entry.hash, f"run {entry.seq}") for entry in entries[2:]]
    assert opened(five).verify(anchors) == 5
    change(five, "delete from ledger where seq>=4")
    assert opened(five).verify() == 3
    with pytest.raises(IntegrityError, match=r"entry 4 is missing: the end was cut off \(run 4 saw entry 4\)"):
        opened(five).verify(anchors)
    change(five, "delete from ledger")
    with pytest.raises(IntegrityError, match="entry 1 is missing: the end was cut off"):
        opened(five).verify(anchors)


def test_a_ledger_written_anew_shows_by_what_others_saw(five: str) -> None:
    """All hashes fit together again, but not what somebody noted before."""
    anchor = Anchor(4, opened(five).entries()[3].hash, "the model's tag")
    change(five, "delete from ledger where seq>=3")
    ledger = opened(five)
    for number in range(3):
        ledger.append("run", f"forged:{number}", {})
    assert ledger.verify() == 5
    with pytest.raises(IntegrityError, match=r"entry 4 \(run forged:1\) is not the one that the model's tag saw"):
        ledger.verify([anchor])


def test_of_racing_writers_with_a_guard_one_wins(ledger_url: str) -> None:
    """The guard sees all entries of its kind inside the write transaction."""
    opened(ledger_url)
    refused: list[str] = []

    def only_first(found: list[Entry]) -> None:
        if found:
            raise PolicyRefusal(found[0].key)

    def race(number: int) -> None:
        try:
            opened(ledger_url).append("promotion", f"p{number}", {}, guard=only_first)
        except PolicyRefusal as error:
            refused.append(str(error))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    winner = opened(ledger_url).entries("promotion")
    assert len(winner) == 1
    assert refused == [winner[0].key] * 7


def test_times_rise_also_where_the_clock_is_set_back(ledger_url: str) -> None:
    """One order of entries is one order of times: no moment has two answers."""
    clock = iter([1000.0, 500.0, 500.0, 2000.0, 2000.0])
    ledger = opened(ledger_url, clock=lambda: next(clock))
    times = [datetime.fromisoformat(ledger.append("run", str(number), {}).time) for number in range(5)]
    assert all(one < other for one, other in pairwise(times))
    assert times[0].timestamp() == 1000.0
    assert times[3].timestamp() == 2000.0


def test_a_lease_is_held_by_one_at_a_time(ledger_url: str) -> None:
    """The second waits, and says who decides where it waited in vain; after that its token is higher."""
    ledger, other = opened(ledger_url), opened(ledger_url)
    with ledger.hold("promotion of triage") as first:
        with (
            pytest.raises(TransientError, match=f"promotion of triage: {first.holder} is deciding"),
            other.hold("promotion of triage", wait=0.05),
        ):
            pass
        with other.hold("promotion of other") as elsewhere:
            assert elsewhere.token == 1
    with other.hold("promotion of triage", wait=0.05) as second:
        assert second.token == first.token + 1


def test_a_writer_whose_lease_was_taken_over_writes_nothing(ledger_url: str) -> None:
    """Its token is old, however sure it is of itself; the one who took over writes."""
    now = [100.0]
    slow, fast = (opened(ledger_url, clock=lambda: now[0]) for _ in range(2))
    with slow.hold("promotion", seconds=30, wait=0) as stale:
        now[0] += 31
        with fast.hold("promotion", seconds=30, wait=0) as fresh:
            with pytest.raises(TransientError, match="took over meanwhile; nothing was written"):
                slow.append("promotion", "late", {}, fence=stale)
            fast.append("promotion", "first", {}, fence=fresh)
    assert [entry.key for entry in fast.entries()] == ["first"]
    with pytest.raises(TransientError, match="nothing was written"):
        fast.append("promotion", "after giving back", {}, fence=fresh)


def test_a_lease_that_ran_out_but_was_not_taken_over_still_holds(ledger_url: str) -> None:
    """Nobody else can have decided."""
    now = [100.0]
    ledger = opened(ledger_url, clock=lambda: now[0])
    with ledger.hold("promotion", seconds=30) as lease:
        now[0] += 3000
        assert ledger.append("promotion", "k", {}, fence=lease).seq == 1


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["take", "append"]), st.integers(-90, 90)), min_size=1, max_size=25
    )
)
def test_whatever_the_clocks_say_only_the_last_holder_writes(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, str, int]]
) -> None:
    """Three writers whose clocks are off by up to a minute and a half each way, each with the last lease it got.

    The oracle knows only who took the lease last: an append is accepted exactly from that one.
    """
    skew = [0.0]
    ledger = opened(f"sqlite:///{tmp_path_factory.mktemp('skew') / 'l.db'}", clock=lambda: 1_000_000.0 + skew[0])
    leases, last = {}, None
    for number, (writer, move, seconds) in enumerate(moves):
        skew[0] = float(seconds)
        if move == "take":
            try:
                leases[writer] = ledger._take("promotion", 30.0, 0.0)
                last = writer
            except TransientError:
                assert last is not None
        elif writer in leases:
            try:
                ledger.append("promotion", str(number), {}, fence=leases[writer])
                accepted = True
            except TransientError:
                accepted = False
            assert accepted == (writer == last)
    ledger.verify()
    ledger.close()


def test_a_database_that_is_gone_fails_in_words_within_bounds(ledger_url: str) -> None:
    """No password in the words, no traceback of an engine."""
    gone = "postgresql+psycopg://me:s3cret@127.0.0.1:9/none"
    with pytest.raises(TransientError, match="run again") as failed:
        opened(gone)
    assert "s3cret" not in str(failed.value)
    assert issubclass(failed.type, PilotlineError)


@pytest.mark.parametrize("url", ["nonsense", "nosuch://user:planted@host/name", "sqlite:/x", ""])
def test_a_url_that_is_none_is_one_line_without_its_password(url: str) -> None:
    """No form of a URL, a dialect that nobody has: what to write instead, and nothing of what was written."""
    with pytest.raises(UserError, match="its URL is none") as refused:
        Ledger(url)
    assert "planted" not in str(refused.value)
    assert "\n" not in str(refused.value)
