"""Reading the lock files: one exact version a line, with an optional environment marker."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!]+)(?:\s*;\s*(\S.*))?")


class LockError(Exception):
    """A lock file is missing or has a line that is not an exact pin."""


def read_pins(path: Path) -> dict[str, str]:
    """Versions by package name, markers left aside. Raises LockError with file and line."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise LockError(f"cannot read the lock {path.name}: {error.strerror}") from error
    pins: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = PIN.fullmatch(text)
        if match is None:
            raise LockError(f"{path.name} line {number}: '{text}' is not NAME==VERSION; put an exact version there")
        if match[1] in pins:
            raise LockError(f"{path.name} line {number}: {match[1]} is locked twice; keep one line")
        pins[match[1]] = match[2]
    return pins


def digest(*parts: str | Path) -> str:
    """sha256 over texts and the contents of files, in order, each with its length."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        sha.update(b"%d:" % len(data))
        sha.update(data)
    return sha.hexdigest()
