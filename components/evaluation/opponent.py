"""Finds the champion that a candidate has to be compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from components.core.errors import IntegrityError, TransientError
from components.core.steps import StepRun
from components.models.files import model_digest


class Versions(Protocol):
    """What is asked of the registry."""

    def alias(self, name: str, alias: str) -> str | None:
        """The version that an alias points to."""
        ...

    def versions(self, name: str) -> list[dict[str, Any]]:
        """All versions with digest and source."""
        ...


def champion_of(step: StepRun) -> tuple[str, Path] | None:
    """The current champion of the step's model, from the home's registry."""
    from components.tracking.mlflow_tracking import Tracking

    return find_champion(step.recipe.model.name, Tracking.at(step.home))


def find_champion(name: str, registry: Versions) -> tuple[str, Path] | None:
    """Version and model directory of the champion, its bytes checked against the version's digest; None without one.

    Raises:
        TransientError: the alias names a version that the registry does not list.
        IntegrityError: the champion's bytes are gone or differ from its digest.
    """
    version = registry.alias(name, "champion")
    if version is None:
        return None
    known = next((item for item in registry.versions(name) if item["version"] == version), None)
    if known is None:
        raise TransientError(f"model {name}: alias champion names version {version}, which is not listed; run again")
    folder = Path(known["source"])
    if (found := model_digest(folder)) != known["digest"]:
        raise IntegrityError(
            f"champion {name} version {version}: files have digest {found[:12]}, the registry says "
            f"{known['digest'][:12]}; put the files back or roll back with `pilotline models rollback {name}`"
        )
    return version, folder
