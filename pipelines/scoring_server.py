"""The scoring service's process: online features of a training set behind the HTTP application.

python -m pipelines.scoring_server --config FILE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from components.core.errors import PilotlineError, one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; exit status 2 where the configuration does not fit."""
    parser = argparse.ArgumentParser(prog="pipelines.scoring_server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file written by the serving stack")
    given = parser.parse_args(arguments)
    from components.features.online import OnlineFeatures
    from components.serving.scoring_service import ServiceConfig, serve

    try:
        config = ServiceConfig.read(given.config)
        with OnlineFeatures(Path(config.training_set), config.parsed_recipe) as features:
            serve(config, features)
    except PilotlineError as error:
        print(one_line(error), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
