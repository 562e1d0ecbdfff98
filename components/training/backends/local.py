"""Ranks as processes of this machine, started by torchrun."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from components.core.errors import TransientError, UserError
from components.core.processes import end, free_port, spawn, tail
from components.training.backends.launch import WORKER, Ended, Launch, Watch, importable, placement, rank_environment
from components.training.job import Job

POLL_SECONDS = 0.25
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA's driver, of AMD's, and of either under WSL
SHUTDOWN_SECONDS = 60  # how long torchrun lets ranks save after a SIGTERM; the launcher's own grace is shorter


class LocalBackend:
    """Ranks that live no longer than this process; they are ended when the waiting ends."""

    name = "local"

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, launch: Launch) -> str:
        """Start torchrun; its process id."""
        process = self._running.get(launch.key)
        if process is None or process.poll() is not None:
            _check_gpus(launch)
            process = spawn(_command(launch), log=launch.log, env=_environment(launch))
            self._running[launch.key] = process
        return str(process.pid)

    def wait(self, launch: Launch, seconds: float, watch: Watch) -> Ended:
        """Wait for torchrun; all ranks are ended with it, and on any error of `watch` or of the bound."""
        process = self._process(launch)
        try:
            return Ended(_wait(process, seconds, watch))
        finally:
            end(process, grace_seconds=5.0)

    def logs(self, launch: Launch) -> str:
        """The end of the job's log."""
        return tail(launch.log, 40) if launch.log.exists() else ""

    def cancel(self, launch: Launch) -> None:
        """End the ranks, if they run."""
        if process := self._running.get(launch.key):
            end(process, grace_seconds=5.0)

    def result(self, launch: Launch) -> Ended | None:
        """torchrun's exit status, once it has one."""
        process = self._running.get(launch.key)
        status = process.poll() if process else None
        return None if status is None else Ended(status)

    def _process(self, launch: Launch) -> subprocess.Popen[bytes]:
        process = self._running.get(launch.key)
        if process is None:
            raise UserError(
                f"{launch.name}: not started by this process; local ranks end with the one that started them"
            )
        return process


def run_ranks(job_file: Path, ranks: int, log: Path, seconds: float, watch: Watch) -> int:
    """Run a job's ranks on this machine and return torchrun's exit status; see LocalBackend."""
    job = Job.read(job_file)
    if job.recipe.training.ranks != ranks:
        raise UserError(f"{job_file}: names {job.recipe.training.ranks} ranks, not {ranks}; write the job again")
    backend, launch = LocalBackend(), Launch(job.key, job_file, job.recipe, log)
    backend.submit(launch)
    return backend.wait(launch, seconds, watch).status


def _command(launch: Launch) -> list[str]:
    ranks = launch.recipe.training.ranks
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"]
    command += ["--max-restarts=0", f"--shutdown-timeout={SHUTDOWN_SECONDS}"]
    command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    return [*command, "--no-python", sys.executable, "-m", WORKER, str(launch.job_file)]


def _check_gpus(launch: Launch) -> None:
    where = placement(launch.recipe)
    if where.gpus_per_node and not any(Path(device).exists() for device in GPU_DEVICES):
        raise UserError(
            f"recipe: asks for {where.gpus_per_node} GPUs of pool {where.pool.name}, and this machine has none; remove "
            "resources.accelerator and .gpus, or set training.backend to trainjob or slurm"
        )


def _wait(process: subprocess.Popen[bytes], seconds: float, watch: Watch) -> int:
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


def _environment(launch: Launch) -> dict[str, str]:
    """The ranks' own settings, loopback only, and this source tree importable."""
    found = rank_environment(placement(launch.recipe)) | {"PYTHONPATH": importable()}
    if sys.platform != "linux" and "GLOO_SOCKET_IFNAME" in found:
        found["GLOO_SOCKET_IFNAME"] = "lo0"
    return found
