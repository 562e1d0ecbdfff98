"""`pilotline serve up|status|down` and `pilotline score`: the local service from outside of its process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from components.core.errors import TransientError, UserError
from components.core.home import Home
from components.core.paths import PROJECT_ROOT
from components.core.processes import MAIN, OWNER, end_leftovers, free_port, port_is_free, tail, wait_until
from pipelines.serving_state import (
    DOWN,
    STALE,
    UP,
    ServiceState,
    folder,
    forget_state,
    is_ready,
    lives,
    living,
    log_file,
    read_state,
    required,
)
from pipelines.serving_versions import champion_of, servable

DAEMON = "pipelines.serve_daemon"
UP_SECONDS, DOWN_SECONDS = 600.0, 90.0
AT_ONCE = 64  # decisions a request, the service's own limit


def up(home: Home, name: str = "", engine: str = "auto", port: int = 0) -> dict[str, Any]:
    """Serve the champion from a process of its own that outlives this one; a service that is up is left as it is.

    Raises:
        UserError: no champion, the port is none or taken, or a service is up on another port or engine than asked for.
        PilotlineError: it did not come up; nothing of it is left.
    """
    if not 0 <= port < 2**16:
        raise UserError(f"port {port}: give one between 1 and 65535, or 0 for any")
    with _one_at_a_time(home):
        if state := living(home):
            _refuse_other(state, engine, port)
            return told(home, state)
        served = servable(home, *champion_of(home, name))
        end_leftovers(folder(home))
        forget_state(home)
        asked = port or served.recipe.serving.port
        if asked and not port_is_free(asked):
            raise UserError(f"port {asked}: in use on 127.0.0.1; choose another with --port")
        process = _spawn(home, served.name, engine, asked or free_port())
        up_or_ended = lambda: process.poll() is not None or _is_up(home)  # noqa: E731
        if not wait_until(up_or_ended, UP_SECONDS, every=0.2) or process.poll() is not None:
            said = tail(log_file(home))
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(DOWN_SECONDS)
            end_leftovers(folder(home))
            forget_state(home)
            raise TransientError(f"the service did not come up ({said}); see {log_file(home)}")
        return told(home, required(home))


def _refuse_other(state: ServiceState, engine: str, port: int) -> None:
    """A service that is up is not what was asked for: it is left as it is, and that is said."""
    if port not in (0, state.port) or engine not in ("auto", state.engine):
        raise UserError(
            f"a service is up on port {state.port} with engine {state.engine}; end it first with `pilotline serve down`"
        )


def status(home: Home) -> dict[str, Any]:
    """How the service stands; state `stale` where its file names a process that is gone, as after a reboot."""
    state = read_state(home)
    if state is None:
        return {"state": DOWN}
    return told(home, state)


def down(home: Home) -> dict[str, Any]:
    """Drain and end the service and its own processes; nothing to do is fine too."""
    with _one_at_a_time(home):
        state = living(home)
        if state is not None:
            os.kill(state.pid, signal.SIGTERM)
            if not wait_until(lambda: not lives(state), DOWN_SECONDS, every=0.1):
                os.kill(state.pid, signal.SIGKILL)
                wait_until(lambda: not lives(state), 10.0, every=0.1)
        left = end_leftovers(folder(home))
        forget_state(home)
        return {"state": DOWN, "ended": state.pid if state else None, "left_over": left}


def told(home: Home, state: ServiceState) -> dict[str, Any]:
    """The state with what is seen from here: whether it lives and is ready, and the ledger's champion."""
    seen = asdict(state) | {"url": state.url, "log": str(log_file(home))}
    with suppress(UserError):
        seen["champion"] = champion_of(home, state.name)[1]
    if not lives(state):
        return seen | {"state": STALE, "ready": False}
    return seen | {"ready": state.state == UP and not is_ready(state)}


def score(home: Home, lines: Iterator[str], url: str = "") -> Iterator[dict[str, Any]]:
    """Ask for a decision on each line, in order; a line that cannot be decided on gives its number and the problem.

    Args:
        lines: JSON objects {"entities": {...}, "input": {...}}; empty lines are passed over.
        url: of a scoring service; default the one of this home.
    """
    import httpx

    from components.serving.admission import own_headers

    base = url or required(home).url
    with httpx.Client(base_url=base, timeout=120.0, trust_env=False, headers=own_headers()) as client:
        batch: list[tuple[int, Any]] = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                batch.append((number, json.loads(line)))
            except ValueError as error:
                yield from _asked(client, batch)
                batch = []
                yield {"line": number, "problem": f"not JSON: {error}"}
            if len(batch) == AT_ONCE:
                yield from _asked(client, batch)
                batch = []
        yield from _asked(client, batch)


def _asked(client: Any, batch: list[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
    """Decisions of a batch; where it is refused as a whole, each line alone, so that the bad one is named."""
    if not batch:
        return
    answer = _post(client, {"items": [item for _, item in batch]})
    if answer.status_code == 200:
        for (number, _), decision in zip(batch, answer.json()["items"], strict=True):
            yield {"line": number, **decision}
        return
    for number, item in batch:
        answer = _post(client, item)
        about = answer.json()
        if answer.status_code == 200:
            yield {"line": number, **about}
        else:
            yield {"line": number, "problem": f"{answer.status_code} {about.get('detail') or about.get('title', '')}"}


def _post(client: Any, body: Any) -> Any:
    import httpx

    try:
        return client.post("/v1/decisions", json=body)
    except httpx.HTTPError as error:
        raise TransientError(f"{client.base_url}: {type(error).__name__}; `pilotline serve status`") from error


def _spawn(home: Home, name: str, engine: str, port: int) -> subprocess.Popen[bytes]:
    """In a session of its own and without a run's token, so that it outlives the terminal and runs."""
    folder(home).mkdir(parents=True, exist_ok=True)
    words = ["--home", str(home.root), "--engine", engine, "--port", str(port), "--name", name]
    environment = {key: value for key, value in os.environ.items() if key not in (OWNER, MAIN)}
    paths = [str(PROJECT_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    with log_file(home).open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", DAEMON, *words],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
            cwd=PROJECT_ROOT,
        )


def _is_up(home: Home) -> bool:
    state = living(home)
    return state is not None and state.state == UP and not is_ready(state)


@contextmanager
def _one_at_a_time(home: Home) -> Iterator[None]:
    """`up` twice at once gives one service."""
    folder(home).mkdir(parents=True, exist_ok=True)
    with (folder(home) / "serve.lock").open("a+") as lock:
        deadline = time.monotonic() + UP_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TransientError(f"home {home.root}: another `pilotline serve` is at work") from error
                time.sleep(0.2)
        yield


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, "-" for standard input; UserError where it cannot be read."""
    if str(path) == "-":
        yield from sys.stdin
        return
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a file of JSON lines, or -") from error
