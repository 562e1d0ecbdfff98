"""A training job as a Slurm batch script: a pure function of the launch; one torchrun a node, started by srun."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from components.core.errors import UserError
from components.training.backends.launch import SOURCE_ROOT, WORKER, Launch, Placement, placement, rank_environment

FIRST_PORT, PORTS = 20000, 30000  # the rendezvous listens on a port derived from Slurm's job id
FROM_LOGIN = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "SLURM_CONF")  # where Slurm's own programs are found
STATUS_FILE = "slurm-{job}.status"
PREEMPTED = "preempted.json"  # ranks leave it when they saved because they were told to stop


def batch_script(launch: Launch, python: str = sys.executable, source: Path = SOURCE_ROOT) -> str:
    """The script as `sbatch` takes it.

    Slurm sends SIGTERM to the batch shell `grace_seconds` before the time is over, and to the ranks when it preempts
    them: they save and stop, and the job asks to be queued again. The exit status is left in the job's folder, as a
    cluster without accounting forgets it within minutes.

    Args:
        launch: whose job_file and log lie on a file system that all nodes share.
        python: interpreter of the environment, on every node.
        source: the source tree, on every node.

    Raises:
        UserError: the recipe's resources do not fit together, or a path cannot stand in a script.
    """
    where = placement(launch.recipe)
    for path in (launch.job_file, launch.log):
        if any(sign in str(path) for sign in '\n\r%"\\') or not path.is_absolute():
            raise UserError(
                f"{path}: a Slurm job needs an absolute path without %, quotes and line breaks; choose a --home"
            )
    words = {
        "options": "\n".join(f"#SBATCH --{option}" for option in _options(launch, where)),
        "folder": shlex.quote(str(launch.folder)),
        "settings": "\n".join(f"export {name}={shlex.quote(value)}" for name, value in _settings(where, source)),
        "loopback": "export GLOO_SOCKET_IFNAME=lo\n" if where.nodes == 1 else "",
        "requeues": where.pool.requeues,
        "cpus": where.cpus_per_node,
        "first": FIRST_PORT,
        "ports": PORTS,
        "python": shlex.quote(python),
        "nodes": where.nodes,
        "ranks": where.ranks_per_node,
        "stop": max(1, where.pool.grace_seconds - 10),
        "worker": WORKER,
        "job": shlex.quote(str(launch.job_file)),
        "preempted": PREEMPTED,
    }
    return _SCRIPT.format(**words)


def _options(launch: Launch, where: Placement) -> list[str]:
    """The #SBATCH lines; an empty setting asks for nothing."""
    pool = where.pool
    gres = f"gres={pool.gres or 'gpu'}:{where.gpus_per_node}" if where.gpus_per_node else ""
    partition, qos = launch.recipe.resources.queue or pool.partition, launch.recipe.resources.priority or pool.qos
    return [
        option
        for option in (
            f"job-name={launch.name}",
            f"nodes={where.nodes}",
            "ntasks-per-node=1",
            f"cpus-per-task={where.cpus_per_node}",
            f"mem={where.memory_gib + where.shm_gib}G",
            gres,
            f"time={pool.timeout_minutes}",
            f"signal=B:TERM@{pool.grace_seconds}",
            "requeue",
            "open-mode=append",
            f"output={shlex.quote(str(launch.log))}",
            f"partition={partition}" if partition else "",
            f"qos={qos}" if qos else "",
            f"export={','.join(_passed_on(where))}",
        )
        if option
    ]


def _passed_on(where: Placement) -> list[str]:
    """Variables that the job takes from the environment of sbatch: names only, values never enter the script."""
    secrets = {variable for secret in where.pool.secrets for variable in secret.keys.values()}
    return [*FROM_LOGIN, *sorted(secrets)]


def _settings(where: Placement, source: Path) -> list[tuple[str, str]]:
    found = rank_environment(where, one_machine=False) | {"PYTHONPATH": str(source)}
    return sorted(found.items())


# In the shell: `wait` returns early when a signal is trapped, so it is called until srun is gone, which leaves its
# status in a file. A job that was cancelled is not RUNNING any more and is not queued again.
_SCRIPT = r"""#!/bin/bash
{options}
set -u
cd {folder} || exit 1
{settings}
{loopback}rm -f {preempted}
asked=0
stop() {{
  asked=1
  echo "[slurm] told to stop: the ranks save"
  scancel --signal=TERM "$SLURM_JOB_ID.0"
}}
trap stop TERM
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
[ "$SLURM_JOB_NUM_NODES" -gt 1 ] || head=127.0.0.1
port=$(({first} + SLURM_JOB_ID % {ports}))
export head port
echo "[slurm] job $SLURM_JOB_ID, start $((${{SLURM_RESTART_COUNT:-0}} + 1)), on $SLURM_JOB_NODELIST"

status=slurm-$SLURM_JOB_ID.status
{{
  srun --kill-on-bad-exit=1 --cpus-per-task={cpus} --export=ALL bash -c 'exec "$1" -m torch.distributed.run \
    --nnodes={nodes} --node-rank="$SLURM_NODEID" --nproc-per-node={ranks} \
    --master-addr="$head" --master-port="$port" --max-restarts=0 --shutdown-timeout={stop} \
    -m {worker} "$0"' {job} {python}
  echo "$?" > "$status.new"
}} &
ranks=$!
while kill -0 "$ranks" 2>/dev/null; do wait "$ranks"; done

if [ ! -d final ] && {{ [ "$asked" = 1 ] || [ -e {preempted} ]; }} \
  && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ] \
  && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
  echo "[slurm] stopped before the end: queued again"
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
sync "$status.new" && mv "$status.new" "$status"
exit "$(cat "$status")"
"""
