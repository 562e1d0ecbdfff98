"""The path of a decision against calling the model server directly, and what the decision log costs.

    python benchmarks/bench_serving.py [--requests 400] [--rounds 5]

A stub model server of 20 ms, 8 callers in a closed loop, everything on this machine, the sides in turn within each
round: the stub directly; through Envoy alone; through a plain FastAPI+httpx pass-through; through the whole path
(features, prompt, Envoy, label, decision log); the whole path with a log that keeps nothing. Wall times hold the
callers' own work and that of whatever else runs here, so ratios within a run are what to read. The log's cost is told
in throughput and in CPU seconds of the service's process. Features come from a fixed function: reading the online store
is measured in bench_features_online.py.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil

from benchmarks.serving_stub import StubEngine
from components.core.home import Home
from components.core.processes import end, free_port, spawn, wait_until
from components.models.spec import spec_for
from components.serving.engines import Choice
from components.serving.load import nearest_rank
from components.serving.scoring import ARM_HEADER, scoring_request
from components.serving.stack import LocalStack
from tests.fakes.serving_case import rows, start_arm, tiny_recipe

CALLERS = 8
LOGGED, SILENT = "tests.fakes.serving_case", "benchmarks.serving_stub"


@dataclass
class Side:
    """One way to ask; `cpu` gives the CPU seconds of the process whose cost is told, where one is."""

    url: str
    body: Callable[[int], bytes]
    headers: dict[str, str] = field(default_factory=dict)
    cpu: Callable[[], float] | None = None
    seconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        sides = opened(Path(name), stack)
        load = os.getloadavg()[0]
        asyncio.run(measure(sides, args.requests, args.rounds))
        print(
            f"{args.rounds} rounds of {args.requests} requests a side, {CALLERS} callers, {os.cpu_count()} cores",
            end="",
        )
        print(f", load average before {load:.1f} (the cores are shared with whatever else runs)")
    report(sides)


def opened(root: Path, stack: ExitStack) -> dict[str, Side]:
    """All processes, and the sides that ask them."""
    whole, silent = (stack.enter_context(serving(root / name, module)) for name, module in
                     (("log", LOGGED), ("silent", SILENT)))  # fmt: skip
    served = whole.served("stable")
    renderer = spec_for("causal_lm").renderer(served.model_dir)
    given = rows(37)
    asked = [
        orjson.dumps(scoring_request(served.served_name, renderer.token_ids(row["features"], row["text"]),
                                     renderer.label_token_ids)) for row in given
    ]  # fmt: skip
    wanted = [orjson.dumps({"entities": row["entities"], "input": {"text": row["text"]}}) for row in given]
    plain = stack.enter_context(plain_before(served.url, root))

    def score(at: int) -> bytes:
        return asked[at % len(asked)]

    def decide(at: int) -> bytes:
        return wanted[at % len(wanted)]

    return {
        "direct": Side(f"{served.url}/v1/completions", score),
        "Envoy alone": Side(f"{whole.router_url}/v1/completions", score, {ARM_HEADER: "stable"}),
        "FastAPI+httpx": Side(f"{plain}/v1/completions", score),
        "whole path": Side(f"{whole.url}/v1/decisions", decide, cpu=cpu_of(whole)),
        "whole path, no log": Side(f"{silent.url}/v1/decisions", decide, cpu=cpu_of(silent)),
    }


@contextmanager
def serving(root: Path, module: str) -> Iterator[LocalStack]:
    """A serving stack with one arm on the stub."""
    root.mkdir()
    choice = Choice(StubEngine(), "stub")
    opened = LocalStack(
        recipe=tiny_recipe(), home=Home.at(root / "home"), run_id="bench", training_set=root, service_module=module,
        choice=choice,
    )  # fmt: skip
    with opened:
        start_arm(opened, root, "stable", "1")
        opened.set_weight(0)
        yield opened


@contextmanager
def plain_before(url: str, root: Path) -> Iterator[str]:
    """The plain pass-through before a model server."""
    import httpx

    port = free_port()
    command = [sys.executable, "-m", "benchmarks.serving_stub", "--port", str(port), "--plain", url]
    process = spawn(command, log=root / "plain.log")
    place = f"http://127.0.0.1:{port}"

    def up() -> bool:
        try:
            return httpx.get(f"{place}/docs", timeout=2.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        assert wait_until(up, 60.0, every=0.1)
        yield place
    finally:
        end(process, 5.0)


def cpu_of(stack: LocalStack) -> Callable[[], float]:
    """CPU seconds so far of the scoring service's process."""
    process = psutil.Process(stack.service.pid)

    def spent() -> float:
        used = process.cpu_times()
        return float(used.user + used.system)

    return spent


async def measure(sides: dict[str, Side], requests: int, rounds: int) -> None:
    """One round to warm up, then the sides in turn, each time in another order."""
    names = list(sides)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CALLERS)) as client:
        for number in range(rounds + 1):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                await one(client, sides[name], requests if number else 100, keep=bool(number))


async def one(client: aiohttp.ClientSession, side: Side, requests: int, keep: bool) -> None:
    """Some requests by eight callers."""
    waiting = iter(range(requests))
    taken: list[float] = []
    headers = {"content-type": "application/json", **side.headers}

    async def caller() -> None:
        for at in waiting:
            started = time.perf_counter()
            async with client.post(side.url, data=side.body(at), headers=headers) as response:
                answer: Any = orjson.loads(await response.read())
                assert response.status == 200, answer
            taken.append(time.perf_counter() - started)

    before, started = side.cpu() if side.cpu else 0.0, time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    seconds = time.perf_counter() - started
    await asyncio.sleep(0.2)  # the log's writer has its turn
    if keep:
        side.seconds += taken
        side.rates.append(requests / seconds)
        side.spent.append(((side.cpu() if side.cpu else 0.0) - before) / requests)


def report(sides: dict[str, Side]) -> None:
    """What each side adds to asking directly, and what the log costs."""
    direct = sorted(sides["direct"].seconds)
    added: dict[str, tuple[float, float]] = {}
    for name, side in sides.items():
        taken = sorted(side.seconds)
        p50, p95 = nearest_rank(taken, 0.5), nearest_rank(taken, 0.95)
        added[name] = (p50 - nearest_rank(direct, 0.5)) * 1e3, (p95 - nearest_rank(direct, 0.95)) * 1e3
        print(f"{name:20} p50 {p50 * 1e3:6.1f} ms  p95 {p95 * 1e3:6.1f} ms", end="")
        print(f"  adds {added[name][0]:+5.1f} and {added[name][1]:+5.1f} ms, {statistics.median(side.rates):5.0f}/s")
    ratios = [whole / plain for whole, plain in zip(added["whole path"], added["FastAPI+httpx"], strict=True)]
    print(f"whole path adds {ratios[0]:.2f}x (p50) and {ratios[1]:.2f}x (p95) of what FastAPI+httpx adds (target 1)")
    logged, silent = sides["whole path"], sides["whole path, no log"]
    cost = 1 - statistics.median(logged.rates) / statistics.median(silent.rates)
    cpu = [statistics.median(side.spent) * 1e3 for side in (logged, silent)]
    print(f"decision log: {cost:+.1%} of throughput (target under 5 %); the service's CPU {cpu[0]:.2f} ms", end="")
    print(f" a decision with it, {cpu[1]:.2f} without")


if __name__ == "__main__":
    main()
