"""What the tracking adapter insists on beyond MLflow: plain names, finite numbers, one writer at a time."""

from __future__ import annotations

import fcntl
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.core.errors import TransientError, UserError

LONGEST_TEXT = 5000
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./ :-]{0,199}")


@contextmanager
def locked(folder: Path, seconds: float = 60.0) -> Iterator[None]:
    """Hold the folder's lock file; the kernel frees the lock of a killed process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another home with --home") from error
    deadline = time.monotonic() + seconds
    with stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TransientError(f"{folder}: another process holds MLflow's lock; run again") from error
                time.sleep(0.05)
        yield


def metric_name(name: str) -> str:
    """The name of a metric or parameter where it is plain; UserError otherwise."""
    if not _METRIC.fullmatch(name) or ".." in name or "//" in name:
        raise UserError(f"metric or parameter name {name!r}: use letters, digits and _ . / - only")
    return name


def finite(name: str, value: float) -> float:
    """The value where it is a finite number; UserError otherwise."""
    number = float(value)
    if not math.isfinite(number):
        raise UserError(f"metric {name!r} is {number}; only finite numbers are tracked")
    return number


def short_text(value: Any) -> str:
    """The value as text, cut to what MLflow stores."""
    return str(value)[:LONGEST_TEXT]
