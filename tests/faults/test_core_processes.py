"""Processes never outlive their owner unnoticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from components.core.processes import OWNER, end, end_leftovers, owned_by, owner_token, spawn, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_spawned_process_dies_with_its_parent(tmp_path: Path) -> None:
    """SIGKILL of the parent takes the child along at once."""
    code = (
        "import sys, time; from pathlib import Path; from components.core.processes import spawn\n"
        f"p = spawn({SLEEP!r}, log=Path(sys.argv[1])); print(p.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not _lives(child), 5)


def test_a_step_follows_the_command_that_started_the_run(tmp_path: Path) -> None:
    """With a shell between them, the step and its children end soon after the command was killed."""
    step = (
        "import subprocess, sys, time; from components.core.processes import follow_main; follow_main()\n"
        f"c = subprocess.Popen({SLEEP!r}); print(c.pid, flush=True); time.sleep(60)\n"
    )
    command = (
        "import subprocess, sys, time; from pathlib import Path; from components.core.processes import adopt\n"
        "adopt(Path(sys.argv[1]))\n"
        f"subprocess.run(['sh', '-c', 'true; \"$0\" -c \"$1\"; true', sys.executable, {step!r}])"
    )
    main = subprocess.Popen([sys.executable, "-c", command, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    grandchild = int(main.stdout.readline())
    main.kill()
    main.wait()
    main.stdout.close()
    assert wait_until(lambda: not _lives(grandchild), 5)
    end_leftovers(tmp_path)  # the shell between them


def test_leftovers_of_a_home_are_ended_and_others_are_spared(tmp_path: Path) -> None:
    """Only processes that carry this home's token are ended."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    procs = [subprocess.Popen(SLEEP, env={**os.environ, OWNER: owner_token(home)}) for home in (mine, other)]
    try:
        assert wait_until(lambda: owned_by(mine) == [procs[0].pid], 5)
        assert end_leftovers(mine) == [procs[0].pid]
        assert not _lives(procs[0].pid)
        assert procs[1].poll() is None
    finally:
        for proc in procs:
            proc.kill()
            proc.wait()


def test_ending_a_process_ends_its_whole_group(tmp_path: Path) -> None:
    """A child that ignores SIGTERM and a grandchild are both gone after `end`."""
    code = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"p = subprocess.Popen({SLEEP!r}); print(p.pid, flush=True); time.sleep(60)"
    )
    process = spawn([sys.executable, "-c", code], log=tmp_path / "log")
    assert wait_until(lambda: (tmp_path / "log").read_text().strip().isdigit(), 5)
    began = time.monotonic()
    assert end(process, grace_seconds=0.5) == -signal.SIGKILL
    assert time.monotonic() - began < 5
    assert wait_until(lambda: not _lives(int((tmp_path / "log").read_text())), 5)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
