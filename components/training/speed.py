"""How fast training goes and what holds it up: tokens a second, FLOP utilisation, memory, communication, stragglers."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "barrier",
)
# Of a point of the curve: what a clock or the operating system told, and no two runs have alike.
MEASURED = frozenset({"tokens_per_second", "mfu", "memory_gib", "communication_share", "straggler_spread"})


class CommunicationClock:
    """Seconds that this process spends inside collectives, waiting for others included.

    Wraps the collectives of a communication back-end object whose calls block, as gloo's on a CPU do. On a GPU they
    only enqueue, and overlap with computing: there is no such number there, and `seconds` stays None.
    """

    def __init__(self, backend: Any, *, blocking: bool) -> None:
        self.seconds: float | None = 0.0 if blocking else None
        if blocking:
            for name in COLLECTIVES:
                if hasattr(backend, name):
                    setattr(backend, name, self._timed(getattr(backend, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                work = call(*args, **kwargs)
            finally:
                self._add(began)
            return _TimedWork(work, self._add) if hasattr(work, "wait") else work

        return timed

    def _add(self, began: float) -> None:
        self.seconds = (self.seconds or 0.0) + time.perf_counter() - began


class _TimedWork:
    """A collective under way; waiting for it counts too."""

    def __init__(self, work: Any, add: Callable[[float], None]) -> None:
        self._work, self._add = work, add

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._work.wait(*args, **kwargs)
        finally:
            self._add(began)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@dataclass
class Meter:
    """Counts of one rank since the last point of the curve.

    Attributes:
        clock: of communication.
        peak_flops: of one rank's device a second, None = unknown.
        tokens, flops: of the whole batches since then.
    """

    clock: CommunicationClock
    peak_flops: float | None
    tokens: int = 0
    flops: float = 0.0
    _since: float = field(default_factory=time.perf_counter)
    _communicated: float = 0.0

    def start(self) -> None:
        """Count from here."""
        self.tokens, self.flops = 0, 0.0
        self._since, self._communicated = time.perf_counter(), self.clock.seconds or 0.0

    def read(self) -> NDArray[np.float64]:
        """Seconds since the start, those of them in collectives, memory in GiB; shape (3,)."""
        passed = time.perf_counter() - self._since
        return np.array([passed, (self.clock.seconds or 0.0) - self._communicated, memory_gib()])

    def values(self, readings: NDArray[np.float64]) -> dict[str, float]:
        """The point of the curve from all ranks' readings of shape (3, ranks); what is unknown is left out."""
        passed, communicated, memory = readings
        seconds, ranks = max(float(passed.max()), 1e-9), readings.shape[1]
        found = {
            "tokens_per_second": round(self.tokens / seconds, 1),
            "memory_gib": round(float(memory.max()), 4),
        }
        if self.peak_flops:
            found["mfu"] = round(self.flops / seconds / ranks / self.peak_flops, 5)
        if self.clock.seconds is not None:
            own = np.maximum(passed - communicated, 1e-9)
            found["communication_share"] = round(float(communicated.sum() / max(float(passed.sum()), 1e-9)), 4)
            found["straggler_spread"] = round(float(own.max() / own.mean()), 4)
        return found


def memory_gib() -> float:
    """The most memory that this rank had so far, in GiB: the GPU's where it trains there, else resident memory."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 2**30


def peak_flops(stated_tflops: float, device: torch.device, precision: str) -> float | None:
    """FLOP a second of a rank's device: what the recipe states, else the GPU's published peak, else None."""
    if stated_tflops:
        return stated_tflops * 1e12
    if device.type != "cuda":
        return None
    from components.core.errors import UserError
    from components.planner.gpus import gpu_for

    try:
        found = gpu_for(torch.cuda.get_device_name(device)).peak_tflops(precision)
    except UserError:
        return None
    return found * 1e12 if found else None
