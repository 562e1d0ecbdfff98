"""Running pip quietly: its output goes to a log, a failure becomes one line saying what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Settings of the person's own pip that would put packages elsewhere than into the environment.
DIVERTING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH", "PYTHONHOME")
CAUSES = (
    (r"No space left on device|Disk quota exceeded", "the disk is full; free some space and run it again"),
    (
        r"NewConnectionError|name resolution|NameResolutionError|Connection refused|Connection to \S+ timed out"
        r"|Max retries|ProxyError|SSLError|ReadTimeout|Network is unreachable",
        "the package index cannot be reached; check the network, proxy and pip configuration and run it again",
    ),
    (r"Permission denied", "no permission to write; check who owns the folder"),
)
NO_WHEEL = r"No matching distribution found for ([^\s;]+)"


class PipError(Exception):
    """pip failed.

    `missing` is the requirement that cannot be had, if that was the cause; `lasting` is False where an index was out
    of reach, so that trying again later can help.
    """

    def __init__(self, message: str, missing: str | None = None, lasting: bool = True) -> None:
        super().__init__(message)
        self.missing = missing
        self.lasting = lasting


def run_pip(env: Path, arguments: Sequence[str], expected: int = 0, extra_env: dict[str, str] | None = None) -> None:
    """Run `pip ARGUMENTS` of the environment `env`; `expected` is the number of packages, for the counter.

    Raises PipError with one line and the place of the whole log.
    """
    log = env / "pip.log"
    variables = {k: v for k, v in os.environ.items() if k not in DIVERTING}
    variables.update(PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore")
    variables.update(extra_env or {})
    command = [str(python_of(env)), "-m", "pip", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=variables
    )
    lines: list[str] = []
    assert process.stdout is not None
    collected = 0
    with log.open("a") as stream:
        for line in process.stdout:
            # pip repeats this harmless note for every file found on disk instead of in an index.
            if line.startswith(("WARNING: Location", "Location ")):
                continue
            stream.write(line)
            lines.append(line)
            collected += line.startswith(("Collecting ", "Requirement already satisfied", "Processing "))
            _show(collected, expected)
    _show(0, 0 if not expected else -1)
    if process.wait() != 0:
        raise explain("".join(lines), log)


def explain(output: str, log: Path) -> PipError:
    """The error for pip's output: the cause if known, otherwise pip's own last error line."""
    for pattern, text in CAUSES:
        if re.search(pattern, output):
            return PipError(f"{text} (log: {log})")
    missing = re.search(NO_WHEEL, output)
    if missing:
        return PipError(f"no index offers {missing[1]} for this platform and Python (log: {log})", missing[1])
    errors = [line.strip() for line in output.splitlines() if line.lower().lstrip().startswith("error")]
    return PipError(f"pip failed: {errors[-1] if errors else 'no error line'} (log: {log})")


def python_of(env: Path) -> Path:
    """The environment's interpreter."""
    return env / "bin" / "python"


def _show(collected: int, expected: int) -> None:
    if expected and sys.stdout.isatty():
        text = f"  {min(collected, expected)} of {expected} packages found" if expected > 0 else " " * 40
        print(f"\r{text}", end="\r", flush=True)
