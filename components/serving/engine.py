"""What a model server is to the serving stack: how it is started, and what it cannot serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.core.recipe import Serving


@dataclass(frozen=True)
class Launch:
    """What a model server is to serve, and where.

    `served_names`: the first is unique per version and labels its metrics; the others are aliases for callers that do
    not care which version answers. `cores`: the CPU cores that the server may compute on. `adapter_rank`: the largest
    rank of LoRA adapters that will be loaded, 0 where none will.
    """

    arm: str
    model_dir: Path
    served_names: Sequence[str]
    port: int
    max_model_len: int
    cores: Sequence[int]
    settings: Serving
    adapter_rank: int = 0


class Engine(Protocol):
    """A model server that speaks the OpenAI completions protocol."""

    @property
    def name(self) -> str:
        """vllm or reference."""
        ...

    @property
    def label(self) -> str:
        """Name and version, for records and reports."""
        ...

    def preflight(self, model_dir: Path) -> None:
        """UserError where this engine cannot serve the model."""
        ...

    def check_head_size(self, size: int, where: str) -> None:
        """UserError where this engine cannot serve a model with this attention head size."""
        ...

    def command(self, launch: Launch) -> list[str]:
        """The command line."""
        ...

    def environment(self, launch: Launch) -> dict[str, str]:
        """What to add to the environment."""
        ...
