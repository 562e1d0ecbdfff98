"""The scoring service as a child process: started with its configuration, told its state by a file, read back."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.core.errors import TransientError
from components.core.paths import PROJECT_ROOT
from components.core.processes import end, spawn, tail, wait_until
from components.core.recipe import Recipe
from components.serving.control import ServingState, write_state
from components.serving.scoring_service import ServiceConfig

START_SECONDS = 90.0
IN_FORCE_SECONDS = 15.0
STOP_SECONDS = 15.0


class ScoringProcess:
    """One process; `state` is what was last published to it."""

    def __init__(self, module: str, port: int, folder: Path, log: Path) -> None:
        """Nothing starts here.

        Args:
            module: what is run as `python -m MODULE --config FILE`.
            folder: where its configuration and state file lie.
        """
        self._module, self.port, self._folder, self._log = module, port, folder, log
        self._instance = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self.state = ServingState()
        self.changing = threading.RLock()  # the way back may be asked for from another thread

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id, 0 where it does not live."""
        return self._process.pid if self._process is not None and self.alive else 0

    def start(self, *, run_id: str, router_url: str, log_path: Path, training_set: Path, recipe: Recipe) -> None:
        """Start it without waiting: `wait` does, when it is first needed."""
        write_state(self._folder / "state.json", self.state)
        config = ServiceConfig(
            instance=self._instance,
            run_id=run_id,
            port=self.port,
            router_url=router_url,
            state_path=str(self._folder / "state.json"),
            log_path=str(log_path),
            training_set=str(training_set.absolute()),
            recipe=recipe.to_json(),
        )
        path = self._folder / "service.json"
        config.write(path)
        self._process = spawn([sys.executable, "-m", self._module, "--config", str(path)], log=self._log,
                              cwd=PROJECT_ROOT)  # fmt: skip

    def wait(self) -> None:
        """Wait until it answers; TransientError where it does not in time, or has ended."""
        assert self._process is not None, "the stack is used outside its context"
        process = self._process
        up = wait_until(lambda: process.poll() is not None or bool(self.health()), START_SECONDS, every=0.1)
        if process.poll() is not None or not up:
            said = tail(self._log)
            raise TransientError(f"the scoring service is not running on port {self.port} ({said}); see {self._log}")

    def change(self, **values: Any) -> None:
        """Bring a changed state into force, and read it back; TransientError where it is not taken."""
        self.wait()
        with self.changing:
            self.state = replace(self.state, **values, generation=self.state.generation + 1)
            write_state(self._folder / "state.json", self.state)
            wanted = self.state.generation
        if not wait_until(lambda: self.health().get("generation", -1) >= wanted, IN_FORCE_SECONDS, every=0.02):
            said = self.health().get("state_error") or "no answer"
            raise TransientError(f"the scoring service did not take the change ({said}); see {self._log}")

    def health(self) -> dict[str, Any]:
        """The state in force; empty where it does not answer."""
        import httpx

        with suppress(httpx.HTTPError, ValueError, AttributeError):
            answer: dict[str, Any] = httpx.get(f"{self.url}/healthz", timeout=5.0, trust_env=False).json()
            if answer.get("instance") == self._instance:  # not another service on the same port
                return answer
        return {}

    def end(self) -> None:
        """Let it finish its answers and records, and end it; may be called again."""
        if self._process is not None:
            end(self._process, STOP_SECONDS)
            self._process = None
