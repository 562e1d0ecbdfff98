"""Runs of the `pilotline` command as a person starts them, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from components.core.paths import PROJECT_ROOT
from components.core.processes import owned_by, wait_until

TIMEOUT_SECONDS = 900


def pilotline(*argv: str, home: Path) -> tuple[int, dict[str, Any], str]:
    """Run the command to its end: exit status, the JSON of its last line, standard error."""
    done = subprocess.run(
        _command(argv, home), cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "{}"
    return done.returncode, json.loads(last), done.stderr


def killed_when(reached: Callable[[], bool], *argv: str, home: Path) -> bool:
    """Start the command, SIGKILL it once `reached` holds; False where it ended before."""
    log = home.parent / "killed.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(_command(argv, home), cwd=PROJECT_ROOT, stdout=sink, stderr=sink)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and not reached():
        if time.monotonic() > deadline:
            process.kill()
            raise TimeoutError(log.read_text()[-2000:])
        time.sleep(0.05)
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


def none_left(home: Path, seconds: float = 10.0) -> bool:
    """Whether every process of the home is gone within the time."""
    return wait_until(lambda: not owned_by(home), seconds)


def records(home: Path, run_id: str) -> dict[str, Any]:
    """All records of a run by step."""
    folder = home / "runs" / run_id / "records"
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def _command(argv: Sequence[str], home: Path) -> list[str]:
    os.environ.pop("PILOTLINE_OWNER", None)
    return [sys.executable, "-m", "pipelines.cli", *argv, "--home", str(home), "--json"]
