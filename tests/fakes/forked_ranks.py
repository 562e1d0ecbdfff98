"""Training jobs whose launcher and ranks are forks of one process that has the engines loaded already.

The very launcher, ranks and DeepSpeed, without the seconds that each start of Python and torch costs: so a test can
kill and restart dozens of times. Ranks die with their launcher, and the first that fails ends the others, as with
torchrun.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from components.core.errors import PilotlineError, TransientError
from components.core.processes import die_with_parent, free_port
from components.core.recipe import Recipe, parse_recipe
from components.core.records import ModelRef
from components.training.backends.launch import Ended, Launch, Watch, placement, rank_environment

PRELOADED = "tests.fakes.forked_ranks_preloaded"


@dataclass
class ForkedRanks:
    """A back-end whose ranks are forks of this process."""

    name = "local"
    pids: list[int] = field(default_factory=list)

    def submit(self, launch: Launch) -> str:
        """Fork the ranks."""
        self.pids = _fork(launch.recipe, launch.log, _work(launch))
        return str(self.pids)

    def wait(self, launch: Launch, seconds: float, watch: Watch) -> Ended:
        """Wait for the ranks; the first that fails ends the others."""
        try:
            return Ended(self._wait(seconds, watch))
        finally:
            self._end(2.0)

    def cancel(self, launch: Launch) -> None:
        """End what runs."""
        self._end(0.5)

    def logs(self, launch: Launch) -> str:
        """What the ranks wrote."""
        return launch.log.read_text()

    def result(self, launch: Launch) -> Ended | None:
        """Unused here."""
        return None

    def _wait(self, seconds: float, watch: Watch) -> int:
        deadline = time.monotonic() + seconds
        running = list(self.pids)
        while running:
            for pid in list(running):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    running.remove(pid)
                    self.pids.remove(pid)
                    if code := os.waitstatus_to_exitcode(status):
                        return code
            watch(self.pids[0] if self.pids else os.getpid())
            if time.monotonic() > deadline:
                raise TransientError("training did not end in time; raise training.timeout_minutes")
            time.sleep(0.01)
        return 0

    def _end(self, grace: float) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + grace
        while self.pids:
            for pid in list(self.pids):
                if time.monotonic() > until:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                done, _ = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.pids.remove(pid)
            time.sleep(0.01)


def _work(launch: Launch) -> Callable[[], int]:
    def work() -> int:
        from components.training.worker import main

        return main([str(launch.job_file)])

    return work


def _fork(recipe: Recipe, log: Path, work: Callable[[], int]) -> list[int]:
    """A process a rank of the recipe that does this work; their ids."""
    port, ranks = free_port(), recipe.training.ranks
    return [_fork_one(recipe, log, work, rank, port) for rank in range(ranks)]


def _fork_one(recipe: Recipe, log: Path, work: Callable[[], int], rank: int, port: int) -> int:
    if pid := os.fork():
        return pid
    code, ranks = 1, recipe.training.ranks
    try:
        die_with_parent()
        stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os.environ.update(rank_environment(placement(recipe)))
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
        code = work()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def call(module: str, root: Path, stages: Sequence[int], recipe: Recipe, seconds: float = 300) -> None:
    """Run `main(root, stages)` of a module of tests.fakes on the recipe's ranks; what they wrote where they fail."""
    process = _context().Process(target=_call, args=(module, root, list(stages), recipe.to_json()))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0, (root / "ranks.log").read_text()[-3000:]


def _call(module: str, root: Path, stages: list[int], recipe: str) -> None:
    def work() -> int:
        importlib.import_module(f"tests.fakes.{module}").main(root, stages)
        return 0

    ranks = ForkedRanks(_fork(parse_recipe(recipe), root / "ranks.log", work))
    try:
        ended = ranks._wait(300, lambda _: None)
    finally:
        ranks._end(2.0)
    os._exit(ended)


def start(root: Path, recipe: str, env: Mapping[str, str] | None = None, before: str = "") -> BaseProcess:
    """Start the launcher of `root`'s training set; `outcome` tells how it ended.

    Args:
        root: holds `set/`; gets `ck/`, `out/`, `log` and `outcome.json`.
        recipe: Recipe.to_json.
        env: further environment of launcher and ranks.
        before: name of a function of tests.fakes.forked_ranks_preloaded that the launcher calls first.
    """
    (root / "outcome.json").unlink(missing_ok=True)
    process = _context().Process(target=_launch, args=(root, recipe, dict(env or {}), before))
    process.start()
    return process


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def run(root: Path, recipe: str, env: Mapping[str, str] | None = None, seconds: float = 600, before: str = "") -> Any:
    """Run the launcher to its end; the ModelRef, or the error that the caller of `train` would see."""
    process = start(root, recipe, env, before)
    process.join(seconds)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"training did not end within {seconds} s: {(root / 'log').read_text()[-2000:]}")
    return outcome(root)


def outcome(root: Path) -> ModelRef | PilotlineError | None:
    """How the launcher ended: its model or its error; None where it was killed."""
    from components.core.errors import KINDS

    with suppress(FileNotFoundError):
        values = json.loads((root / "outcome.json").read_text())
        return ModelRef.from_dict(values["model"]) if "model" in values else KINDS[values["kind"]](values["error"])
    return None


def _launch(root: Path, recipe: str, env: dict[str, str], before: str) -> None:
    os.environ.update(env)
    os.environ.pop("RANK", None)
    from components.training import train as launcher
    from tests.fakes import forked_ranks_preloaded

    setattr(launcher, "backend_for", lambda recipe: ForkedRanks())  # noqa: B010
    if before:
        prepare: Callable[[], None] = getattr(forked_ranks_preloaded, before)
        prepare()
    found: dict[str, Any]
    try:
        model = launcher.train(parse_recipe(recipe), root / "set", root / "out", root / "ck", None, "run", root / "log")
        found = {"model": model.to_dict()}
    except PilotlineError as error:
        found = {"kind": error.kind, "error": str(error)}
    (root / "outcome.json").write_text(json.dumps(found))
