"""Promotions that race: whatever the interleaving, one wins and the alias names it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from components.core.errors import PolicyRefusal
from components.core.ledger import Ledger
from components.core.paths import PROJECT_ROOT
from components.registry.champions import champion
from components.registry.history import history
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import ledger_of, registered, rollout_report, version_ref

NAME = "triage"
RIVALS = 6

PROCESS = """
import sys, time
from pathlib import Path
from components.core.errors import PolicyRefusal
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import ledger_of, registered, rollout_report, version_ref

root, number = Path(sys.argv[1]), sys.argv[2]
tracking, ledger = FakeTracking(root / "models"), ledger_of(root)
registered(tracking, number)
version = version_ref(number, "1")
(root / f"ready-{number}").touch()
while not (root / "go").exists():
    time.sleep(0.001)
try:
    print(promote(version, rollout_report(version), ledger, tracking, f"run-{number}").outcome)
except PolicyRefusal as refused:
    print("refused:", refused)
"""


def first_champion(root: Path) -> tuple[FakeTracking, Ledger]:
    """Version 1 in front, and as many registered rivals as race."""
    tracking, ledger = FakeTracking(root / "models"), ledger_of(root)
    registered(tracking, str(RIVALS + 1))
    version = version_ref("1")
    promote(version, rollout_report(version), ledger, tracking, "run-1")
    return tracking, ledger


def test_threads_that_race_have_one_winner(tmp_path: Path) -> None:
    """All were judged against version 1; one becomes champion, the others read which one, the alias agrees."""
    tracking, ledger = first_champion(tmp_path)
    start, ends = threading.Barrier(RIVALS), {}

    def race(number: str) -> None:
        version = version_ref(number, "1")
        own = ledger_of(tmp_path)
        start.wait()
        try:
            ends[number] = promote(version, rollout_report(version), own, tracking, f"run-{number}").outcome
        except PolicyRefusal as refused:
            ends[number] = str(refused)

    threads = [threading.Thread(target=race, args=(str(number),)) for number in range(2, RIVALS + 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = [number for number, end in ends.items() if end == "promoted"]
    assert len(ends) == RIVALS
    assert all(f"version {winner} won" in end for number, end in ends.items() if number != winner)
    assert champion(NAME, ledger).version == winner  # type: ignore[union-attr]
    assert tracking.alias(NAME, "champion") == winner
    assert len(ledger.entries("promotion")) == 2
    refused = [item for item in history(NAME, ledger) if item["event"] == "refused"]
    assert len(refused) == RIVALS - 1
    ledger.verify()


def test_processes_that_race_have_one_winner(tmp_path: Path) -> None:
    """The same between processes, where only the ledger is shared."""
    _, ledger = first_champion(tmp_path)
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path), str(number)],
            cwd=PROJECT_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (2, 3, 4)
    ]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("ready-*"))) < len(racing) and time.monotonic() < deadline:
        time.sleep(0.05)
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=60)[0].strip() for process in racing]
    assert sorted(word.split(":")[0] for word in said) == ["promoted", "refused", "refused"]
    winner = champion(NAME, ledger)
    assert winner is not None
    assert said[int(winner.version) - 2] == "promoted"
    assert len(ledger.entries("promotion")) == 2
    ledger.verify()
