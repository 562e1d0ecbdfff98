"""On every rank: at each ZeRO stage a step is dropped between two others; rank 0 writes what changed.

Called by forked_ranks.call; ROOT/stage-N/job.json is there for each stage N.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from components.training.job import Job
from components.training.schedule import rows_of_step
from components.training.worker import Rank


def _weights(rank: Rank) -> list[torch.Tensor]:
    with torch.no_grad(), rank.engine.weights() as current:
        return [tensor.clone() for tensor in current]


def _step(rank: Rank, step: int, *, drop: bool = False) -> None:
    rows = rows_of_step(rank.task.train_labels, rank.training, step)
    rank.engine.forward_backward(rank.task.batches(rows, step, rank.parts))
    rank.engine.drop() if drop else rank.engine.apply(1e-2)


def main(root: Path, stages: list[int]) -> None:
    """Train 0, 2 with step 1 dropped, and 0, 2 without it: the same weights, and no change at the drop."""
    torch.set_num_threads(1)
    found = {}
    for stage in stages:
        dropped, plain = (Rank(Job.read(root / f"stage-{stage}" / "job.json")) for _ in range(2))
        _step(dropped, 0)
        before = _weights(dropped)
        _step(dropped, 1, drop=True)
        held = all(torch.equal(a, b) for a, b in zip(before, _weights(dropped), strict=True))
        _step(dropped, 2)
        _step(plain, 0)
        _step(plain, 2)
        after, expected = _weights(dropped), _weights(plain)
        moved = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        same = all(torch.equal(a, b) for a, b in zip(after, expected, strict=True))
        found[stage] = {"held": held, "moved": moved, "same": same}
        dropped.engine.wait()
    dropped.engine.close()  # a process that ends inside its group may be aborted by its communication threads
    if dropped.chief:
        (root / "drop.json").write_text(json.dumps(found))
