"""Which model server answers: vLLM where it is installed, else the reference server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.core.errors import UserError
from components.core.paths import PROJECT_ROOT
from components.core.recipe import Serving

VLLM_VARIABLE = "PILOTLINE_VLLM"


@dataclass(frozen=True)
class Launch:
    """What a model server is to serve, and where.

    `served_names`: the first is unique per version and labels its metrics; the others are aliases for callers that do
    not care which version answers. `cores`: the CPU cores that the server may compute on.
    """

    arm: str
    model_dir: Path
    served_names: Sequence[str]
    port: int
    max_model_len: int
    cores: Sequence[int]
    settings: Serving


class Engine(Protocol):
    """A model server that speaks the OpenAI completions protocol."""

    @property
    def name(self) -> str:
        """vllm or reference."""
        ...

    @property
    def label(self) -> str:
        """Name and version, for records and reports."""
        ...

    def preflight(self, model_dir: Path) -> None:
        """UserError where this engine cannot serve the model."""
        ...

    def check_head_size(self, size: int, where: str) -> None:
        """UserError where this engine cannot serve a model with this attention head size."""
        ...

    def command(self, launch: Launch) -> list[str]:
        """The command line."""
        ...

    def environment(self, launch: Launch) -> dict[str, str]:
        """What to add to the environment."""
        ...


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
    from components.serving.reference import ReferenceEngine
    from components.serving.vllm import VllmEngine

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
