"""The running average of the trained weights, and the best of it by validation loss.

Averaging weights along the path of the optimizer: Polyak and Juditsky (1992); exponential as in Izmailov et al. (2018).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """A network of its own with averaged weights, which validation and export use.

    Attributes:
        network: the network; what is not trained is shared with the trained one where `shared`, else a copy.
        weights: its averaged parameters, in the order of the trained network's trainable ones.
    """

    def __init__(self, network: nn.Module, *, shared: bool) -> None:
        trained = trainable(network)
        own = {id(parameter) for parameter in trained}
        frozen = {id(p): p for p in network.parameters() if id(p) not in own} if shared else {}
        names = [name for name, parameter in network.named_parameters() if id(parameter) in own]
        self.network: Any = copy.deepcopy(network, dict(frozen))
        found = dict(self.network.named_parameters())
        self.weights: list[Tensor] = [found[name] for name in names]
        for parameter in self.weights:
            parameter.requires_grad_(False)
        self._best = [weight.clone() for weight in self.weights]

    def to(self, device: torch.device) -> None:
        """Move network and best weights to the device that trains."""
        self.network.to(device)
        self._best = [weight.to(device) for weight in self._best]

    def follow(self, current: Sequence[Tensor], share: float) -> None:
        """Let `share` of the current weights enter; 1 takes them as they are."""
        with torch.no_grad():
            values = [new.to(old.dtype) for new, old in zip(current, self.weights, strict=True)]
            torch._foreach_lerp_(self.weights, values, share)

    def keep_as_best(self) -> None:
        """Remember the average as it is now."""
        self._best = [weight.detach().clone() for weight in self.weights]

    def restore_best(self) -> None:
        """Put the remembered weights into the network."""
        with torch.no_grad():
            for weight, best in zip(self.weights, self._best, strict=True):
                weight.copy_(best)

    def tensors(self) -> dict[str, Tensor]:
        """Running and best weights by name, for a checkpoint."""
        found = {f"average.{i}": weight.detach().contiguous() for i, weight in enumerate(self.weights)}
        return found | {f"best.{i}": weight.contiguous() for i, weight in enumerate(self._best)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """What `tensors` gave."""
        with torch.no_grad():
            for i, weight in enumerate(self.weights):
                weight.copy_(tensors[f"average.{i}"])
        self._best = [tensors[f"best.{i}"].to(weight.device) for i, weight in enumerate(self.weights)]


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, in the module's order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
