"""The point-in-time join through Feast: CPU, time and peak memory, ours beside a hand-written query and Feast's store.

    python benchmarks/bench_features.py [--rows 1000000] [--history 400000] [--repeat 3] [--skip-long]

Three views of ten features. Every side is a process of its own and joins the same data: events with one version each,
so that the plainest hand-written ASOF query is right, while ours and Feast's still look for versions. CPU and wall
time are those of the join, without imports and without registering definitions; memory is that of the whole process.
The long run takes ten times the entity rows from Parquet by SQL and writes Parquet, beside the same with the rows once.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from components.core.paths import PROJECT_ROOT

VIEWS, FEATURES = 3, 10
KEYS = (50_000, 20_000, 100_000)  # entities of each view
DAY, SPAN_DAYS = 86_400_000_000, 730
CPU_BESIDE_HAND, CPU_BESIDE_FEAST, MEMORY_BESIDE_FEAST = 1.25, 0.25, 0.70
TIME_OF_TENFOLD, GB_OF_TENFOLD = 11.0, 3.0


def main() -> None:
    """Run every side and print one line a target."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=1_000_000, help="entity rows; the long run takes tenfold")
    options.add_argument("--history", type=int, default=400_000, help="rows a view")
    options.add_argument("--repeat", type=int, default=3, help="runs a side, of which the median counts")
    options.add_argument("--skip-long", action="store_true", help="leave out the run with ten times the rows")
    options.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.side:
        print(json.dumps(SIDES[args.side](args.folder, args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        _run("data", Path(folder), args)
        _beside(Path(folder), args)
        if not args.skip_long:
            _tenfold(Path(folder), args)


def _beside(folder: Path, args: argparse.Namespace) -> None:
    taken: dict[str, list[dict[str, Any]]] = {}
    for _ in range(args.repeat):  # in turn, so that a busy spell hits all sides
        for side in ("ours", "hand", "feast"):
            taken.setdefault(side, []).append(_run(side, folder, args))
    median = {
        side: {name: statistics.median(run[name] for run in runs) for name in ("cpu", "wall", "gb", "checksum")}
        for side, runs in taken.items()
    }
    print(f"{args.rows:,} entity rows, {VIEWS} views of {FEATURES} features over {args.history:,} rows each")
    for side, seen in median.items():
        print(f"  {side:5} {seen['cpu']:6.2f} CPU s  {seen['wall']:6.2f} s  {seen['gb']:5.2f} GB")
    for side in ("hand", "feast"):
        if not np.isclose(median[side]["checksum"], median["ours"]["checksum"], rtol=1e-9):
            raise SystemExit(f"{side} found other values than ours: the comparison is void")
    ours, hand, feast = median["ours"], median["hand"], median["feast"]
    _line("CPU beside the hand-written query", ours["cpu"] / hand["cpu"], CPU_BESIDE_HAND)
    _line("CPU beside Feast's duckdb store", ours["cpu"] / feast["cpu"], CPU_BESIDE_FEAST)
    _line("peak memory beside Feast's duckdb store", ours["gb"] / feast["gb"], MEMORY_BESIDE_FEAST)
    known, theirs = _run("ours_known", folder, args), _run("feast_known", folder, args)
    if not np.isclose(known["checksum"], theirs["checksum"], rtol=1e-9):
        raise SystemExit("as known then: Feast found other values than ours")
    _line("CPU as known then, beside Feast's", known["cpu"] / theirs["cpu"], CPU_BESIDE_FEAST)


def _tenfold(folder: Path, args: argparse.Namespace) -> None:
    once = _run("stream", folder, args)
    tenfold = _run("stream_tenfold", folder, args)
    print(f"{10 * args.rows:,} entity rows, SQL to Parquet: {tenfold['cpu']:.2f} CPU s, {tenfold['wall']:.2f} s")
    _line("time beside a tenth of the rows", tenfold["wall"] / once["wall"], TIME_OF_TENFOLD)
    _line("peak memory, GB", tenfold["gb"], GB_OF_TENFOLD)


def _line(what: str, value: float, target: float) -> None:
    print(f"  {what}: {value:.2f} (target at most {target}){'' if value <= target else ' MISSED'}")


def _run(side: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.bench_features", "--side", side, "--folder", str(folder)]
    command += ["--rows", str(args.rows), "--history", str(args.history)]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


# One side each, in a process of its own.


def _data(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    draw = np.random.default_rng(4)
    for view in range(VIEWS):
        event = draw.integers(0, SPAN_DAYS * DAY, args.history)
        late = draw.integers(0, 30 * DAY, args.history) * (draw.random(args.history) < 0.2)
        columns = {f"key{view}": draw.integers(0, KEYS[view], args.history)}
        columns |= {"event_timestamp": _times(event), "created": _times(event + late)}
        columns |= {f"f{view}_{at}": draw.random(args.history) for at in range(FEATURES)}
        pq.write_table(pa.table(columns), folder / f"view{view}.parquet")
    for name, rows in (("once", args.rows), ("tenfold", 0 if args.skip_long else 10 * args.rows)):
        writer = None
        for begin in range(0, rows, 1_000_000):
            count = min(1_000_000, rows - begin)
            columns = {"row": np.arange(begin, begin + count)}
            columns |= {"event_timestamp": _times(draw.integers(0, (SPAN_DAYS + 30) * DAY, count))}
            columns |= {f"key{view}": draw.integers(0, KEYS[view], count) for view in range(VIEWS)}
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(folder / f"{name}.parquet", table.schema)
            writer.write_table(table)
        if writer:
            writer.close()
    return {}


def _hand(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    import duckdb

    entity = pq.read_table(folder / "once.parquet").to_pandas()
    features = ", ".join(name for view in range(VIEWS) for name in _features(view))
    joins = [
        f"ASOF LEFT JOIN (SELECT key{view}, event_timestamp AS at{view}, {', '.join(_features(view))} "
        f"FROM '{folder}/view{view}.parquet') v{view} "
        f"ON entity.key{view} = v{view}.key{view} AND entity.event_timestamp >= v{view}.at{view}"
        for view in range(VIEWS)
    ]
    with duckdb.connect() as connection:
        connection.register("entity", entity)
        query = f"SELECT entity.*, {features} FROM entity {' '.join(joins)}"
        return _measured(lambda: connection.execute(query).to_arrow_table())


def _through_feast(folder: Path, offline: dict[str, Any], known: bool) -> dict[str, Any]:
    store, references = _store(folder, offline)
    entity = pq.read_table(folder / "once.parquet").to_pandas()
    named = {"filter_by_created_timestamp": True} if known else {}
    return _measured(lambda: store.get_historical_features(entity, references, **named).to_arrow())


def _stream(folder: Path, name: str) -> dict[str, Any]:
    store, references = _store(folder, OURS)
    rows, out = f"SELECT * FROM '{folder}/{name}.parquet'", folder / f"{name}.out.parquet"
    told = _measured(lambda: store.get_historical_features(rows, references).to_parquet(out))
    with pq.ParquetFile(out) as written, pq.ParquetFile(folder / f"{name}.parquet") as asked:
        assert written.metadata.num_rows == asked.metadata.num_rows
        begin = 0
        for batch in written.iter_batches(columns=["row"]):
            row = batch["row"].to_numpy()
            assert (row == np.arange(begin, begin + len(row))).all(), "rows are in another order"
            begin += len(row)
    out.unlink()
    return told


def _store(folder: Path, offline: dict[str, Any]) -> tuple[Any, list[str]]:
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
    from feast.repo_config import RepoConfig
    from feast.types import Float64

    warnings.simplefilter("ignore")
    entities = [
        Entity(name=f"key{view}", join_keys=[f"key{view}"], value_type=ValueType.INT64) for view in range(VIEWS)
    ]
    views = [
        FeatureView(
            name=f"view{view}",
            entities=[entities[view]],
            ttl=timedelta(0),
            schema=[Field(name=name, dtype=Float64) for name in _features(view)],
            source=FileSource(
                path=str(folder / f"view{view}.parquet"),
                timestamp_field="event_timestamp",
                created_timestamp_column="created",
            ),
        )
        for view in range(VIEWS)
    ]
    config = RepoConfig(
        project="bench",
        provider="local",
        registry=str(folder / f"{offline['type'].rpartition('.')[2]}.registry.db"),
        offline_store=offline,
        entity_key_serialization_version=3,
        repo_path=str(folder),
    )
    store = FeatureStore(config=config)
    store.apply([*entities, *views])
    return store, [f"view{view}:{name}" for view in range(VIEWS) for name in _features(view)]


def _measured(work: Any) -> dict[str, Any]:
    cpu, began = time.process_time(), time.perf_counter()
    table = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"cpu": cpu, "wall": wall, "gb": peak, "checksum": _checksum(table) if table is not None else 0.0}


def _checksum(table: pa.Table) -> float:
    """The same whatever the order of the rows, another where a value sits in another row."""
    weight = 1.0 + table["row"].to_numpy() % 1009
    names = [name for view in range(VIEWS) for name in _features(view)]
    return float(sum((at + 1) * np.nansum(table[name].to_numpy() * weight) for at, name in enumerate(names)))


def _features(view: int) -> list[str]:
    return [f"f{view}_{at}" for at in range(FEATURES)]


def _times(microseconds: np.ndarray) -> pa.Array:
    start = int(datetime(2022, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    return pa.array(start + microseconds, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


OURS = {"type": "components.features.asof_store.AsofOfflineStore"}
FEAST = {"type": "duckdb"}
SIDES = {
    "data": _data,
    "hand": _hand,
    "ours": lambda folder, _: _through_feast(folder, OURS, False),
    "feast": lambda folder, _: _through_feast(folder, FEAST, False),
    "ours_known": lambda folder, _: _through_feast(folder, OURS, True),
    "feast_known": lambda folder, _: _through_feast(folder, FEAST, True),
    "stream": lambda folder, _: _stream(folder, "once"),
    "stream_tenfold": lambda folder, _: _stream(folder, "tenfold"),
}

if __name__ == "__main__":
    main()
