"""Online features: reads against the bare store and Feast's SDK, and materialising against Feast's own.

    python benchmarks/bench_features_online.py [--rows 1000000]

Reads: one entity, 20 features of two views. Bare: the same two rows fetched by the store's own client (SQLite: one
SELECT by primary key a view; Redis: one MGET) and unpacked, nothing else; in turns with ours, medians of CPU
microseconds of the process, with Redis of wall microseconds. Feast's materialize is measured on a tenth of the rows,
since its time is linear in them. Each side runs in its own process; CPU seconds of that process and, with Redis, wall
seconds with the server beside it.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from components.features.latest.entries import key_of, unpack_numbers
from components.features.latest.places import open_latest
from components.features.materialise import materialise
from components.features.online import OnlineReader
from components.features.repository import Service, View
from tests.fakes.redis_server import redis_server

NOW = datetime(2025, 1, 1, tzinfo=UTC)
VIEWS = ("first", "second")
FEATURES = {view: tuple(f"{view}_{at}" for at in range(10)) for view in VIEWS}
READS = 3000


def main() -> None:
    """Measure and print; `--side` is one measured process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--side", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--url", default="")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(SIDES[args.side](Path(args.folder), args.url)))
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_history(folder / "whole", args.rows)
        write_history(folder / "tenth", max(args.rows // 10, 1))
        stores = {"SQLite": ""}
        if shutil.which("redis-server"):
            stores["Redis"] = stack.enter_context(redis_server(folder))
        for store, url in stores.items():
            ours, feast = (measured(side, folder, url) for side in ("ours", "feast"))
            ratio = feast["seconds"] * (args.rows / max(args.rows // 10, 1)) / ours["seconds"]
            print(f"materialise {args.rows} rows, {store}: ours {ours['seconds']:.1f} s", end="")
            print(f" ({ours['cpu']:.1f} CPU s), Feast {ratio:.1f}x as long (target 4x)")
            reads, sdk = measured("reads", folder, url), measured("sdk", folder, url)
            print(f"read of 20 features, {store}: p50 {reads['read']:.0f} us, bare {reads['bare']:.0f} us", end="")
            print(f" ({reads['read'] / reads['bare']:.2f}x, target 1.2x), Feast's SDK {sdk['read']:.0f} us")


def measured(side: str, folder: Path, url: str) -> dict[str, float]:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder), "--url", url]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])  # Feast prints its progress before
    return found


def write_history(folder: Path, rows: int) -> None:
    """Two history tables of one row an entity."""
    folder.mkdir()
    draw = np.random.default_rng(1)
    at = pa.array([NOW - timedelta(hours=1)] * rows, pa.timestamp("us", "UTC"))
    for view in VIEWS:
        columns: dict[str, Any] = {"who": pa.array([f"entity {n}" for n in draw.permutation(rows)])}
        columns |= {"event_timestamp": at, "created_timestamp": at}
        columns |= {name: pa.array(draw.random(rows)) for name in FEATURES[view]}
        pq.write_table(pa.table(columns), folder / f"{view}.parquet")


def ours(folder: Path, url: str) -> dict[str, float]:
    """Materialise one view of all rows (and the other, not timed, for the reads)."""
    store = open_latest(url or str(folder / "ours.db"))
    found = timed(
        lambda: materialise(store, "bench:first", folder / "whole" / "first.parquet", ["who"], FEATURES["first"], NOW)
    )
    materialise(store, "bench:second", folder / "whole" / "second.parquet", ["who"], FEATURES["second"], NOW)
    store.close()
    return found


def feast(folder: Path, url: str) -> dict[str, float]:
    """Feast's own materialize of one view of a tenth of the rows."""
    store = feast_store(folder, url)
    return timed(lambda: store.materialize(NOW - timedelta(days=1), NOW, feature_views=["first"]))


def reads(folder: Path, url: str) -> dict[str, float]:
    """Median microseconds of a read as the scoring service does it, and of the bare store."""
    store = open_latest(url or str(folder / "ours.db"))
    views = tuple(View(view, view, ("who",), FEATURES[view]) for view in VIEWS)
    names = tuple(name for view in VIEWS for name in FEATURES[view])
    reader = OnlineReader(store, "bench", Service("s", names, views), names, timedelta(0), "default")

    bare = bare_redis(url) if url else bare_sqlite(folder)
    sides = {"read": lambda who: reader.read({"who": who}), "bare": bare}
    clock = time.perf_counter_ns if url else time.thread_time_ns
    found = {side: statistics.median(times) for side, times in interleaved(sides, clock).items()}
    reader.close()
    return found


def bare_sqlite(folder: Path) -> Callable[[str], Any]:
    """Two SELECTs by hand."""
    connection = sqlite3.connect(folder / "ours.db")
    select = "SELECT event, created, body FROM latest WHERE view = ? AND key = ?"

    def read(who: str) -> list[Any]:
        key = key_of([who])
        rows = [connection.execute(select, (f"bench:{view}", key)).fetchone() for view in VIEWS]
        return [unpack_numbers(FEATURES[view], row[2]) for view, row in zip(VIEWS, rows, strict=True)]

    return read


def bare_redis(url: str) -> Callable[[str], Any]:
    """One MGET by hand."""
    import redis

    client: Any = redis.Redis.from_url(url, socket_timeout=2.0)  # as ours: none would wait for ever

    def read(who: str) -> list[Any]:
        key = key_of([who])
        rows = client.mget([b"pilotline:bench:%b\0%b" % (view.encode(), key) for view in VIEWS])
        return [unpack_numbers(FEATURES[view], row[16:]) for view, row in zip(VIEWS, rows, strict=True)]

    return read


def interleaved(sides: dict[str, Callable[[str], Any]], clock: Callable[[], int]) -> dict[str, list[float]]:
    """Microseconds of each call, the sides in turn, over entities drawn anew each time."""
    draw = np.random.default_rng(2)
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for at in range(2 * READS):
        who = f"entity {draw.integers(1000)}"
        for side, read in sides.items():
            started = clock()
            found = read(who)
            if at > READS // 10:
                taken[side].append((clock() - started) / 1e3)
            assert found
    return taken


def sdk(folder: Path, url: str) -> dict[str, float]:
    """Median microseconds of Feast's SDK on Feast's store, of the same shape."""
    store = feast_store(folder, url)
    store.materialize(NOW - timedelta(days=1), NOW, feature_views=["second"])
    names = [f"{view}:{name}" for view in VIEWS for name in FEATURES[view]]
    return {"read": median(lambda who: store.get_online_features(features=names, entity_rows=[{"who": who}]))}


def feast_store(folder: Path, url: str) -> Any:
    """Feast with its own online store on the smaller history."""
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
    from feast.repo_config import RepoConfig
    from feast.types import Float64

    place = folder / f"feast-{'redis' if url else 'sqlite'}"
    place.mkdir(exist_ok=True)
    online: dict[str, Any] = {"type": "sqlite", "path": str(place / "online.db")}
    if url:
        online = {"type": "redis", "connection_string": url.removeprefix("redis://").split("/")[0] + ",db=1"}
    config = RepoConfig(
        project="bench",
        provider="local",
        registry={"registry_type": "file", "path": str(place / "registry.db")},
        offline_store={"type": "duckdb"},
        online_store=online,
        entity_key_serialization_version=3,
        repo_path=place,
    )
    store = FeatureStore(config=config)
    who = Entity(name="who", join_keys=["who"], value_type=ValueType.STRING)
    views = [
        FeatureView(
            name=view,
            entities=[who],
            schema=[Field(name=name, dtype=Float64) for name in FEATURES[view]],
            source=FileSource(
                name=view,
                path=str(folder / "tenth" / f"{view}.parquet"),
                timestamp_field="event_timestamp",
                created_timestamp_column="created_timestamp",
            ),
        )
        for view in VIEWS
    ]
    store.apply([who, *views])
    return store


def median(read: Callable[[str], Any]) -> float:
    """Median microseconds over entities drawn anew each time."""
    draw = np.random.default_rng(2)
    taken = []
    for at in range(READS):
        who = f"entity {draw.integers(1000)}"
        started = time.perf_counter()
        read(who)
        if at > READS // 10:
            taken.append(time.perf_counter() - started)
    return float(np.median(taken)) * 1e6


def timed(call: Callable[[], Any]) -> dict[str, float]:
    """Wall and CPU seconds of this process."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.perf_counter() - started, "cpu": cpu}


SIDES: dict[str, Callable[[Path, str], dict[str, float]]] = {"ours": ours, "feast": feast, "reads": reads, "sdk": sdk}

if __name__ == "__main__":
    main()
