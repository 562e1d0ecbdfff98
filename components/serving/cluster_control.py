"""The scoring service in its pod: the rollout says what is served, and sees what the canary answered.

The pod alone reads and writes the state, the service's settings and the decision log's file, which lie on a share: a
weight is in force at once, whatever the share's clients cache, and the log's SQLite file has readers on one host only.
A state is taken where it follows the one in force (`after`), so that a controller that was followed by another changes
nothing. Who may read the key beside the state, and whom the network policy lets through, may change it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from components.core.errors import PilotlineError, UserError
from components.core.protocols import ArrivedLabel
from components.core.publish import write_atomic
from components.core.recipe import Recipe
from components.serving.control import ServingState, read_state, write_state
from components.serving.decision_log import shadows_after
from components.serving.decision_log.reading import labels_after
from components.serving.decision_log.schema import connect
from components.serving.scoring_service import ServiceConfig

FOLDER, KEY, STATE, SERVICE, TRAINING_SET = "serving", "control.key", "state.json", "service.json", "training_set"
POLL_SECONDS = 0.1
END_SECONDS = 45.0  # what is being answered is finished, and the decision log written
FEWEST_KEY_BYTES = 32


class OutdatedError(PilotlineError):
    """The state in force is not the one that the change was made from."""


@dataclass(frozen=True)
class Places:
    """Where the pod keeps what; `log` is the decision log's SQLite file."""

    folder: Path
    log: Path
    port: int  # of the scoring service
    host: str = "0.0.0.0"  # noqa: S104 - the network policy says who gets there


class Scoring:
    """The scoring service as a process of this one, started anew where its settings change.

    `command` makes its command line from the settings' file. `run` belongs to the thread that lives longest.
    """

    def __init__(self, places: Places, command: Callable[[Path], Sequence[str]]) -> None:
        places.folder.mkdir(parents=True, exist_ok=True)
        self._places, self._command = places, command
        self._changing, self._ended = threading.RLock(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted, self._running = self._kept(), ""

    def state(self) -> ServingState:
        """The state that was set last; that of nothing served where none was. IntegrityError where it is damaged."""
        path = self._places.folder / STATE
        return read_state(path) if path.exists() else ServingState()

    def set_state(self, state: ServingState, after: int) -> None:
        """Take a state that follows generation `after`.

        Raises:
            OutdatedError: another one is in force.
            IntegrityError: it is no state.
        """
        with self._changing:
            if (now := self.state().generation) != after or state.generation != after + 1:
                raise OutdatedError(f"generation {now} is in force, the change follows {after}; read it again")
            fresh = self._places.folder / f"{STATE}.new"
            write_state(fresh, state)
            read_state(fresh)
            fresh.unlink()
            write_state(self._places.folder / STATE, state)

    def serve(self, given: ServiceConfig, training_set: Path) -> ServiceConfig:
        """Take the service's settings; the process is started anew only where a decision would come out otherwise."""
        if not training_set.is_dir():
            raise UserError(f"{training_set}: not a folder here; the home has to be the same share in both pods")
        with self._changing:
            places = self._places
            link = places.folder / TRAINING_SET
            fresh = link.with_name(f"{TRAINING_SET}.new")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(training_set)
            fresh.replace(link)
            mine = replace(
                given, instance=uuid.uuid4().hex, port=places.port, host=places.host, log_path=str(places.log),
                state_path=str(places.folder / STATE), training_set=str(link),
            )  # fmt: skip
            if self._wanted is not None and _decides_alike(self._wanted, mine):
                mine = replace(mine, instance=self._wanted.instance, run_id=self._wanted.run_id)
            self._wanted = mine
            write_atomic(places.folder / SERVICE, json.dumps(asdict(mine)))
            return mine

    @property
    def well(self) -> bool:
        """Whether the process runs, where one is wanted."""
        return self._wanted is None or self._process is None or self._process.poll() is None

    def run(self) -> int:
        """Start it, and again where that is asked for, until `end`; its status where it ends by itself."""
        try:
            while not self._ended.wait(POLL_SECONDS):
                wanted = self._wanted
                if wanted is not None and wanted.instance != self._running:
                    self._stop()
                    self._process = subprocess.Popen(list(self._command(self._places.folder / SERVICE)))
                    self._running = wanted.instance
                elif self._process is not None and (status := self._process.poll()) is not None:
                    return status or 1  # the cluster starts the container again, after a while that grows
            return 0
        finally:
            self._stop()

    def end(self) -> None:
        """`run` returns once the process has ended."""
        self._ended.set()

    def health(self) -> dict[str, Any]:
        """What the service says of itself; empty where it does not answer."""
        import httpx

        try:
            found = httpx.get(f"http://127.0.0.1:{self._places.port}/healthz", timeout=5.0, trust_env=False).json()
        except (httpx.HTTPError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def newest(self) -> dict[str, int]:
        """Numbers of the newest records: {"decisions", "shadows"}."""
        if not self._places.log.exists():
            return {"decisions": 0, "shadows": 0}
        with closing(connect(self._places.log)) as connection:
            told = {row["name"]: row["seq"] for row in connection.execute("SELECT name, seq FROM sqlite_sequence")}
        return {name: int(told.get(name, 0)) for name in ("decisions", "shadows")}

    def shadows(self, after: int) -> list[dict[str, Any]]:
        """What the canary answered to mirrored requests after this record, oldest first."""
        return shadows_after(self._places.log, after) if self._places.log.exists() else []

    def labels(self, after: int, decided_after: int) -> list[ArrivedLabel]:
        """Labels that arrived after this record, for decisions made after that one.

        A rollout hears of its own decisions alone: the log's run is that of whoever started the process.
        """
        if self._wanted is None:
            return []
        found = labels_after(self._places.log, self._wanted.run_id, after)
        if not found:
            return []
        with closing(connect(self._places.log)) as connection:
            asked = "SELECT id FROM decisions WHERE seq > ? AND id = ?"
            return [one for one in found if connection.execute(asked, (decided_after, one.decision_id)).fetchone()]

    def _kept(self) -> ServiceConfig | None:
        path = self._places.folder / SERVICE
        if not path.exists():
            return None
        kept = replace(ServiceConfig.read(path), instance=uuid.uuid4().hex, port=self._places.port)
        write_atomic(path, json.dumps(asdict(kept)))
        return kept

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def control_key(folder: Path) -> str:
    """The key beside the state, made where there is none; UserError where it cannot be read."""
    path = folder / KEY
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    except FileExistsError:
        pass
    else:
        with os.fdopen(handle, "w") as stream:
            stream.write(secrets.token_hex(FEWEST_KEY_BYTES))
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give this account the home's group") from error


def _decides_alike(one: ServiceConfig, other: ServiceConfig) -> bool:
    """Whether the running process would decide as one that is started with the other settings."""
    same = one.router_url == other.router_url and one.port == other.port
    return same and _deciding(one.parsed_recipe) == _deciding(other.parsed_recipe)


def _deciding(recipe: Recipe) -> tuple[Any, ...]:
    serving = recipe.serving.model_dump(mode="json", exclude={"cluster", "start_timeout_seconds"})
    return serving, recipe.model, recipe.features, recipe.rollout.sticky, recipe.rollout.seed
