"""On every rank: the same tiny job at several ZeRO stages in one process group; rank 0 writes the weights.

Called by forked_ranks.call; ROOT/stage-N/job.json is there for each stage N.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from components.training.job import Job
from components.training.worker import Rank


def main(root: Path, stages: list[int]) -> None:
    """Train each stage's job to its last step, without its export."""
    torch.set_num_threads(1)
    for stage in stages:
        rank = Rank(Job.read(root / f"stage-{stage}" / "job.json"))
        rank.meter.start()
        while rank.state.step < rank.training.steps:
            rank.one_step()
        with torch.no_grad(), rank.engine.weights() as current:
            tensors = {f"weight.{i}": tensor.clone() for i, tensor in enumerate(current)}
        tensors |= {f"average.{i}": p.detach().clone() for i, p in enumerate(rank.average.weights)}
        if rank.chief:
            save_file(tensors, root / f"stage-{stage}" / "weights.safetensors")
        rank.engine.wait()
    rank.engine.close()  # a process that ends inside its group may be aborted by its communication threads
