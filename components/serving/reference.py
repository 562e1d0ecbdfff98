"""The reference engine: our own small server on transformers, for machines where vLLM cannot be had."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path

from components.core.paths import PROJECT_ROOT
from components.serving.engine import Launch


@dataclass(frozen=True)
class ReferenceEngine:
    """Same endpoints, metric names and label scoring as vLLM, without its throughput."""

    name: str = "reference"

    @property
    def label(self) -> str:
        """Name and the version of what computes."""
        return f"reference (transformers {importlib.metadata.version('transformers')})"

    def preflight(self, model_dir: Path) -> None:
        """Serves whatever transformers loads."""

    def check_head_size(self, size: int, where: str) -> None:
        """Serves every head size."""

    def command(self, launch: Launch) -> list[str]:
        """This Python, our server module."""
        options = {
            "--model": str(launch.model_dir),
            "--port": str(launch.port),
            "--dtype": launch.settings.dtype,
            "--max-model-len": str(launch.max_model_len),
            "--threads": str(len(launch.cores)),
        }
        flat = [word for option in options.items() for word in option]
        names = ["--served-model-name", *launch.served_names]
        return [sys.executable, "-m", "components.serving.reference_server", *flat, *names]

    def environment(self, launch: Launch) -> dict[str, str]:
        """No hub; the project's root on the path."""
        del launch  # the same for every replica
        return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONPATH": str(PROJECT_ROOT)}
