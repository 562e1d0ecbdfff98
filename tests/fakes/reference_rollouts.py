"""Rollouts on two real servers of the reference engine, behind proxies that spoil the canary's answers on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from components.core.home import Home
from components.core.protocols import ArrivedLabel, Decision, GoldenRow, Served
from components.core.recipe import Recipe
from components.serving.engines import Choice
from components.serving.load import Drive
from components.serving.reference import ReferenceEngine
from components.serving.replica import WARM_UP_REQUESTS, ReplicaSpec
from components.serving.replicas.local import LocalReplicas
from components.serving.stack import LocalStack
from tests.fakes.serving_case import tiny_recipe
from tests.fakes.vllm_fault_proxy import SpoilingEngine
from tests.fakes.vllm_pair import SAME, Pair

GOLDEN = 8
PROBES = 1 + WARM_UP_REQUESTS + 1 + GOLDEN  # what a canary is asked before traffic: ready, warm, golden, golden set
TIMEOUT_SECONDS = 4.0
ROLLOUT: dict[str, Any] = {
    "golden_requests": GOLDEN, "golden_tolerance": SAME, "requests_per_second": 40.0, "shadow_requests": 0,
    "steps": [50], "min_canary_requests": 100_000, "error_margin": 0.2, "score_shift": 0.1, "latency_ratio": 4.0,
    "slo_p95_ms": 60_000.0, "deadline_seconds": 150.0,
}  # fmt: skip


def recipe(**rollout: Any) -> Recipe:
    """Of rollouts here; machines that are busy need wide margins."""
    return tiny_recipe(rollout=ROLLOUT | rollout, serving={"request_timeout_seconds": TIMEOUT_SECONDS})


@dataclass
class Served2:
    """A stack that is open, its two versions, and what spoils its canary."""

    pair: Pair
    stack: LocalStack
    engine: SpoilingEngine
    servers: dict[str, Served]  # the model servers themselves, by version


@contextmanager
def served_by_reference(root: Path) -> Iterator[Served2]:
    """Two versions on two servers of the reference engine, started once; a stack whose replicas are proxies of them."""
    pair = Pair(root)
    with ExitStack() as everything:
        replicas, servers = LocalReplicas(ReferenceEngine(), root / "logs"), {}
        for arm, version, role in (("stable", "1", "stable"), ("canary", "2", "candidate")):
            folder = pair.dirs[role]
            assert folder is not None
            about = recipe()
            spec = ReplicaSpec(arm, "tiny", "causal_lm", folder, version, pair.digests[role], about.serving)
            replica = replicas.launch(spec, None)
            everything.callback(replica.stop, lambda: 0)
            servers[version] = replica
        ready = {version: replica.wait_ready() for version, replica in servers.items()}
        urls = {served.served_name: served.url for served in ready.values()}
        engine = SpoilingEngine(urls, ReferenceEngine().label, name="reference")
        stack = everything.enter_context(
            LocalStack(
                recipe=recipe(),
                home=Home.at(root / "home"),
                run_id="run-1",
                training_set=root / "set",
                choice=Choice(engine, "the reference engine behind a proxy"),
                service_module="tests.fakes.serving_case",
            )
        )
        yield Served2(pair, stack, engine, ready)


class Timed:
    """A stack that notes when a weight was in force: (seconds since 1970, percent)."""

    def __init__(self, stack: Any) -> None:
        self._stack, self.weights = stack, list[tuple[float, int]]()

    def set_weight(self, percent: int) -> None:
        """As the stack, which reads it back."""
        self._stack.set_weight(percent)
        self.weights.append((time.time(), percent))

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stack's."""
        return getattr(self._stack, name)


@contextmanager
def answering(stack: LocalStack) -> Iterator[str]:
    """Let controllers in other processes use a stack of this one, which outlives them; its address."""
    listener = Listener(family="AF_UNIX")
    with ThreadPoolExecutor(8, "stack") as pool:  # its threads live as long as the replicas that they start
        accepting = threading.Thread(target=_accept, args=(listener, pool, stack), daemon=True)
        accepting.start()
        yield str(listener.address)
        with suppress(OSError):
            Client(listener.address).close()
        accepting.join(5)
        listener.close()


def _accept(listener: Listener, pool: ThreadPoolExecutor, stack: LocalStack) -> None:
    while True:
        connection = listener.accept()
        try:
            name, arguments = connection.recv()
        except EOFError:  # nobody asks any more
            return
        pool.submit(_answer, connection, stack, name, arguments)


def _answer(connection: Connection, stack: LocalStack, name: str, arguments: Sequence[Any]) -> None:
    try:
        told = (True, stack.router.set_weights(*arguments) if name == "route" else getattr(stack, name)(*arguments))
    except Exception as error:
        told = (False, error)
    with suppress(OSError):  # who asked was killed
        connection.send(told)
    connection.close()


class RemoteStack:
    """A stack of another process, by its address; requests are sent from here."""

    def __init__(self, address: str, url: str) -> None:
        self._address, self._url = address, url

    def decide(
        self, rows: Sequence[Mapping[str, Any]], rate: float, stop: Any = None, under_way: Any = None
    ) -> Sequence[Decision]:
        """As the local stack, without mirrored requests."""
        return Drive(self._url, rows, rate, TIMEOUT_SECONDS + 1.0, stop, under_way).run()

    def launch(self, *asked: Any) -> None:
        """Wait for it in `start`."""

    def start(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> Served:
        """As the stack."""
        found: Served = self.ask("start", arm, model_dir, version, digest, golden)
        return found

    def stop(self, arm: str) -> None:
        """As the stack."""
        self.ask("stop", arm)

    def alive(self, arm: str) -> bool:
        """As the stack."""
        return bool(self.ask("alive", arm))

    def set_weight(self, percent: int) -> None:
        """As the stack."""
        self.ask("set_weight", percent)

    def set_shadow(self, on: bool) -> None:
        """As the stack."""
        self.ask("set_shadow", on)

    def score_arm(self, arm: str, rows: Sequence[Mapping[str, object]]) -> list[float | None]:
        """As the stack."""
        return list(self.ask("score_arm", arm, rows))

    def labels(self, after: int) -> Sequence[ArrivedLabel]:
        """As the stack."""
        return list(self.ask("labels", after))

    def ask(self, name: str, *arguments: Any) -> Any:
        """One call; raises what the stack raised."""
        with Client(self._address, family="AF_UNIX") as connection:
            connection.send((name, arguments))
            fine, told = connection.recv()
        if not fine:
            raise told
        return told
