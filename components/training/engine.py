"""The one adapter of DeepSpeed: start, step, save and load of a sharded training engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from components.core.errors import IntegrityError
from components.core.recipe import Training
from components.training.checkpoints import ENGINE

RENDEZVOUS = timedelta(seconds=300)  # how long a rank waits for a stalled one; a dead one is noticed at once
BUCKET_ELEMENTS = 5_000_000
NEVER = 1 << 60


class Engine:
    """A DeepSpeed engine around an objective; every method but the properties is called by all ranks together."""

    def __init__(self, objective: nn.Module, training: Training) -> None:
        deepspeed = _deepspeed()
        matrices = [p for p in objective.parameters() if p.dim() > 1]
        vectors = [p for p in objective.parameters() if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": training.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=(0.9, 0.98))
        self.rank, self.ranks = _join(deepspeed)
        self._deepspeed, self._stage = deepspeed, training.zero_stage
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=objective, optimizer=optimizer, config=_config(training, self.ranks)
        )

    def step(self, batch: Any, learning_rate: float) -> float:
        """One optimizer step on this rank's slice; returns this rank's loss."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        loss = self._engine(batch)
        self._engine.backward(loss)
        self._engine.step()
        return float(loss.detach())

    def gradient_norm(self) -> float:
        """Norm of the whole gradient of the last step before clipping."""
        return float(self._engine.get_global_grad_norm() or 0.0)

    @contextmanager
    def weights(self, objective: nn.Module) -> Iterator[list[torch.Tensor]]:
        """The full current weights in the module's parameter order (gathered where stage 3 has sharded them)."""
        parameters = list(objective.parameters())
        if self._stage < 3:
            yield [p.data for p in parameters]
            return
        with self._deepspeed.zero.GatheredParameters(parameters):
            yield [p.data for p in parameters]

    def mean(self, value: float) -> float:
        """The mean of a number over ranks."""
        total = torch.tensor([value], dtype=torch.float64)
        torch.distributed.all_reduce(total)
        return float(total) / self.ranks

    def gather(self, mine: NDArray[np.float64], total: int) -> NDArray[np.float64]:
        """Interleave what each rank computed for rows[rank::ranks], shape (total,)."""
        width = -(-total // self.ranks)
        padded = torch.zeros(width, dtype=torch.float64)
        padded[: len(mine)] = torch.from_numpy(mine)
        parts = [torch.zeros_like(padded) for _ in range(self.ranks)]
        torch.distributed.all_gather(parts, padded)
        return np.asarray(torch.stack(parts, dim=1).reshape(-1)[:total].numpy())

    def wait(self) -> None:
        """Wait for all ranks (bounded by the rendezvous time)."""
        torch.distributed.barrier()

    def save(self, staging: Path) -> None:
        """Write this rank's share of the engine's state; the caller seals the folder."""
        self._engine.save_checkpoint(str(staging), tag=ENGINE, save_latest=False)

    def load(self, checkpoint: Path) -> None:
        """Read this rank's share; IntegrityError where the engine takes nothing from the folder."""
        found, _ = self._engine.load_checkpoint(str(checkpoint), tag=ENGINE)
        if found is None:
            raise IntegrityError(f"{checkpoint}: DeepSpeed found nothing to load; remove the folder")

    def close(self) -> None:
        """Leave the process group."""
        torch.distributed.destroy_process_group()


def _deepspeed() -> Any:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with _absent("mlflow"):
        import deepspeed
        import deepspeed.comm.comm  # brings deepspeed.comm.torch into sys.modules

    # Joining would compile a C++ shared-memory extension; without it DeepSpeed uses gloo and needs no compiler.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    return deepspeed


@contextmanager
def _absent(module: str) -> Iterator[None]:
    """Make an optional import fail: DeepSpeed's autotuner, unused here, would load MLflow into every rank (1.2 s)."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def _join(deepspeed: Any) -> tuple[int, int]:
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, timeout=RENDEZVOUS, verbose=False)
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _config(training: Training, ranks: int) -> dict[str, Any]:
    return {
        "train_batch_size": training.batch_size,
        "train_micro_batch_size_per_gpu": training.batch_size // ranks,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": training.clip_norm,
        "zero_optimization": {
            "stage": training.zero_stage,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "overlap_comm": False,
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": NEVER,
    }


def engine_files(staging: Path) -> Sequence[Path]:
    """Files that DeepSpeed leaves beside its state and that are no state (a recovery script)."""
    return list(staging.glob("*.py"))
