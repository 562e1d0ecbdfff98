"""The whole chain: wall time, peak memory of all processes together, our own overhead beside the engines.

    python benchmarks/bench_chain.py [--engine vllm|reference] [--weeks 2]

Each week runs in the same fresh home: the first version, then a next version with its canary.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from components.core.paths import PROJECT_ROOT
from components.core.processes import OWNER, owner_token
from pipelines.demo import weekly_recipes

TARGET_MINUTES = {("vllm", 1): 5.0, ("vllm", 2): 8.0, ("reference", 1): 2.5, ("reference", 2): 4.0}
TARGET_GIB, TARGET_OVERHEAD, TARGET_HELP_SECONDS = 12.0, 0.15, 0.5


class PeakMemory:
    """Samples the proportional set size of every process of a home, twice a second."""

    def __init__(self, home: Path) -> None:
        self.peak_gib = 0.0
        self._token, self._stop = owner_token(home), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            total = 0
            for proc in psutil.process_iter():
                with suppress(psutil.Error, OSError):
                    if proc.environ().get(OWNER) == self._token:
                        total += proc.memory_full_info().pss
            self.peak_gib = max(self.peak_gib, total / 2**30)


def main() -> None:
    """Run the weeks and print one line each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--engine", choices=["vllm", "reference"], default="vllm")
    options.add_argument("--weeks", type=int, choices=[1, 2], default=2)
    args = options.parse_args()
    print(f"pilotline --help: {_help_seconds():.2f} CPU s (target under {TARGET_HELP_SECONDS})")
    with tempfile.TemporaryDirectory() as folder:
        for week, recipe in enumerate(weekly_recipes()[: args.weeks], start=1):
            _report(week, args.engine, _run(Path(folder) / "home", recipe.source.uri, recipe.source.until, args.engine))


def _run(home: Path, uri: str, until: str, engine: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "pipelines.cli", "run", "--home", str(home), "--json", "--engine", engine]
    command += ["--source", uri, "--set", f'source.until="{until}"']
    env = {**os.environ, OWNER: owner_token(home)}
    with PeakMemory(home) as memory:
        began = time.monotonic()
        done = subprocess.run(command, cwd=PROJECT_ROOT, env=env, capture_output=True, text=True, check=False)
        wall = time.monotonic() - began
    told = json.loads(done.stdout.splitlines()[-1])
    notes = [json.loads(path.read_text()) for path in (home / "runs" / told["run_id"] / "steps").glob("*.json")]
    engines: dict[str, float] = {}
    for note in notes:
        for name, seconds in note.get("engines", {}).items():
            engines[name] = engines.get(name, 0.0) + seconds
    return {"told": told, "wall": wall, "gib": memory.peak_gib, "engines": engines, "notes": notes}


def _report(week: int, engine: str, seen: dict[str, Any]) -> None:
    wall, inside = seen["wall"], sum(seen["engines"].values())
    print(f"week {week} with {engine}: {seen['told']['outcome']}")
    target, share = TARGET_MINUTES[engine, week], (wall - inside) / wall
    print(f"  wall {wall / 60:.2f} min (target {target}), ratio {wall / 60 / target:.2f}")
    print(f"  peak memory of all processes {seen['gib']:.1f} GiB (target {TARGET_GIB:.0f})")
    print(f"  outside the engines {wall - inside:.1f} s of {wall:.1f} s = {share:.0%} (target {TARGET_OVERHEAD:.0%})")
    print("  engines: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(seen["engines"].items())))
    steps = sorted(seen["notes"], key=lambda note: float(note["started"]))
    print("  steps:   " + ", ".join(f"{note['name']} {note['seconds']:.1f} s" for note in steps))


def _help_seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pipelines.cli", "--help"], cwd=PROJECT_ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
