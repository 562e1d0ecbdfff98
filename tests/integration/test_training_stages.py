"""DeepSpeed's sharded training against a plain loop written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from components.core.recipe import Recipe
from components.core.records import TrainingSetRef
from components.models.causal_lm.prepare import prepare
from components.models.causal_lm.task import Task
from components.training.job import Job
from components.training.schedule import average_weight, learning_rate, rows_of_step
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set, tiny_recipe

STAGES = (0, 1, 2, 3)


def _recipe(stage: int) -> Recipe:
    return tiny_recipe(
        training={"zero_stage": stage, "steps": 10, "checks": 1, "clip_norm": 0.5, "learning_rate": 5e-3}
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs of all stages, trained by two ranks in one process group."""
    root = tmp_path_factory.mktemp("stages")
    source = publish_training_set(root / "set")
    frames = [pd.read_parquet(source / f"{name}.parquet") for name in ("train", "validation")]
    for stage in STAGES:
        job = Job(root / f"stage-{stage}", "k", _recipe(stage))
        job.prepared.mkdir(parents=True)
        prepare(job.recipe, TrainingSetRef.read(source), *frames, job.prepared)
        job.write()
    forked_ranks.call("training_stages", root, STAGES, _recipe(0))
    return root


@pytest.fixture(scope="module")
def oracle(root: Path) -> dict[str, np.ndarray]:
    """Weights and their running average of a plain single-process loop on whole batches."""
    import torch

    recipe = _recipe(0)
    training = recipe.training
    task = Task(recipe, root / "stage-0" / "prepared")
    network = task.network()
    objective = task.objective(network)
    groups = [
        {"params": [p for p in network.parameters() if p.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in network.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.98))
    average = [p.detach().clone() for p in network.parameters()]
    start = [p.clone() for p in average]
    for step in range(training.steps):
        batch = task.batches(rows_of_step(task.train_labels, training, step), step, [slice(0, training.batch_size)])[0]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        optimizer.zero_grad()
        objective(batch).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
        optimizer.step()
        weight = average_weight(training, step)
        for old, new in zip(average, network.parameters(), strict=True):
            old.mul_(1 - weight).add_(new.detach(), alpha=weight)
    assert max(float((a - b.detach()).abs().max()) for a, b in zip(start, network.parameters(), strict=True)) > 0.01
    found = {f"weight.{i}": p.detach().numpy() for i, p in enumerate(network.parameters())}
    return found | {f"average.{i}": p.numpy() for i, p in enumerate(average)}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_zero_stages_on_two_ranks_equal_a_plain_loop_on_one(
    root: Path, oracle: dict[str, np.ndarray], stage: int
) -> None:
    """Dropouts, jitter, clipping and the language-model loss included, all weights agree to 1e-5."""
    from safetensors.numpy import load_file

    found = load_file(root / f"stage-{stage}" / "weights.safetensors")
    assert set(found) == set(oracle)
    for name, expected in oracle.items():
        assert np.abs(found[name] - expected).max() < 1e-5, name
