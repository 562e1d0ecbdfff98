"""Which model server answers: vLLM where it is installed, else the reference server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import UserError
from components.core.paths import PROJECT_ROOT
from components.serving.engine import Engine
from components.serving.reference import ReferenceEngine
from components.serving.vllm import VllmEngine

VLLM_VARIABLE = "PILOTLINE_VLLM"


@dataclass(frozen=True)
class Choice:
    """The engine and one line that says why it is this one."""

    engine: Engine
    reason: str


def choose(engine: str, variables: Mapping[str, str] = os.environ) -> Choice:
    """The engine asked for: auto, vllm or reference.

    Raises:
        UserError: vLLM was asked for and is not installed, or the name is unknown.
    """
    if engine not in {"auto", "vllm", "reference"}:
        raise UserError(f"engine {engine!r}: unknown; use auto, vllm or reference")
    if engine == "reference":
        return Choice(ReferenceEngine(), "reference engine: asked for")
    executable = find_vllm(variables)
    if executable is not None:
        found = VllmEngine.at(executable)
        return Choice(found, f"{found.label}: {'asked for' if engine == 'vllm' else 'installed'}")
    if engine == "vllm":
        raise UserError(
            f"engine vllm: not found in {PROJECT_ROOT / '.venv-vllm'}, ${VLLM_VARIABLE} or PATH; "
            "run `make setup`, or use --engine reference"
        )
    return Choice(ReferenceEngine(), "reference engine: vLLM is not installed here (`make setup` installs it)")


def find_vllm(variables: Mapping[str, str] = os.environ) -> Path | None:
    """The vllm command: $PILOTLINE_VLLM, the project's own environment, then PATH.

    Raises:
        UserError: $PILOTLINE_VLLM is set to something that cannot be executed.
    """
    if given := variables.get(VLLM_VARIABLE):
        path = Path(given).expanduser()
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise UserError(f"${VLLM_VARIABLE}={given}: not an executable file; point it at .../bin/vllm or unset it")
        return path
    own = PROJECT_ROOT / ".venv-vllm" / "bin" / "vllm"
    if own.is_file():
        return own
    found = shutil.which("vllm", path=variables.get("PATH"))
    return Path(found) if found else None


def cores_for(arm: str, cores: Sequence[int] | None = None) -> list[int]:
    """The cores of an arm: stable takes the first half of what this process may use, canary the rest.

    With one core both arms share it.
    """
    every = sorted(cores if cores is not None else _usable_cores())
    half = max(1, len(every) // 2)
    return every[:half] if arm == "stable" else every[half:] or every


def _usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
