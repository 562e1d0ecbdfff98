"""Two versions that a real model server can serve, what a rollout of one beside the other reads, and a caller."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
import pandas as pd

from components.core.home import Home
from components.core.ledger import Ledger
from components.core.processes import wait_until
from components.core.protocols import Decision, GoldenRow, Served
from components.core.publish import publishing
from components.core.recipe import Recipe
from components.core.records import Evidence, ModelVersionRef, RolloutReport, SplitRef, TrainingSetRef
from components.models.files import model_digest
from components.models.spec import spec_for
from components.rollout import journal
from components.rollout.rollout import roll_out
from components.serving.load import Drive
from components.serving.stack import LocalStack
from tests.fakes.serving_case import make_model, rows

ROWS = 37  # one a shop: an answer's entity tells its row
NOISE = 0.05  # of the head's spread; moves each score by 0.0009 to 0.023 and no label
SAME = 1e-4  # a served score and the registered one; the two versions differ by nine times as much on each row


class Pair:
    """Version 1 is the champion, version 2 the candidate with a slightly different head; `scores` by version and shop.

    The label of a row is whether version 1 scores it above its median, so that a model that looks at nothing is seen.
    """

    def __init__(self, root: Path) -> None:
        """Make models and published folders under `root`."""
        self.root, self.home = root, Home.at(root / "home")
        make_model(root / "model-1", seed=0)
        _neighbour(root / "model-1", root / "model-2")
        self.dirs: dict[str, Path | None] = {"stable": root / "model-1", "candidate": root / "model-2"}
        self.digests = {role: model_digest(folder) for role, folder in self.dirs.items() if folder}
        self.rows = rows(ROWS)
        shown = pd.DataFrame([row["features"] | {"text": row["text"]} for row in self.rows])
        scored = {v: spec_for("causal_lm").scorer(root / f"model-{v}").score(shown) for v in ("1", "2")}
        shops = [row["entities"]["shop"] for row in self.rows]
        self.scores = {v: dict(zip(shops, map(float, found), strict=True)) for v, found in scored.items()}
        self._publish_set()
        self.register("as-evaluated", list(self.scores["2"].values()))

    def register(self, name: str, scores: Sequence[float]) -> None:
        """Publish version 2 with evidence that evaluation gave it these scores."""
        told = {"row_id": [f"r{n}" for n in range(ROWS)], "label": self._labels, "score": scores}
        told["champion_score"] = list(self.scores["1"].values())
        evidence = Evidence(
            model_digest=self.digests["candidate"], training_set_digest="set", test_digest="t", rows=ROWS,
            positives=sum(self._labels), metrics={}, baselines={}, slices={},
        )  # fmt: skip
        with publishing(self.root / f"evidence-{name}") as folder:
            pd.DataFrame(told).to_parquet(folder / "predictions.parquet")
            evidence.write(folder)
        with publishing(self.root / f"version-{name}") as folder:
            ModelVersionRef(
                name="tiny", version="2", digest=self.digests["candidate"], gate_passed=True, gate=(),
                champion_version="1", champion_digest=self.digests["stable"], evidence_digest=evidence.record_digest,
            ).write(folder)  # fmt: skip

    def roll_out(self, stack: Any, recipe: Recipe, run_id: str, registered: str = "as-evaluated") -> RolloutReport:
        """Version 2 beside version 1 on a stack that stays open."""
        places = [f"version-{registered}", "set", f"evidence-{registered}", f"report-{run_id}"]
        with closing(Ledger(self.home.ledger_url)) as ledger:
            folders = [self.root / place for place in places]
            return roll_out(recipe, *folders, lambda: nullcontext(stack), self.dirs, ledger, run_id)

    def state(self, run_id: str) -> str:
        """The state that a rollout entered last, "" before it began."""
        with closing(Ledger(self.home.ledger_url)) as ledger:
            mine = [one.payload for one in ledger.entries(journal.KIND) if one.payload["rollout"].startswith(run_id)]
        return next((str(one["state"]) for one in reversed(mine) if one["event"] == "state"), "")

    @property
    def _labels(self) -> list[int]:
        stable = np.array(list(self.scores["1"].values()))
        return [int(score > np.median(stable)) for score in stable]

    def _publish_set(self) -> None:
        frame = pd.DataFrame([row["features"] | row["entities"] | {"text": row["text"]} for row in self.rows])
        frame["row_id"] = [f"r{number}" for number in range(ROWS)]
        frame["label"] = self._labels
        frame["event_timestamp"] = pd.Timestamp("2026-01-01", tz="UTC")
        positives = sum(self._labels)
        split = SplitRef(name="test", rows=ROWS, positives=positives, digest="t", time_min="", time_max="")
        with publishing(self.root / "set") as folder:
            frame.to_parquet(folder / "test.parquet")
            TrainingSetRef(
                digest="set", snapshot_digest="s", clean_digest="c", feature_repo="f", feature_service="s",
                features=("count", "rate"), entities=("shop",), as_of="", embargo_days=0, splits=(split,),
            ).write(folder)  # fmt: skip


class WarmStack:
    """A stack that holds both versions already: a rollout finds them ready and need not start them again."""

    def __init__(self, stack: LocalStack) -> None:
        """`stack` is open; its canary is the candidate."""
        self._stack, self._begun = stack, False

    def stop(self, arm: str) -> None:
        """What a controller does before it begins would end the canary that is there."""
        if self._begun:
            self._stack.stop(arm)

    def launch(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> None:
        """It is there."""
        self._begun = True
        assert self._stack.alive(arm)
        assert self._stack.served(arm).version == version

    def start(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> Served:
        """Ready by its golden request, as after a start."""
        before = self._stack.served(arm).pid
        served = self._stack.start(arm, model_dir, version, digest, golden)
        assert served.pid == before
        return served

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stack's."""
        return getattr(self._stack, name)


class Caller:
    """A user beside the rollout's own traffic: asks by the clock from when somebody is ready to when the block ends."""

    def __init__(self, url: str, asked: Sequence[Mapping[str, Any]], rate: float, timeout_seconds: float) -> None:
        """`asked`: rows, again and again."""
        self._url, self._ended = url, threading.Event()
        self._drive = Drive(url, list(asked) * 1000, rate, timeout_seconds, self._look)
        self._thread = threading.Thread(target=self._run, name="caller")
        self.decisions: list[Decision] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def answered(self, weight: float) -> int:
        """How many were answered with this weight in force."""
        return sum(decision.weight == weight for decision in self.decisions)

    def _run(self) -> None:
        if wait_until(lambda: self._ended.is_set() or self._ready(), 600.0, every=0.2) and not self._ended.is_set():
            self.decisions = self._drive.run()

    def _look(self, seen: Sequence[Decision]) -> bool:
        self.decisions = list(seen)
        return self._ended.is_set()

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/readyz", timeout=5.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


def _neighbour(source: Path, folder: Path) -> None:
    """The same model with a little noise on its head."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["lm_head.weight"]
    noise = torch.randn(head.shape, generator=torch.Generator().manual_seed(9))
    save_file(
        tensors | {"lm_head.weight": head + NOISE * head.std() * noise},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
