"""The scoring service's process: online features of a training set behind the HTTP application.

python -m pipelines.scoring_server --config FILE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from components.core.errors import PilotlineError, one_line

if TYPE_CHECKING:
    from components.core.recipe import Recipe
    from components.features.online import OnlineFeatures
    from components.models.feature_source import FeatureSource


class FollowedFeatures:
    """The online features of a training set, opened anew where its path, a link, leads to another one.

    `pilotline serve` moves the link when a new version takes over, whose training set holds newer values.
    """

    def __init__(self, training_set: Path, recipe: Recipe) -> None:
        self._link, self._recipe = training_set, recipe
        self._folder, self._opened = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @property
    def source(self) -> FeatureSource:
        """The feature service and its features."""
        return self._opened.source

    def read(self, entities: Mapping[str, str], request: Mapping[str, Any]) -> Any:
        """Values for one row of entities, as known now."""
        if self._link.resolve() != self._folder:
            self._folder, self._opened = self._open()  # the one before is closed with its last reference
        return self._opened.read(entities, request)

    def _open(self) -> tuple[Path, OnlineFeatures]:
        from components.features.online import OnlineFeatures

        folder = self._link.resolve()
        return folder, OnlineFeatures(folder, self._recipe).__enter__()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; exit status 2 where the configuration does not fit."""
    parser = argparse.ArgumentParser(prog="pipelines.scoring_server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file written by the serving stack")
    given = parser.parse_args(arguments)
    from components.serving.scoring_service import ServiceConfig, serve

    try:
        config = ServiceConfig.read(given.config)
        with FollowedFeatures(Path(config.training_set), config.parsed_recipe) as features:
            serve(config, features)
    except PilotlineError as error:
        print(one_line(error), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
