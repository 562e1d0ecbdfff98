"""Seeded data generators, by the name that `generator://NAME?key=value` uses."""

from collections.abc import Callable
from typing import Any

from pipelines.generators.complaints import generate

GENERATORS: dict[str, Callable[..., Any]] = {"complaints": generate}
