"""The one adapter of DeepSpeed: start, step, save and load of a sharded training engine."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from components.core.errors import IntegrityError, UserError
from components.core.recipe import Training
from components.training.averages import trainable
from components.training.checkpoints import ENGINE
from components.training.speed import CommunicationClock
from components.training.staging import MemoryStaging

RENDEZVOUS = timedelta(seconds=300)  # how long a rank waits for a stalled one; a dead one is noticed at once
BUCKET_ELEMENTS = 5_000_000
GPU_BUCKET_ELEMENTS = 100_000_000
NEVER = 1 << 60


class Engine:
    """A DeepSpeed engine around an objective; every method but the properties is called by all ranks together.

    Attributes:
        rank, ranks: this process and how many there are.
        device, precision: where and in what it computes.
        communication: the clock of its collectives.
    """

    def __init__(self, objective: nn.Module, training: Training) -> None:
        deepspeed = _deepspeed()
        self.rank, self.ranks, self.device = _join(deepspeed)
        self.precision = precision_of(training)
        self._deepspeed, self._stage = deepspeed, training.zero_stage
        self._partial = any(not p.requires_grad for p in objective.parameters())
        self._trained = trainable(objective)
        on_gpu = self.device.type == "cuda"
        optimizer = torch.optim.AdamW(
            _groups(self._trained, training), lr=training.learning_rate, betas=(0.9, 0.98), fused=on_gpu or None
        )
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=objective.to(self.device), optimizer=optimizer, config=_config(training, self.ranks)
        )
        self._staging = MemoryStaging(_trusted)
        self._engine.checkpoint_engine = self._staging
        self._engine._copy_recovery_script = lambda _: None  # a program has no place among the state
        self.communication = CommunicationClock(deepspeed.comm.comm.cdb, blocking=not on_gpu)

    def forward_backward(self, batches: Sequence[Any]) -> float:
        """Accumulate the gradient of this rank's micro-batches; returns their mean loss."""
        losses = []
        for done, batch in enumerate(batches):
            if done:
                self._engine.step()  # closes the micro-batch before; the last one is closed by `apply` or `drop`
            loss = self._engine(batch.to(self.device))
            self._engine.backward(loss)
            losses.append(loss.detach())
        return float(torch.stack(losses).mean()) if len(losses) > 1 else float(losses[0])

    def apply(self, learning_rate: float) -> None:
        """One step of the optimizer with the accumulated gradient, clipped."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()

    def drop(self) -> None:
        """Forget the accumulated gradient: weights and optimizer stay as they are.

        As DeepSpeed does itself where a gradient overflows (`_overflow_clean_up` of its ZeRO optimizers).
        """
        optimizer = self._engine.optimizer
        optimizer.zero_grad(set_to_none=True)
        if getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False):
            optimizer.reset_cpu_buffers()
        elif hasattr(optimizer, "averaged_gradients"):
            optimizer.averaged_gradients = {}
        if self._stage in (1, 2):
            optimizer.micro_step_id = -1  # stage 3's `zero_grad` starts its own count anew
        self._engine.micro_steps += 1

    def gradient_norm(self) -> float:
        """Norm of the whole gradient of the last step before clipping."""
        return float(self._engine.get_global_grad_norm() or 0.0)

    @contextmanager
    def weights(self) -> Iterator[list[torch.Tensor]]:
        """The whole current weights that are trained, in the module's order (gathered where stage 3 shards them)."""
        if self._stage < 3:
            yield [p.data for p in self._trained]
            return
        with self._deepspeed.zero.GatheredParameters(self._trained):
            yield [p.data for p in self._trained]

    def mean(self, value: float) -> float:
        """The mean of a number over ranks."""
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return float(total) / self.ranks

    def gather(self, mine: NDArray[np.float64], total: int) -> NDArray[np.float64]:
        """Interleave what each rank computed for rows[rank::ranks], shape (total,)."""
        width = -(-total // self.ranks)
        padded = torch.zeros(width, dtype=torch.float64, device=self.device)
        padded[: len(mine)] = torch.from_numpy(mine)
        parts = [torch.zeros_like(padded) for _ in range(self.ranks)]
        torch.distributed.all_gather(parts, padded)
        return np.asarray(torch.stack(parts, dim=1).reshape(-1)[:total].cpu().numpy())

    def wait(self) -> None:
        """Wait for all ranks (bounded by the rendezvous time)."""
        torch.distributed.barrier()

    def save(self, staging: Path) -> list[tuple[Path, Any]]:
        """Copy this rank's share of the engine's state to memory; the caller writes it to the paths given.

        The copies are good until the next `save`, which uses their memory again.
        """
        self._engine.save_checkpoint(
            str(staging), tag=ENGINE, save_latest=False, exclude_frozen_parameters=self._partial
        )
        return self._staging.take()

    def load(self, checkpoint: Path, universal: bool = False) -> None:
        """Read this rank's share of a verified folder; IntegrityError where the engine takes nothing from it.

        `universal`: the folder has DeepSpeed's universal form, which any number of ranks reads.
        """
        self._engine._config.load_universal_checkpoint = universal
        groups = self._optimizer.param_groups
        settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        found, _ = self._engine.load_checkpoint(str(checkpoint), tag=ENGINE, load_module_strict=not self._partial)
        if found is None:
            raise IntegrityError(f"{checkpoint}: DeepSpeed found nothing to load; remove the folder")
        if universal:
            _mend(self._engine.optimizer, groups, settings)

    def refuse_foreign(self, files: Sequence[Path]) -> None:
        """IntegrityError where one of these verified files names a type that no state of ours holds; builds nothing."""
        for path in files:
            with _trusted():
                found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            if found:
                raise IntegrityError(f"{path}: holds more than tensors and plain values ({', '.join(found)[:100]})")

    def close(self) -> None:
        """Leave the process group."""
        torch.distributed.destroy_process_group()


def check_device(training: Training) -> None:
    """UserError, in one line, for what a machine without a GPU cannot honour."""
    if torch.cuda.is_available():
        return
    for name in ("offload_optimizer", "offload_parameters"):
        if getattr(training, name) != "none":
            raise UserError(
                f"training.{name}: without a GPU all memory is the CPU's already, so there is nothing to offload; set "
                "none, or train on a pool of GPUs (resources.profile gpu-pool)"
            )
    if training.precision == "bf16":
        raise UserError("training.precision bf16 is for GPUs (a CPU computes it ten times slower); set auto or fp32")


def precision_of(training: Training) -> str:
    """fp32 or bf16: what the recipe asks for, else what the device is for."""
    if training.precision != "auto":
        return training.precision
    return "bf16" if torch.cuda.is_available() else "fp32"


def _groups(trained: Sequence[nn.Parameter], training: Training) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not."""
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _deepspeed() -> Any:
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    with _absent("mlflow"):
        import deepspeed
        import deepspeed.comm.comm  # brings deepspeed.comm.torch into sys.modules

    with _uncompiled():
        import deepspeed.runtime.zero.muon.muon_optimizer
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


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Let nothing be prepared for compiling: Muon, unused here, would load torch's compiler into every rank (0.7 s)."""
    from deepspeed.runtime import compiler

    usual = compiler.compile
    compiler.compile = lambda *_, **__: lambda function: function
    try:
        yield
    finally:
        compiler.compile = usual


def _join(deepspeed: Any) -> tuple[int, int, torch.device]:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    deepspeed.init_distributed(
        dist_backend="nccl" if on_gpu else "gloo", auto_mpi_discovery=False, timeout=RENDEZVOUS, verbose=False
    )
    return torch.distributed.get_rank(), torch.distributed.get_world_size(), device


def _config(training: Training, ranks: int) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    zero: dict[str, Any] = {
        "stage": training.zero_stage,
        "reduce_bucket_size": GPU_BUCKET_ELEMENTS if on_gpu else BUCKET_ELEMENTS,
        "allgather_bucket_size": GPU_BUCKET_ELEMENTS if on_gpu else BUCKET_ELEMENTS,
        "overlap_comm": on_gpu,
    }
    if training.offload_optimizer != "none":
        zero["offload_optimizer"] = {"device": training.offload_optimizer, "pin_memory": True}
    if training.offload_parameters != "none":
        zero["offload_param"] = {"device": training.offload_parameters, "pin_memory": True}
    config = {
        "train_batch_size": training.batch_size,
        "train_micro_batch_size_per_gpu": training.batch_size // (ranks * training.accumulation),
        "gradient_accumulation_steps": training.accumulation,
        "gradient_clipping": training.clip_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": NEVER,
    }
    if precision_of(training) == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return config


def _mend(optimizer: Any, groups: list[dict[str, Any]], settings: list[dict[str, Any]]) -> None:
    """Undo what stage 3 of DeepSpeed 0.19 does on reading a universal form.

    Every group gets the weight decay of the first, and all share one tensor as step count, which then rises several
    times a step.
    """
    for group, own in zip(groups, settings, strict=True):
        group.update(own)
    for state in optimizer.optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def engine_module(name: str) -> Any:
    """A module of DeepSpeed by its name."""
    _deepspeed()
    return importlib.import_module(name)


def _trusted() -> AbstractContextManager[Any]:
    """A context in which torch builds `trusted_types` from a file, and nothing else beside tensors and containers."""
    context: AbstractContextManager[Any] = torch.serialization.safe_globals(trusted_types())
    return context


def trusted_types() -> list[Any]:
    """What of DeepSpeed's own a checkpoint holds beside tensors and containers."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
