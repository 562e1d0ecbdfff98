"""The stores of newest values, SQLite and a real Redis, alone and as Feast's online stores."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.processes import free_port
from components.features.latest.entries import LatestStore, Written, key_of, pack_numbers, unpack_numbers
from components.features.latest.places import open_latest
from components.features.materialise import materialise
from tests.fakes.redis_server import redis_server

STORES = ["sqlite", pytest.param("redis", marks=pytest.mark.redis)]
START = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis for this file."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store is."""
    if request.param == "sqlite":
        return str(tmp_path / "online.db")
    import redis

    url = str(request.getfixturevalue("redis_url"))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def store(address: str) -> Iterator[LatestStore]:
    """A new store."""
    opened = open_latest(address)
    yield opened
    opened.close()


def test_the_newest_event_wins_in_every_order(store: LatestStore) -> None:
    """Whatever the order of arrival, the later event stays, and of one event the one made later."""
    versions = [(10, 10, b"a"), (20, 20, b"b"), (20, 25, b"c"), (-5, 90, b"d")]
    for number, order in enumerate(itertools.permutations(versions)):
        key = key_of([number])
        for event, created, body in order:
            store.write("t", [Written(key, event, created, body)])
        assert store.read([("t", key)]) == [(20, 25, b"c")], order


def test_one_batch_may_hold_a_key_twice(store: LatestStore) -> None:
    """Within one write the newest wins too."""
    store.write("t", [Written(b"k", 2, 2, b"new"), Written(b"k", 1, 9, b"old")])
    assert store.read([("t", b"k"), ("t", b"none"), ("u", b"k")]) == [(2, 2, b"new"), None, None]


def test_many_rows_are_written_in_bounded_parts(store: LatestStore) -> None:
    """More rows than one transaction or one trip holds come back each by its key."""
    rows = [Written(key_of([f"k{at}"]), at, at, str(at).encode()) for at in range(120_001)]
    random.Random(1).shuffle(rows)
    assert store.write("t", iter(rows)) == len(rows)
    asked = [rows[at] for at in range(0, len(rows), 4999)]
    assert store.read([("t", row.key) for row in asked]) == [tuple(row[1:]) for row in asked]


def test_racing_writers_lose_nothing(address: str) -> None:
    """Four writers of interleaved versions of 50 keys: each key ends with its newest version."""

    def write(start: int) -> None:
        mine = open_latest(address)
        for version in range(start, 200, 4):
            mine.write("t", [Written(key_of([k]), version, version, b"%d" % version) for k in range(50)])
        mine.close()

    threads = [threading.Thread(target=write, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    reader = open_latest(address)
    assert reader.read([("t", key_of([k])) for k in range(50)]) == [(199, 199, b"199")] * 50
    reader.close()


@pytest.mark.redis
def test_the_server_s_locale_decides_nothing(tmp_path: Path) -> None:
    """Under a locale that sorts bytes otherwise, every newer entry still wins, in both orders of arrival."""
    made = tmp_path / "en_US.UTF-8"
    command = ["localedef", "-i", "en_US", "-f", "UTF-8", str(made)]
    if shutil.which("localedef") is None or subprocess.run(command, capture_output=True).returncode > 1:
        assert "redis" not in os.environ.get("PILOTLINE_REQUIRE", "").split(","), "install Debian's locales"
        pytest.skip("localedef or its sources are not on this machine")
    with redis_server(tmp_path, LOCPATH=str(tmp_path), LC_ALL="en_US.UTF-8") as url:
        opened = open_latest(url)
        for number in range(200):
            event = int(START.timestamp() * 1e6) + number * 86_400_000_000
            old, new = (
                Written(key_of([number]), event, event, b"old"),
                Written(key_of([number]), event + 1, event, b"new"),
            )
            opened.write("t", [new, old] if number % 2 else [old, new])
        found = opened.read([("t", key_of([number])) for number in range(200)])
        opened.close()
    assert [entry and entry.body for entry in found] == [b"new"] * 200


def test_dropping_forgets_one_table(store: LatestStore) -> None:
    """Other tables, and tables whose names begin alike or hold a wildcard, stay."""
    for table in ("a", "ab", "a*", "[a]"):
        store.write(table, [Written(b"k", 1, 1, table.encode())])
        store.set_mark(table, "far")
    store.drop("a*")
    assert [store.mark(table) for table in ("a", "ab", "a*", "[a]")] == ["far", "far", "", "far"]
    found = store.read([(table, b"k") for table in ("a", "ab", "a*", "[a]")])
    assert [entry and entry.body for entry in found] == [b"a", b"ab", None, b"[a]"]


def test_keys_tell_values_apart() -> None:
    """No two lists of values share a key: not by where one value ends, nor by its type."""
    values = [
        ["a", "b"],
        ["ab", ""],
        ["", "ab"],
        ["a:b"],
        ["1", "2"],
        [1, 2],
        [12],
        ["12"],
        [b"12"],
        ["1:a"],
        ["é"],
        [""],
    ]
    assert len({key_of(given) for given in values}) == len(values)


def test_numbers_come_back_as_they_were() -> None:
    """Every double, NaN as null; a body of other features is not read as these."""
    matrix = np.array([[0.1, -0.0, 1e308], [np.nan, 5e-324, float(2**53 + 2)]])
    first, second = pack_numbers(["a", "b", "c"], matrix)
    assert unpack_numbers(["a", "b", "c"], first) == [0.1, -0.0, 1e308]
    assert unpack_numbers(["a", "b", "c"], second) == [None, 5e-324, float(2**53 + 2)]
    assert unpack_numbers(["a", "c", "b"], first) is None
    assert unpack_numbers(["a", "b"], first) is None


def days(numbers: Iterable[int]) -> pa.Array:
    """The moments so many days after the start."""
    return pa.array([START + timedelta(days=number) for number in numbers], pa.timestamp("us", "UTC"))


def history(path: Path, rows: list[tuple[str, int, int, float | None]]) -> Path:
    """A history table of (entity, event day, day on which it was made, value)."""
    frame = pd.DataFrame(rows, columns=["who", "event", "made", "value"])
    table = pa.table(
        {
            "who": pa.array(frame["who"], pa.string()),
            "event_timestamp": pa.array([START + timedelta(days=d) for d in frame["event"]], pa.timestamp("us", "UTC")),
            "created_timestamp": pa.array(
                [START + timedelta(days=d) for d in frame["made"]], pa.timestamp("us", "UTC")
            ),
            "value": pa.array(frame["value"], pa.float64()),
        }
    )
    pq.write_table(table, path)
    return path


def read_all(store: LatestStore, table: str, names: list[str]) -> dict[str, tuple[int, float | None]]:
    """Entity → (event day, value) of all that are there."""
    found = {}
    for name, entry in zip(names, store.read([(table, key_of([name])) for name in names]), strict=True):
        if entry is not None:
            values = unpack_numbers(["value"], entry.body)
            assert values is not None
            found[name] = ((entry.event - int(START.timestamp() * 1e6)) // 86_400_000_000, values[0])
    return found


def newest(rows: list[tuple[str, int, int, float | None]], until: int) -> dict[str, tuple[int, float | None]]:
    """The oracle: by hand, of what was made by then the later event, of one event the one made later."""
    best: dict[str, tuple[int, int, float | None]] = {}
    for who, event, made, value in rows:
        if made <= until and (who not in best or (event, made) > best[who][:2]):
            best[who] = (event, made, value)
    return {who: (event, value) for who, (event, made, value) in best.items()}


def test_materialising_in_steps_equals_at_once_and_late_rows_appear(store: LatestStore, tmp_path: Path) -> None:
    """Random histories, written up to random days in turn, some twice: always what the oracle says, nothing more."""
    random_ = random.Random(5)
    for number in range(15):
        made = {(f"e{random_.randrange(4)}", random_.randrange(30), random_.randrange(40)) for _ in range(30)}
        rows = [(who, event, event + late, random_.choice([None, random_.random()])) for who, event, late in made]
        path = history(tmp_path / "h.parquet", rows)
        table = f"p:{number}"
        for day in [*sorted(random_.sample(range(75), 4)), 75]:
            for _ in range(random_.choice([1, 1, 2])):
                materialise(store, table, path, ["who"], ["value"], START + timedelta(days=day))
            assert read_all(store, table, [f"e{at}" for at in range(4)]) == newest(rows, day)


def test_only_what_is_new_is_written(store: LatestStore, tmp_path: Path) -> None:
    """The second call writes the entities that changed; `whole` writes all again and changes nothing."""
    rows: list[tuple[str, int, int, float | None]] = [(f"e{at}", 1, 1, float(at)) for at in range(50)]
    path = history(tmp_path / "h.parquet", [*rows, ("e7", 9, 9, 70.0)])
    assert materialise(store, "t", path, ["who"], ["value"], START + timedelta(days=5)).rows == 50
    assert materialise(store, "t", path, ["who"], ["value"], START + timedelta(days=10)).rows == 1
    assert materialise(store, "t", path, ["who"], ["value"], START + timedelta(days=10)).rows == 0
    assert materialise(store, "t", path, ["who"], ["value"], START + timedelta(days=10), whole=True).rows == 50
    assert read_all(store, "t", ["e6", "e7"]) == {"e6": (1, 6.0), "e7": (9, 70.0)}


def test_another_history_of_the_same_past_is_written_whole(store: LatestStore, tmp_path: Path) -> None:
    """Rows that a later history adds or corrects before the last mark are not passed over, nor those at the mark."""
    rows: list[tuple[str, int, int, float | None]] = [("a", 1, 1, 1.0), ("b", 5, 5, 1.0)]
    materialise(store, "t", history(tmp_path / "h.parquet", rows), ["who"], ["value"], START + timedelta(days=30))
    more = [("a", 1, 1, 9.0), ("b", 5, 5, 1.0), ("c", 3, 3, 3.0), ("b", 30, 30, 4.0)]
    path = history(tmp_path / "later.parquet", more)
    materialise(store, "t", path, ["who"], ["value"], START + timedelta(days=30))
    assert read_all(store, "t", ["a", "b", "c"]) == newest(more, 30)


def test_the_future_is_not_materialised(store: LatestStore, tmp_path: Path) -> None:
    """A mistyped end is refused, and writes no mark that would pass over what comes."""
    path = history(tmp_path / "h.parquet", [("a", 1, 1, 1.0)])
    with pytest.raises(UserError, match="lies in the future"):
        materialise(store, "t", path, ["who"], ["value"], datetime(9999, 12, 31, tzinfo=UTC))
    assert materialise(store, "t", path, ["who"], ["value"], START + timedelta(days=5)).rows == 1


def test_a_partly_written_table_is_completed_by_running_again(store: LatestStore, tmp_path: Path) -> None:
    """Cut off after some rows, no mark is kept; the next run writes the rest."""

    class Dying:
        """A store that dies after ten rows."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def write(self, table: str, entries: Iterator[Written]) -> int:
            store.write(table, itertools.islice(entries, 10))
            raise TransientError("gone")

    rows: list[tuple[str, int, int, float | None]] = [(f"e{at}", 1, 1, float(at)) for at in range(50)]
    path = history(tmp_path / "h.parquet", rows)
    with pytest.raises(TransientError):
        materialise(Dying(), "t", path, ["who"], ["value"], START + timedelta(days=5))  # type: ignore[arg-type]
    names = [f"e{at}" for at in range(50)]
    assert len(read_all(store, "t", names)) == 10
    materialise(store, "t", path, ["who"], ["value"], START + timedelta(days=5))
    assert read_all(store, "t", names) == newest(rows, 5)


def test_what_is_no_history_is_named(store: LatestStore, tmp_path: Path) -> None:
    """A file without the columns, or none at all, is one line with its name."""
    path = history(tmp_path / "h.parquet", [("a", 1, 1, 1.0)])
    for keys, features in ((["company"], ["value"]), (["who"], ["other"])):
        with pytest.raises(UserError, match=r"h\.parquet.*cannot be materialized"):
            materialise(store, "t", path, keys, features, START)
    with pytest.raises(UserError, match=r"none\.parquet"):
        materialise(store, "t", tmp_path / "none.parquet", ["who"], ["value"], START)


def test_an_unreachable_redis_is_one_line() -> None:
    """Bounded, with the address and the way out, and no password."""
    port = free_port()
    with pytest.raises(TransientError) as raised:
        open_latest(f"redis://:hunter2@127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in str(raised.value)
    assert "start it" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_addresses_and_files_that_are_no_store(tmp_path: Path) -> None:
    """An unknown scheme is the user's; a file of other bytes is damage."""
    with pytest.raises(UserError, match="no such online store"):
        open_latest("mongodb://host/db")
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(IntegrityError, match=r"x\.db: is damaged"):
        open_latest(str(tmp_path / "x.db"))
