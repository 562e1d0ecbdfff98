"""A real redis-server on loopback, for as long as a test needs it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from components.core.processes import free_port


@contextmanager
def redis_server(folder: Path, **environment: str) -> Iterator[str]:
    """Start Debian's redis-server on a free port without persistence; gives its URL and ends it."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        [*command, "--dir", str(folder)], stdout=subprocess.DEVNULL, env=os.environ | environment
    )
    try:
        with redis.Redis(port=port) as client:
            for _ in range(100):
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    assert process.poll() is None, "redis-server ended"
                    time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)
