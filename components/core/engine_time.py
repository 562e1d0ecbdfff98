"""How much of a step's time went into the engines, so that our own overhead can be stated.

An adapter wraps its engine calls in `engine_time("feast")`; the step's note then carries seconds by engine.
Nested measurements count once, for the outer engine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

_seconds: defaultdict[str, float] = defaultdict(float)
_inside = local()


@contextmanager
def engine_time(engine: str) -> Iterator[None]:
    """Add the wall time of the block to the engine's account."""
    if getattr(_inside, "engine", None):
        yield
        return
    _inside.engine = engine
    began = time.perf_counter()
    try:
        yield
    finally:
        _inside.engine = None
        _seconds[engine] += time.perf_counter() - began


def taken() -> dict[str, float]:
    """Seconds by engine since the process began, or since `reset`."""
    return {engine: round(seconds, 3) for engine, seconds in _seconds.items()}


def reset() -> None:
    """Begin a new account."""
    _seconds.clear()
