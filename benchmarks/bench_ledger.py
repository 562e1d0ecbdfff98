"""The ledger's targets: a promotion on SQLite, races without a lost update, a million entries verified.

    python benchmarks/bench_ledger.py [--entries 1000000] [--promotions 40] [--rounds 20]

Times are wall and processor time of this process; the slowest promotion counts, not the mean.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from components.core.digest import canonical_json
from components.core.errors import PolicyRefusal
from components.core.home import Home
from components.core.ledger import GENESIS, Ledger
from components.core.ledger.entries import entry_hash
from components.registry.champions import champion
from components.registry.promote import promote
from components.tracking.mlflow_tracking import Tracking
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import digest_of, registered, rollout_report, version_ref

RIVALS = 8


def main() -> None:
    """Measure and print, with the targets."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--entries", type=int, default=1_000_000)
    options.add_argument("--promotions", type=int, default=40)
    options.add_argument("--rounds", type=int, default=20)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'large.db'}"
        fill(folder / "large.db", url, args.entries)
        verified(url, args.entries)
        promotions("promotion, ledger alone", folder / "a", f"sqlite:///{folder / 'small.db'}", args.promotions, False)
        promotions(f"promotion, after {args.entries:,} entries", folder / "b", url, args.promotions, False)
        promotions("promotion, with MLflow's aliases and tag", folder / "c", "", args.promotions, True)
        races(folder / "d", args.rounds)


def fill(path: Path, url: str, count: int) -> None:
    """Write a chained ledger as fast as SQLite takes it."""
    Ledger(url).close()
    previous = GENESIS
    with sqlite3.connect(path) as connection:
        for start in range(0, count, 50_000):
            rows = []
            for seq in range(start + 1, min(start + 50_000, count) + 1):
                payload = canonical_json({"run_id": f"run-{seq}", "outcome": "promoted", "digest": f"{seq:064x}"})
                moment = f"2026-01-01T00:00:00.{seq % 1_000_000:06d}+00:00"
                about: dict[str, Any] = {"seq": seq, "time": moment, "kind": "run", "key": f"run:{seq}"}
                sealed = entry_hash(**about, payload=payload, previous=previous)
                rows.append((*about.values(), payload, previous, sealed))
                previous = sealed
            connection.executemany("insert into ledger values (?, ?, ?, ?, ?, ?, ?)", rows)


def verified(url: str, count: int) -> None:
    """Entries a second of `pilotline ledger verify`'s walk."""
    with closing(Ledger(url)) as ledger:
        wall, cpu = time.perf_counter(), time.process_time()
        assert ledger.verify() == count
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"verify {count:,} entries: {count / wall:,.0f} entries/s ({count / cpu:,.0f} a CPU s; {wall:.1f} s) "
        "target 100,000"
    )


def promotions(what: str, folder: Path, url: str, count: int, real: bool) -> None:
    """One after another, each judged against the one before."""
    home = Home.at(folder)
    tracking: Any = Tracking.at(home) if real else FakeTracking(home.models)
    for number in range(1, count + 1):
        kept = home.models / digest_of(str(number))
        kept.mkdir(parents=True, exist_ok=True)
        tracking.ensure_version("triage", digest_of(str(number)), kept, "", {"pilotline.key": str(number)})
    times, work = [], []
    with closing(Ledger(url or home.ledger_url)) as ledger:
        for number in range(1, count + 1):
            version = version_ref(str(number), str(number - 1) if number > 1 else "")
            started, busy = time.perf_counter(), time.process_time()
            assert promote(version, rollout_report(version), ledger, tracking, f"run-{number}").outcome == "promoted"
            times.append(1000 * (time.perf_counter() - started))
            work.append(1000 * (time.process_time() - busy))
    rest, busy = times[1:], statistics.median(work[1:])  # the first one loads the engine
    told = f"median {statistics.median(rest):.1f} ms ({busy:.1f} CPU ms), slowest of {len(rest)} {max(rest):.1f} ms"
    print(f"{what}: {told}, target 100 ms")


def races(folder: Path, rounds: int) -> None:
    """Rounds of eight at once: one winner each, the ledger holds exactly the winners."""
    home = Home.at(folder)
    tracking = FakeTracking(home.models)
    registered(tracking, str(RIVALS + 1))
    with closing(Ledger(home.ledger_url)) as ledger:
        first = version_ref("1")
        promote(first, rollout_report(first), ledger, tracking, "run-0")
        before, started = "1", time.perf_counter()
        for round_ in range(rounds):
            ends = _race(home.ledger_url, tracking, before, round_)
            (before,) = [number for number, end in ends.items() if end == "promoted"]
            live = champion("triage", ledger)
            assert live is not None
            assert live.version == before
        won = len(ledger.entries("promotion")) - 1
        took = time.perf_counter() - started
    print(f"{rounds} rounds of {RIVALS} racing: {won} winners, no lost update; {1000 * took / rounds:.0f} ms a round")


def _race(url: str, tracking: FakeTracking, before: str, round_: int) -> dict[str, str]:
    start, ends = threading.Barrier(RIVALS), {}

    def run(number: str) -> None:
        version = version_ref(number, before)
        with closing(Ledger(url)) as own:
            start.wait()
            try:
                ends[number] = promote(
                    version, rollout_report(version), own, tracking, f"run-{round_}-{number}"
                ).outcome
            except PolicyRefusal:
                ends[number] = "refused"

    rivals = [str(number) for number in range(1, RIVALS + 2) if str(number) != before]
    threads = [threading.Thread(target=run, args=(number,)) for number in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


if __name__ == "__main__":
    main()
