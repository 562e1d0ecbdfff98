"""Installing the build of torch that fits the machine, from wherever this machine's pip finds it."""

from __future__ import annotations

from pathlib import Path

from deploy.setup.pip_runs import PipError, run_pip

# PyTorch's own index is the one public place with CPU-only builds for Linux; PyPI's Linux build is CUDA.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class NoCpuBuild(PipError):
    """Neither pip's own places nor PyTorch's index gave a CPU build."""


def install_torch(env: Path, build: str, version: str, cuda_lock: Path) -> None:
    """Install torch `version` as `cpu`, `cuda` or `plain` build into `env`. Raises PipError.

    A `cpu` build that is nowhere to be had is replaced by the build the index has, with its CUDA libraries.
    """
    if build == "plain":
        run_pip(env, ["install", "--no-deps", f"torch=={version}"])
    elif build == "cuda":
        _install_with_cuda(env, version, cuda_lock)
    else:
        try:
            install_cpu_torch(env, version)
        except NoCpuBuild:
            print("setup: no CPU build of torch is in reach: taking the build that the index has", flush=True)
            _install_with_cuda(env, version, cuda_lock)


def install_cpu_torch(env: Path, version: str) -> None:
    """Install torch `version`+cpu from where pip looks anyway (disk, mirror), else from PyTorch's index.

    Raises NoCpuBuild where neither has it, PipError for anything else (no network, no space).
    """
    wanted = f"torch=={version.removesuffix('+cpu')}+cpu"
    try:
        run_pip(env, ["install", "--no-deps", wanted])
    except PipError as error:
        if error.missing is None:
            raise
    else:
        return
    # Few retries: where that index is out of reach the fall-back should not take minutes.
    once = ["--retries", "1", "--timeout", "20", "--index-url", CPU_INDEX]
    try:
        run_pip(env, ["install", "--no-deps", *once, wanted])
    except PipError as error:
        raise NoCpuBuild(str(error), missing=wanted, lasting=error.missing is not None) from error


def _install_with_cuda(env: Path, version: str, cuda_lock: Path) -> None:
    run_pip(env, ["install", "--no-deps", f"torch=={version}", "-r", str(cuda_lock)])
