"""A real PostgreSQL on loopback, for as long as a test needs it, and a database of its own for each test."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from components.core.processes import free_port

NUMBERS = itertools.count(1)
FAST = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=60"]


class PostgresServer:
    """A running server; `database()` gives the URL of a fresh database."""

    def __init__(self, port: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.port, self.folder, self.process = port, folder, process

    def database(self) -> str:
        """SQLAlchemy URL of a new, empty database."""
        name = f"db{next(NUMBERS)}"
        with psycopg.connect(f"postgresql://tester@127.0.0.1:{self.port}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://tester@127.0.0.1:{self.port}/{name}"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start the newest server of this machine in a folder of its own; `initdb` refuses root, so not as root."""
    folder = Path(tempfile.mkdtemp(prefix="pilotline-postgres-"))
    who = _unprivileged(folder)
    port, programs = free_port(), _programs()
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": "/", **who}
    data = str(folder / "data")
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
        check=True, timeout=120, **quiet,
    )  # fmt: skip
    command = [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), *FAST]
    process = subprocess.Popen(command, **quiet)
    try:
        _wait(port, process)
        yield PostgresServer(port, folder, process)
    finally:
        process.terminate()  # waits for nobody's transaction: smart shutdown would
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: Path) -> dict[str, Any]:
    """As which user the server runs: postgres or nobody where the tests run as root, else as who runs them."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _programs() -> Path:
    """The folder of the newest server's programs."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("postgres")
    assert found, "no PostgreSQL server on this machine"
    return Path(found).resolve().parent


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        try:
            psycopg.connect(f"postgresql://tester@127.0.0.1:{port}/postgres", connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, "postgres ended"
            time.sleep(0.05)
    raise AssertionError("postgres did not answer in time")
