"""Ranks as processes of this machine, started by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from components.core.errors import TransientError
from components.core.processes import end, free_port, spawn

POLL_SECONDS = 0.25


def run_ranks(job_file: Path, ranks: int, log: Path, seconds: float, watch: Callable[[int], None]) -> int:
    """Run the job's ranks and return torchrun's exit status.

    Args:
        job_file: `job.json` of the job.
        ranks: processes.
        log: their output is appended here.
        seconds: bound of the whole attempt; TransientError when it is over.
        watch: called several times a second with torchrun's process id; an error from it ends the ranks.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"]
    command += ["--max-restarts=0", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    command += ["--no-python", sys.executable, "-m", "components.training.worker", str(job_file)]
    process = spawn(command, log=log, env=_environment())
    try:
        return _wait(process, seconds, watch)
    finally:
        end(process, grace_seconds=5.0)


def _wait(process: subprocess.Popen[bytes], seconds: float, watch: Callable[[int], None]) -> int:
    deadline = time.monotonic() + seconds
    while (status := process.poll()) is None:
        watch(process.pid)
        if time.monotonic() > deadline:
            raise TransientError(
                f"training did not end within {seconds / 60:g} minutes; run again to continue from its checkpoint,"
                " or raise training.timeout_minutes"
            )
        time.sleep(POLL_SECONDS)
    return status


def _environment() -> dict[str, str]:
    """One thread a rank, the CPU, loopback only, and this source tree importable."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONPATH": path,
        "PYTHONWARNINGS": "ignore",
    }
