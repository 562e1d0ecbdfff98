"""A real Slurm of one node, for a test: Debian's munged, slurmctld and slurmd in a folder, on free loopback ports.

Needs root (slurmd starts jobs as their users). No accounting database, no control groups: what a test needs and no
more. All three are ended with the context, jobs of the cluster first.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from components.core.processes import end, free_port, spawn

READY_SECONDS = 60.0
CONF = """ClusterName=pilotlinetest
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ReturnToService=2
KillWait={kill_wait}
MinJobAge={job_age}
InactiveLimit=0
PropagateResourceLimits=NONE
MailProg=/bin/true
NodeName=only NodeHostname=localhost NodeAddr=127.0.0.1 Port={node} CPUs={cpus} RealMemory=16000 State=UNKNOWN
PartitionName=main Nodes=only Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass(frozen=True)
class SlurmCluster:
    """What is running; `environment` makes sbatch and the others speak to it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """SLURM_CONF of this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str) -> str:
        """Run one of Slurm's commands; its output. CalledProcessError where it fails."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """Ids of all jobs that wait or run."""
        return self.call("squeue", "--noheader", "--format=%i").split()

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        found = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]) for log in found)


@contextmanager
def slurm_cluster(folder: Path, cpus: int = 2, job_age: int = 300, kill_wait: int = 5) -> Iterator[SlurmCluster]:
    """Start the three, wait until the node is idle, and end all that they started afterwards."""
    folder.mkdir(parents=True)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    text = CONF.format(
        folder=folder, controller=free_port(), node=free_port(), cpus=cpus, job_age=job_age, kill_wait=kill_wait
    )
    (folder / "slurm.conf").write_text(text)
    cluster = SlurmCluster(folder)
    with ExitStack() as stack:
        for name, command in _daemons(folder):
            process = spawn(command, log=folder / f"{name}.log", env=cluster.environment)
            stack.callback(end, process, 10.0)
            if name == "munged":
                _until(lambda: (folder / "munge.socket").exists(), cluster, "munged has no socket")
        stack.callback(_end_jobs, cluster)
        _until(lambda: cluster.call("sinfo", "--noheader", "--format=%T") == "idle", cluster, "the node is not idle")
        yield cluster


def _daemons(folder: Path) -> list[tuple[str, list[str]]]:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    munged = [_program("munged"), "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", "--num-threads=2"]
    return [
        ("munged", munged),
        ("slurmctld", [_program("slurmctld"), "-D", "-c"]),
        ("slurmd", [_program("slurmd"), "-D", "-N", "only"]),
    ]


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    assert found, f"{name}: not installed"
    return found


def _until(holds: object, cluster: SlurmCluster, otherwise: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with suppress(subprocess.SubprocessError):
            if holds():  # type: ignore[operator]
                return
        time.sleep(0.2)
    raise AssertionError(f"{otherwise} after {READY_SECONDS:g} s\n{cluster.logs()}")


def _end_jobs(cluster: SlurmCluster) -> None:
    """Cancel what is left, and end step daemons that outlived it: they carry this cluster's configuration."""
    with suppress(subprocess.SubprocessError):
        if jobs := cluster.jobs():
            cluster.call("scancel", "--signal=KILL", "--full", *jobs)
            cluster.call("scancel", *jobs)
        deadline = time.monotonic() + 20
        while cluster.jobs() and time.monotonic() < deadline:
            time.sleep(0.2)
    for pid in _of(cluster):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _of(cluster: SlurmCluster) -> list[int]:
    import psutil

    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.info["name"] == "slurmstepd" and str(cluster.folder) in str(process.environ()):
                found.append(process.pid)
    return found
