"""The fitted constants of memory and speed, with the spread that gives the error bands; a small JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parent / "facts"
FILE = FACTS / "training_constants.json"


@dataclass(frozen=True)
class MemoryConstants:
    """Fixed memory in GiB by who counts it, and factors of what is kept for the backward pass.

    The values here are where the fit starts from and what it is drawn to: measured by others, not by us.
    """

    allocated_gib: float = 0.3
    reserved_gib: float = 1.5
    device_gib: float = 1.8
    needed_gib: float = 0.8  # the context; the allocator gives back its own slack before it fails
    kept: float = 1.0
    selective: float = 0.55
    working_layers: float = 1.5
    working_fused: float = 0.4
    logit_bytes: float = 11.0


@dataclass(frozen=True)
class SpeedConstants:
    """Efficiencies of a step's parts.

    `matmul`, `matmul_fp8` and `attention` are shares of the dense peak; `traffic` is how often a kept byte passes the
    memory bus; `launch_eager_s` and `launch_fused_s` are seconds a layer that no GPU is faster than, forward and
    backward; `link`, `network` are shares of the stated rates; `tp_exposed` the share of tensor-parallel exchange that
    nothing hides; `dequantise` 4-bit parameters a second (1e9).
    """

    matmul: float = 0.72
    matmul_fp8: float = 0.6
    attention: float = 0.5
    traffic: float = 1.7
    launch_eager_s: float = 3e-3
    launch_fused_s: float = 0.35e-3
    link: float = 0.5
    network: float = 1.6
    tp_exposed: float = 0.5
    dequantise: float = 120.0


@dataclass(frozen=True)
class Bands:
    """Half widths of the 80 % bands as logarithms, by class of run (see bands.py)."""

    memory: dict[str, float] = field(default_factory=lambda: {"common": 0.15, "rare": 0.3})
    speed: dict[str, float] = field(default_factory=lambda: {"common": 0.2, "rare": 0.4})


@dataclass(frozen=True)
class TrainingConstants:
    """All that was fitted, and how."""

    memory: MemoryConstants = MemoryConstants()
    speed: SpeedConstants = SpeedConstants()
    bands: Bands = field(default_factory=Bands)
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """JSON text."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrainingConstants:
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(
            MemoryConstants(**values["memory"]),
            SpeedConstants(**values["speed"]),
            Bands(**values["bands"]),
            values["provenance"],
        )


@cache
def training_constants() -> TrainingConstants:
    """The constants in the repository."""
    return TrainingConstants.from_json(FILE.read_text())
