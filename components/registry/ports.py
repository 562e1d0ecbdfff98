"""What registration and promotion ask of the tracking adapter; the fake in tests keeps the same promises."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class ModelRegistry(Protocol):
    """Model versions with tags and aliases. Every call is idempotent and fails with a bounded TransientError."""

    def ensure_version(self, name: str, digest: str, source_dir: Path, run_id: str, tags: Mapping[str, str]) -> str:
        """Register a model directory, or return the version that carries this digest and `pilotline.key`."""
        ...

    def versions(self, name: str) -> list[dict[str, Any]]:
        """All versions of a model, oldest first."""
        ...

    def names(self) -> list[str]:
        """The names of all models."""
        ...

    def alias(self, name: str, alias: str) -> str | None:
        """The version that an alias points to."""
        ...

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point an alias at a version."""
        ...

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias where it is there."""
        ...

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        ...

    def write_schema(self, folder: Path, schema: Mapping[str, Any], digest: str) -> None:
        """Write the input signature of the model in `folder/model` as a file that the registry reads."""
        ...

    def log_artifacts(self, run_id: str, folder: Path) -> None:
        """Copy a folder's files to a tracking run."""
        ...
