"""SIGKILL to the process that writes the decision log."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from components.core.paths import PROJECT_ROOT
from components.serving.decision_log import DecisionLog, read_decisions
from components.serving.decision_log.schema import new_id
from tests.fakes.decision_record import record


def test_sigkill_loses_at_most_the_last_second(tmp_path: Path) -> None:
    """Whatever was given to the log a second before is there, in order and with its seal; the log goes on after."""
    path = tmp_path / "decisions.db"
    command = [sys.executable, "-m", "tests.fakes.decision_record", str(path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT_ROOT, text=True)
    assert writer.stdout is not None
    given = [writer.stdout.readline().split() for _ in range(1500)]
    writer.kill()
    killed = time.time()
    given += [line.split() for line in writer.stdout.read().splitlines() if len(line.split()) == 2]
    writer.wait()
    writer.stdout.close()
    found = read_decisions(path)
    assert all(row["intact"] for row in found)
    ids = [decision_id for decision_id, _ in given]
    kept = [row["id"] for row in found if row["id"] in set(ids)]
    assert kept == ids[: len(kept)]
    assert [decision_id for decision_id, at in given[len(kept) :] if float(at) < killed - 1.0] == []
    log = DecisionLog(path, "run-2")
    log.decision(**record(new_id()))
    log.close()
    assert len(read_decisions(path)) == len(found) + 1
