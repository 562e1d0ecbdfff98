"""Promotions that race: whatever the interleaving, one wins and the alias names it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from components.core.errors import PolicyRefusal
from components.core.ledger import Ledger
from components.core.paths import PROJECT_ROOT
from components.registry.champions import champion
from components.registry.history import history
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import ledger_of, registered, rollout_report, version_ref

NAME = "triage"
RIVALS = 8

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


def first_champion(root: Path, url: str = "") -> tuple[FakeTracking, Ledger]:
    """Version 1 in front, and as many registered rivals as race."""
    tracking, ledger = FakeTracking(root / "models"), Ledger(url) if url else ledger_of(root)
    registered(tracking, str(RIVALS + 1))
    version = version_ref("1")
    promote(version, rollout_report(version), ledger, tracking, "run-1")
    return tracking, ledger


def race(url: str, tracking: FakeTracking, before: str, round_: int) -> tuple[str, dict[str, str]]:
    """Eight promotions at once, all judged against version `before`: the winner and how each ended."""
    start, ends = threading.Barrier(RIVALS), {}

    def run(number: str) -> None:
        version = version_ref(number, before)
        with closing(Ledger(url)) as own:
            start.wait()
            try:
                asked = promote(version, rollout_report(version), own, tracking, f"run-{round_}-{number}")
                ends[number] = asked.outcome
            except PolicyRefusal as refused:
                ends[number] = str(refused)

    rivals = [str(number) for number in range(1, RIVALS + 2) if str(number) != before]
    threads = [threading.Thread(target=run, args=(number,)) for number in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ends) == RIVALS
    (winner,) = [number for number, end in ends.items() if end == "promoted"]
    return winner, ends


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.full)])
def test_of_eight_promotions_at_once_exactly_one_wins(ledger_url: str, tmp_path: Path, rounds: int) -> None:
    """Round after round: one champion more, seven that are told who won, the alias agrees, no update is lost."""
    tracking, ledger = first_champion(tmp_path, ledger_url)
    before = "1"
    for round_ in range(rounds):
        winner, ends = race(ledger_url, tracking, before, round_)
        told = [end for number, end in ends.items() if number != winner]
        assert all(f"judged against champion {before}, but version {winner} won at" in end for end in told)
        live = champion(NAME, ledger)
        assert live is not None
        assert live.version == tracking.alias(NAME, "champion") == winner
        assert len(ledger.entries("promotion")) == round_ + 2
        before = winner
    refused = [item for item in history(NAME, ledger) if item["event"] == "refused"]
    assert len(refused) == rounds * (RIVALS - 1)
    assert ledger.verify() == 1 + rounds * RIVALS
    ledger.close()


PAUSED = """
import sys, time
from pathlib import Path
from components.core.errors import PilotlineError
from components.core.ledger import Ledger
from components.registry import transaction
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import registered, rollout_report, version_ref

root, url = Path(sys.argv[1]), sys.argv[2]
tracking, ledger = FakeTracking(root / "models"), Ledger(url)
registered(tracking, "2")
hold, append = ledger.hold, ledger.append
ledger.hold = lambda name: hold(name, seconds=0.2)

def append_late(*args, **options):
    (root / "decided").touch()  # it looked, it decided, and now it is stopped before it writes
    while not (root / "go").exists():
        time.sleep(0.001)
    return append(*args, **options)

ledger.append = append_late
version = version_ref("2", "1")
try:
    print(promote(version, rollout_report(version), ledger, tracking, "run-2").outcome)
except PilotlineError as refused:
    print("refused:", refused)
"""


def test_a_process_that_was_paused_while_it_decided_writes_nothing(ledger_url: str, tmp_path: Path) -> None:
    """SIGSTOP after the decision, another promotion meanwhile, SIGCONT: the fencing token keeps the late one out."""
    tracking, ledger = first_champion(tmp_path, ledger_url)
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(tmp_path), ledger_url], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "decided").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        third = version_ref("3", "1")
        assert promote(third, rollout_report(third), ledger, tracking, "run-3").outcome == "promoted"
        process.send_signal(signal.SIGCONT)
        said = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait(10)
    assert said.startswith("refused: promotion of triage:"), said
    assert "took over meanwhile; nothing was written" in said
    assert [entry.payload["version"] for entry in ledger.entries("promotion")] == ["1", "3"]
    ledger.verify()
    ledger.close()


def test_a_holder_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    """kill -9 with the lease in hand: the next promotion of this host goes on at once."""
    tracking, ledger = first_champion(tmp_path)
    code = "import os,signal,sys; from components.core.ledger import Ledger\n"
    code += "with Ledger(sys.argv[1]).hold('promotion of triage', seconds=3000): os.kill(os.getpid(), signal.SIGKILL)"
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    killed = subprocess.run([sys.executable, "-c", code, url], cwd=PROJECT_ROOT, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    second = version_ref("2", "1")
    started = time.monotonic()
    assert promote(second, rollout_report(second), ledger, tracking, "run-2").outcome == "promoted"
    assert time.monotonic() - started < 20


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
