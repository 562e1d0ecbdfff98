"""Where the local serving service of a home is: its state file, the process that it names, and its health."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from components.core.errors import TransientError
from components.core.home import Home
from components.core.publish import write_atomic

STARTING, UP, DOWN, STALE = "starting", "up", "down", "stale"


@dataclass(frozen=True)
class ServiceState:
    """What the service says of itself; `created`: start time of its process, seconds since 1970, as the system tells.

    problem: why the ledger's champion is not the version served, "" where it is. restarts: of replicas that died.
    """

    pid: int
    created: float
    port: int
    engine: str
    state: str
    since: float
    name: str = ""
    version: str = ""
    digest: str = ""
    run_id: str = ""
    restarts: int = 0
    problem: str = ""

    @property
    def url(self) -> str:
        """Where decisions are answered."""
        return f"http://127.0.0.1:{self.port}"


def folder(home: Home) -> Path:
    """Where the service keeps its state."""
    return home.root / "serve"


def log_file(home: Home) -> Path:
    """What the service's own process says."""
    return folder(home) / "serve.log"


def write_state(home: Home, state: ServiceState) -> None:
    """Replace the state file."""
    folder(home).mkdir(parents=True, exist_ok=True)
    write_atomic(folder(home) / "serve.json", json.dumps(asdict(state), indent=1, sort_keys=True))


def read_state(home: Home) -> ServiceState | None:
    """The state file; None where there is none, or it cannot be read."""
    with suppress(OSError, ValueError, TypeError):
        return ServiceState(**json.loads((folder(home) / "serve.json").read_text()))
    return None


def forget_state(home: Home) -> None:
    """Take the state file away."""
    (folder(home) / "serve.json").unlink(missing_ok=True)


def lives(state: ServiceState) -> bool:
    """Whether its process is still the one that wrote it: after a reboot another may have its number."""
    import psutil

    try:
        process = psutil.Process(state.pid)
        return abs(process.create_time() - state.created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def living(home: Home) -> ServiceState | None:
    """The service that runs, or None."""
    state = read_state(home)
    return state if state is not None and lives(state) else None


def is_ready(state: ServiceState, seconds: float = 30.0) -> str:
    """ "" where a request is scored within so long, else what is wrong."""
    import httpx

    try:
        answer = httpx.get(f"{state.url}/readyz", timeout=seconds, trust_env=False)
    except httpx.HTTPError as error:
        return type(error).__name__
    return "" if answer.status_code == 200 else str(answer.json().get("detail", answer.status_code))


def health(home: Home) -> str:
    """For people: what users of this home's service have now."""
    if (state := living(home)) is None:
        return "no service of this home is up (`pilotline serve up`)"
    wrong = is_ready(state)
    said = f"not ready: {wrong}" if wrong else "healthy"
    return f"version {state.version} is served on port {state.port} and {said}"


def required(home: Home) -> ServiceState:
    """The service that runs; TransientError where none does."""
    if (state := living(home)) is None:
        raise TransientError(f"home {home.root}: no service is up; run `pilotline serve up`")
    return state
