"""Small published inputs of a rollout, with the scores that the fake serving stack gives."""

from __future__ import annotations

import json
import uuid
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import publishing
from components.core.recipe import Recipe, parse_recipe
from components.core.records import Evidence, ModelVersionRef, RolloutReport, SplitRef, TrainingSetRef
from components.models.files import model_digest
from components.rollout.rollout import roll_out
from tests.fakes.fake_serving import FakeServing, fake_score
from tests.fakes.weights import weights

SIGNATURE = {
    "family": "causal_lm", "labels": ["no", "yes"], "label_token_ids": [1, 2], "features": ["count"], "text_tokens": 8,
    "feature_service": "s", "prompt": "", "bucket_edges": {"count": [0.5]}, "calibration": None,
}  # fmt: skip


def small_recipe(**rollout: Any) -> Recipe:
    """A recipe about nothing in particular, with these rollout settings."""
    return parse_recipe(
        {
            "name": "case",
            "source": {"uri": "x.csv", "time_column": "t", "key": ["id"]},
            "contract": {"path": "c.yaml"},
            "features": {"repo": "f", "service": "s", "entities": {"shop": "shop"}, "model_inputs": ["count"]},
            "model": {"name": "case", "label_column": "label", "positive_values": ["1"]},
            "rollout": rollout,
        }
    )


@dataclass(frozen=True)
class Case:
    """Folders of one rollout; `champion` False for a first version."""

    root: Path
    recipe: Recipe
    version: Path
    training_set: Path
    evidence: Path
    model_dirs: dict[str, Path | None]

    @property
    def ledger_url(self) -> str:
        """The ledger of the case."""
        return f"sqlite:///{self.root / 'ledger.db'}"

    def run(self, stack: FakeServing, out: str = "report", run_id: str = "") -> RolloutReport:
        """Roll out on the fake, with the fake's clock; a rollout of its own unless a run is named."""
        folders = (self.version, self.training_set, self.evidence, self.root / out)
        with closing(Ledger(self.ledger_url)) as ledger:
            asked = (self.model_dirs, ledger, run_id or uuid.uuid4().hex, stack.clock)
            return roll_out(self.recipe, *folders, lambda: nullcontext(stack), *asked)

    def with_version(self, **changes: Any) -> Case:
        """The same with fields of the version's record changed."""
        changed = replace(ModelVersionRef.read(self.version), **changes)
        with publishing(self.root / "changed") as folder:
            changed.write(folder)
        return replace(self, version=self.root / "changed")


def make_case(root: Path, champion: bool = True, rows: int = 400, **rollout: Any) -> Case:
    """Publish model directories, a training set, its evidence and a version."""
    models = Home.at(root / "home").models
    candidate = _model(models, "candidate")
    stable = _model(models, "stable") if champion else None
    frame = _test_rows(rows)
    split = SplitRef(name="test", rows=rows, positives=int(frame["label"].sum()), digest="t", time_min="", time_max="")
    training = TrainingSetRef(
        digest="set",
        snapshot_digest="snapshot",
        clean_digest="clean",
        feature_repo="f",
        feature_service="s",
        features=("count",),
        entities=("shop",),
        as_of="",
        embargo_days=0,
        splits=(split,),
    )
    with publishing(root / "set") as folder:
        frame.to_parquet(folder / "test.parquet")
        training.write(folder)
    evidence = Evidence(
        model_digest=candidate.parent.name,
        training_set_digest="set",
        test_digest="t",
        rows=rows,
        positives=split.positives,
        metrics={},
        baselines={},
        slices={},
    )
    scores = [fake_score(row) for row in frame.to_dict("records")]
    with publishing(root / "evidence") as folder:
        pd.DataFrame({"row_id": frame["row_id"], "label": frame["label"], "score": scores}).to_parquet(
            folder / "predictions.parquet"
        )
        evidence.write(folder)
    version = ModelVersionRef(
        name="case",
        version="2",
        digest=evidence.model_digest,
        gate_passed=True,
        gate=(),
        champion_version="1" if champion else "",
        champion_digest=stable.parent.name if stable else "",
        evidence_digest=evidence.record_digest,
    )
    with publishing(root / "version") as folder:
        version.write(folder)
    dirs = {"candidate": candidate, "stable": stable}
    return Case(root, small_recipe(**rollout), root / "version", root / "set", root / "evidence", dirs)


def _model(models: Path, content: str) -> Path:
    """A directory in the registry's layout, models/<digest>/model; nobody loads it."""
    staged = models / content / "model"
    staged.mkdir(parents=True)
    (staged / "model.safetensors").write_bytes(weights(content))
    (staged / "pilotline.json").write_text(json.dumps(SIGNATURE))
    home = models / model_digest(staged)
    staged.parent.rename(home)
    return home / "model"


def _test_rows(rows: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    ids = [f"row-{number}" for number in range(rows)]
    scores = np.array([fake_score({"row_id": row_id}) for row_id in ids])
    count = np.where(random.random(rows) < 0.1, np.nan, random.integers(0, 9, rows).astype(float))
    return pd.DataFrame(
        {
            "row_id": ids,
            "event_timestamp": pd.date_range("2024-01-01", periods=rows, freq="h", tz="UTC"),
            "label": (random.random(rows) < scores).astype("int8"),
            "text": "some text",
            "shop": "corner",
            "count": count,
            "group:some": False,
        }
    )
