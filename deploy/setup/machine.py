"""What this machine is, and which builds of torch and vLLM follow from that. Pure but for `look`."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST_PYTHON = (3, 11)
VLLM_PYTHONS = ((3, 11), (3, 12))
ACCELERATORS = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Machine:
    """The facts on which the choice of builds rests."""

    system: str
    """`Linux`, `Darwin`, …"""
    processor: str
    """`x86_64`, `arm64`, `aarch64`, …"""
    python: tuple[int, int]
    glibc: bool
    """False on musl (Alpine), for which torch has no wheel."""
    avx2: bool
    nvidia: bool


@dataclass(frozen=True)
class Choice:
    """Which torch is installed and which engine will serve, with the reason in words."""

    torch: str
    """`cpu` (local version +cpu), `cuda`, or `plain` (the only build the platform has)."""
    engine: str
    """`vllm-cpu`, `vllm-cuda` or `reference`."""
    reason: str


def look(root: Path = Path("/")) -> Machine:
    """Read the facts of this machine; `root` is where /proc and /dev are found."""
    return Machine(
        system=platform.system(),
        processor=platform.machine(),
        python=(sys.version_info[0], sys.version_info[1]),
        glibc=platform.libc_ver()[0] == "glibc",
        avx2=" avx2" in _read(root / "proc/cpuinfo"),
        nvidia=any((root / "dev").glob("nvidia[0-9]*")) or (root / "proc/driver/nvidia/version").exists(),
    )


def choose(machine: Machine, accelerator: str = "auto") -> Choice:
    """Choose the builds; `accelerator` cpu or cuda overrides what was found.

    Raises ValueError for an accelerator that is not one of `ACCELERATORS` or that the system cannot have.
    """
    if accelerator not in ACCELERATORS:
        raise ValueError(f"PILOTLINE_ACCELERATOR is '{accelerator}'; it must be one of {', '.join(ACCELERATORS)}")
    torch = _torch(machine, accelerator)
    obstacle = _vllm_obstacle(machine, torch)
    if obstacle:
        return Choice(torch, "reference", obstacle)
    if torch == "cuda":
        return Choice(torch, "vllm-cuda", "an NVIDIA GPU")
    return Choice(torch, "vllm-cpu", "x86-64 with AVX2 and no NVIDIA GPU")


def _torch(machine: Machine, accelerator: str) -> str:
    if machine.system != "Linux":
        if accelerator == "cuda":
            raise ValueError(f"PILOTLINE_ACCELERATOR is 'cuda'; {machine.system} has no CUDA build of torch")
        return "plain"
    if accelerator != "auto":
        return accelerator
    return "cuda" if machine.nvidia else "cpu"


def _vllm_obstacle(machine: Machine, torch: str) -> str | None:
    if machine.system != "Linux":
        return f"vLLM has no build for {machine.system}"
    if machine.processor != "x86_64":
        return f"no vLLM is locked for {machine.processor}"
    if not machine.glibc:
        return "vLLM has no build for a system without glibc"
    if machine.python not in VLLM_PYTHONS:
        return f"vLLM is locked for Python 3.11 and 3.12, not {machine.python[0]}.{machine.python[1]}"
    if torch == "cpu" and not machine.avx2:
        return "vLLM on a CPU needs AVX2"
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
