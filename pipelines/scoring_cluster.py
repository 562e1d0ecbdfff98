"""The scoring service's pod: the service as a process of this one, and the control port of the rollout.

python -m pipelines.scoring_cluster --home DIR --port 8080 --control-port 8081

Before the first rollout nothing is served, and the pod is up but not ready. What was served before a restart is served
again: settings and state lie in the home.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from components.core.errors import PilotlineError, one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; the scoring service's status where it ends by itself, 2 where nothing can be served."""
    parser = argparse.ArgumentParser(prog="pipelines.scoring_cluster", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--control-port", type=int, default=8081)
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - the network policy says who gets there
    parser.add_argument("--module", default="pipelines.scoring_server", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    from components.core.home import Home
    from components.serving.cluster_control import FOLDER, Places, Scoring, control_key
    from components.serving.cluster_port import ControlPort
    from components.serving.decision_log import DECISION_LOG

    try:
        home = Home.at(given.home).root
        places = Places(home / FOLDER, home / DECISION_LOG, given.port, given.host)
        scoring = Scoring(places, lambda path: [sys.executable, "-m", given.module, "--config", str(path)])
        port = ControlPort(scoring, control_key(places.folder), given.control_port, given.host)
    except (PilotlineError, OSError) as error:
        print(one_line(error), file=sys.stderr)
        return error.exit_code if isinstance(error, PilotlineError) else 2

    def stop(_number: int, _frame: FrameType | None) -> None:
        scoring.end()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    port.start()
    try:
        return scoring.run()
    finally:
        port.close()


if __name__ == "__main__":
    sys.exit(main())
