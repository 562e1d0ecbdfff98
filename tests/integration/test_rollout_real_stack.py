"""A whole rollout on the real local stack (Envoy, scoring service, draws, log) before fake model servers."""

from __future__ import annotations

import multiprocessing
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import publishing
from components.core.records import Evidence, ModelVersionRef, RolloutReport, SplitRef, TrainingSetRef
from components.models.files import model_digest
from components.rollout import journal as book
from components.rollout.rollout import roll_out
from components.serving.stack import LocalStack
from pipelines.rollouts import abort
from tests.fakes.serving_case import expected_score, make_shell, open_fake, rows, tiny_recipe

ROLLOUT = {
    "golden_requests": 8,
    "shadow_requests": 0,
    "steps": [50],
    "min_canary_requests": 30,
    "requests_per_second": 40.0,
    "deadline_seconds": 60.0,
    "error_margin": 0.2,
    "latency_ratio": 20.0,
}


@dataclass
class Place:
    """Everything that a rollout of version 2 beside version 1 needs."""

    root: Path
    stack: LocalStack | None = None
    wants: int = 30
    """Canary requests before a stage may pass; a thousand is a stage that a test can interrupt."""

    def __post_init__(self) -> None:
        """Two models of other weights and the same prompt: they score alike, as the fake server scores the prompt."""
        for version in ("1", "2"):
            make_shell(self.root / f"model-{version}", note=version)
        self.dirs: dict[str, Path | None] = {"stable": self.root / "model-1", "candidate": self.root / "model-2"}
        self.digests = {role: model_digest(folder) for role, folder in self.dirs.items() if folder}
        self.rollout = ROLLOUT | {"min_canary_requests": self.wants}
        self.recipe = tiny_recipe(rollout=self.rollout)
        given = rows(37)
        frame = pd.DataFrame(
            [row["features"] | {"shop": row["entities"]["shop"], "text": row["text"]} for row in given]
        )
        frame["row_id"] = [f"r{number}" for number in range(len(frame))]
        frame["label"] = [number % 2 for number in range(len(frame))]
        frame["event_timestamp"] = pd.Timestamp("2026-01-01", tz="UTC")
        scores = [expected_score(self.root / "model-2", row) for row in given]
        split = SplitRef(name="test", rows=37, positives=18, digest="t", time_min="", time_max="")
        with publishing(self.root / "set") as folder:
            frame.to_parquet(folder / "test.parquet")
            TrainingSetRef(
                digest="set", snapshot_digest="s", clean_digest="c", feature_repo="f", feature_service="s",
                features=("count", "rate"), entities=("shop",), as_of="", embargo_days=0, splits=(split,),
            ).write(folder)  # fmt: skip
        evidence = Evidence(
            model_digest=self.digests["candidate"], training_set_digest="set", test_digest="t", rows=37, positives=18,
            metrics={}, baselines={}, slices={},
        )  # fmt: skip
        with publishing(self.root / "evidence") as folder:
            told = {"row_id": frame["row_id"], "label": frame["label"], "score": scores, "champion_score": scores}
            pd.DataFrame(told).to_parquet(folder / "predictions.parquet")
            evidence.write(folder)
        with publishing(self.root / "version") as folder:
            ModelVersionRef(
                name="tiny", version="2", digest=self.digests["candidate"], gate_passed=True, gate=(),
                champion_version="1", champion_digest=self.digests["stable"], evidence_digest=evidence.record_digest,
            ).write(folder)  # fmt: skip

    @property
    def home(self) -> Home:
        """Holds ledger and logs."""
        return Home.at(self.root / "home")

    def run(self, **faults: str) -> RolloutReport:
        """Roll out on a stack of its own."""
        folders = [self.root / name for name in ("version", "set", "evidence", "report")]
        self.stack = open_fake(self.root, faults, rollout=self.rollout)
        with closing(Ledger(self.home.ledger_url)) as ledger:
            opening: Any = lambda: self.stack  # noqa: E731
            return roll_out(self.recipe, *folders, opening, self.dirs, ledger, "run-1")


def test_an_equal_version_passes_on_the_real_stack(tmp_path) -> None:
    """Both ready by their registered golden scores; passed; not one request failed."""
    report = Place(tmp_path).run()
    assert report.outcome == "passed", report.reason
    assert report.failed_requests == 0
    assert report.requests > 60


def test_a_canary_that_scores_otherwise_than_registered_is_not_ready(tmp_path) -> None:
    """NaN from its first answer on after the warm-up: the golden request decides, nobody was asked by it."""
    report = Place(tmp_path).run(canary="nan")
    assert report.outcome == "rolled_back"
    assert "did not become ready" in report.reason
    assert report.requests == 0


def test_a_controller_killed_in_traffic_leaves_no_process_and_the_next_one_passes(tmp_path) -> None:
    """SIGKILL at 50 % with both replicas, Envoy and the service up: all of them go, and the same end is reached."""
    place = Place(tmp_path)
    marked = {proc.pid for proc in psutil.process_iter()}
    child = multiprocessing.get_context("fork").Process(target=place.run)
    child.start()
    with closing(Ledger(place.home.ledger_url)) as ledger:
        deadline = time.monotonic() + 60
        while not any(entry.payload.get("state") == "step 50 %" for entry in ledger.entries(book.KIND)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    family = psutil.Process(child.pid).children(recursive=True)
    assert len({proc.pid for proc in family} - marked) >= 4
    child.kill()
    child.join()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    report = place.run()
    assert report.outcome == "passed", report.reason
    assert any("the one before ended in state step 50 %" in event.text for event in report.timeline)
    assert report.failed_requests == 0


@pytest.mark.parametrize("state", ["golden", "step 50 %"])
def test_failure20_abort_takes_seconds_on_the_real_stack(tmp_path, state) -> None:
    """Seen from outside: the canary's weight is 0 within 3 s, the end is written, no request failed."""
    place = Place(tmp_path, wants=1000)
    seconds: list[float] = []

    def ask() -> None:
        with closing(Ledger(place.home.ledger_url)) as ledger:
            while not any(
                entry.payload.get("state") == state and entry.payload["event"] == "state"
                for entry in ledger.entries(book.KIND)
            ):
                time.sleep(0.05)
        time.sleep(1.0)
        began = time.monotonic()
        waiting = threading.Thread(target=abort, args=(place.home, "too slow", "alice"))
        waiting.start()
        while place.stack is not None and place.stack.router.weights().get("canary", 0):
            time.sleep(0.02)
        seconds.append(time.monotonic() - began)
        waiting.join()

    asking = threading.Thread(target=ask)
    asking.start()
    report = place.run()
    asking.join()
    assert report.outcome == "rolled_back"
    assert "alice: too slow" in report.reason
    assert report.failed_requests == 0
    assert seconds[0] < 3.0
