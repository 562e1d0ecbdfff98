"""The training task: a linear layer under the worker's own loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from components.core.recipe import Recipe
from components.models.calibration import Calibration
from components.models.files import SIGNATURE


@dataclass(frozen=True)
class Batch:
    """Rows in numbers."""

    x: Tensor
    y: Tensor
    step_tokens: int
    step_flops: float

    def to(self, device: torch.device) -> Batch:
        """On the CPU only."""
        return self


class Objective(nn.Module):
    """Binary cross entropy."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss."""
        return nn.functional.binary_cross_entropy_with_logits(self.network(batch.x)[:, 0], batch.y)


class Task:
    """The task of a prepared folder."""

    def __init__(self, recipe: Recipe, prepared: Path) -> None:
        self._signature = json.loads((prepared / SIGNATURE).read_text())
        self._train, self._validation = (np.load(prepared / f"{name}.npz") for name in ("train", "validation"))
        self.train_labels, self.validation_labels = self._train["y"], self._validation["y"]
        self._x, self._held_out = self._train["x"], self._validation["x"]

    def network(self) -> nn.Module:
        """Zero weights."""
        layer = nn.Linear(len(self._signature["features"]), 1)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def objective(self, network: nn.Module) -> nn.Module:
        """The layer with its loss."""
        return Objective(network)

    def batches(self, rows: NDArray[np.int64], step: int, parts: Sequence[slice]) -> list[Batch]:
        """Slices of the rows."""
        return [
            Batch(
                torch.from_numpy(self._x[rows[part]]),
                torch.from_numpy(self.train_labels[rows[part]]).float(),
                len(rows),
                6.0 * self._x.shape[1] * len(rows),
            )
            for part in parts
        ]

    def validation_log_odds(self, network: nn.Module, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The layer's answer."""
        with torch.no_grad():
            return np.asarray(network(torch.from_numpy(self._held_out[rows]))[:, 0].double().numpy())

    def export_adapter(self, network: Any, folder: Path) -> None:
        """There is none."""

    def export(self, network: nn.Module, calibration: Calibration, folder: Path) -> None:
        """Weights and signature."""
        folder.mkdir(parents=True)
        save_file(dict(network.state_dict()), folder / "model.safetensors")
        signature = self._signature | {"calibration": calibration.to_dict()}
        (folder / SIGNATURE).write_text(json.dumps(signature))
