"""Child processes that never outlive their owner unnoticed.

Every process of a run carries the home's token in its environment, so that the next run finds and ends what a
killed one left behind: Kubeflow's step processes, torchrun ranks, model servers and the proxy alike.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

OWNER = "PILOTLINE_OWNER"
MAIN = "PILOTLINE_MAIN"
WATCH_SECONDS = 0.5


def owner_token(home: Path) -> str:
    """The token of a home: processes whose environment holds it belong to it."""
    return hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:16]


def adopt(home: Path) -> None:
    """Mark this process, and all it will start, as belonging to the home."""
    import psutil

    os.environ[OWNER] = owner_token(home)
    os.environ[MAIN] = f"{os.getpid()}:{psutil.Process().create_time()}"


def follow_main() -> None:
    """In a step's process: end this process and its children soon after the command that started the run died.

    Between the command and a step stands a shell, so the kernel's parent-death signal does not reach the step.
    Does nothing where no command announced itself (a cluster, a test).
    """
    pid, _, created = os.environ.get(MAIN, "").partition(":")
    if pid and int(pid) != os.getpid():
        threading.Thread(target=_watch, args=(int(pid), float(created)), daemon=True, name="follow-main").start()


def _watch(pid: int, created: float) -> None:
    import psutil

    while True:
        try:
            same = abs(psutil.Process(pid).create_time() - created) < 1.0
        except psutil.Error:
            same = False
        if not same:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
            os._exit(137)
        time.sleep(WATCH_SECONDS)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        import ctypes

        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def spawn(
    command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, output appended to `log`, killed with its parent on Linux."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads hold locks that the child needs: prctl only
        )


def end(process: subprocess.Popen[bytes], grace_seconds: float = 10.0) -> int:
    """SIGTERM to the whole group, SIGKILL after the grace; returns the exit status."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_seconds)
    with suppress(ProcessLookupError, PermissionError):  # also children that outlived their leader
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def end_leftovers(home: Path, grace_seconds: float = 3.0) -> list[int]:
    """End every process that carries the home's token, except this one and its ancestors; returns their ids."""
    import psutil

    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    left = [proc for proc in _owned(owner_token(home)) if proc.pid not in spared]
    for proc in left:
        with suppress(psutil.Error):
            proc.terminate()
    _, alive = psutil.wait_procs(left, timeout=grace_seconds)
    for proc in alive:
        with suppress(psutil.Error):
            proc.kill()
    psutil.wait_procs(alive, timeout=grace_seconds)
    return [proc.pid for proc in left]


def owned_by(home: Path) -> list[int]:
    """Ids of the live processes, other than this one, that carry the home's token."""
    return [proc.pid for proc in _owned(owner_token(home)) if proc.pid != os.getpid()]


def _owned(token: str) -> list[psutil.Process]:
    import psutil

    found = []
    for proc in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if proc.environ().get(OWNER) == token and proc.status() != psutil.STATUS_ZOMBIE:
                found.append(proc)
    return found


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1 at this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log folded into one, for error messages."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "no log"
    return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip()) or "empty log"


def wait_until(done: object, seconds: float, every: float = 0.2) -> bool:
    """Poll a callable until it returns true or the time is up; whether it did."""
    assert callable(done)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(every)
    return bool(done())
