"""A model that started from another, adapted and merged, scores in vLLM as in the worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from components.core.home import Home
from components.core.records import TrainingSetRef
from components.models.calibration import Calibration
from components.models.causal_lm.prepare import prepare
from components.models.causal_lm.task import Task
from components.models.files import model_digest
from components.serving.engines import choose
from components.serving.stack import LocalStack
from tests.fakes.serving_case import FEATURES
from tests.fakes.tiny_initial import tiny_initial
from tests.fakes.training_case import publish_training_set, tiny_recipe

ROWS = 24


@pytest.mark.vllm
def test_a_merged_adapter_scores_in_vllm_as_in_training(tmp_path: Path) -> None:
    """New label tokens, tied embeddings with trained rows, head size 32: 24 rows spread over 0 to 1, within 1e-3."""
    import torch

    initial = tiny_initial(tmp_path / "initial", hidden=64)
    made = tiny_recipe(model={"initial": str(initial), "text_form": "plain"}, training={"tuning": "lora", "ranks": 1})
    recipe = made.model_copy(update={"features": made.features.model_copy(update={"model_inputs": FEATURES})})
    source = publish_training_set(tmp_path / "set")
    names = {"visits": "count", "share": "rate"}  # as the scoring service of these tests has them
    frames = [pd.read_parquet(source / f"{name}.parquet").rename(columns=names) for name in ("train", "validation")]
    (tmp_path / "prepared").mkdir()
    prepare(recipe, TrainingSetRef.read(source), *frames, tmp_path / "prepared")
    task = Task(recipe, tmp_path / "prepared")
    network = task.network()
    objective = task.objective(network)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=3e-2)
    for step in range(12):
        objective(task.batches(np.arange(32), step, [slice(0, 32)])[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
    odds = task.validation_log_odds(network.eval(), np.arange(ROWS))
    spread = float(odds.std())  # small, as a few steps of a random network leave it: told from 0 to 1
    calibration = Calibration(1.0 / spread, -float(odds.mean()) / spread)
    expected = calibration.probability(odds)
    assert np.ptp(expected) > 0.3
    task.export(network, calibration, tmp_path / "model")
    rows = [
        {"features": {name: row[name] for name in FEATURES}, "text": row["text"]}
        for row in frames[1].iloc[:ROWS].to_dict("records")
    ]
    with LocalStack(
        recipe=recipe,
        home=Home.at(tmp_path / "home"),
        run_id="run-1",
        training_set=source,
        choice=choose("vllm"),
        service_module="tests.fakes.serving_case",
    ) as stack:
        stack.start("stable", tmp_path / "model", "1", model_digest(tmp_path / "model"))
        found = stack.score_arm("stable", rows)
    assert np.array(found, dtype=float) == pytest.approx(expected, abs=1e-3)
