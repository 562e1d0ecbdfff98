"""A controller in a process of its own, on a stack that another process holds, so that it can be killed alone.

    python -m tests.fakes.remote_controller ROOT ADDRESS URL RUN_ID [half]

`half`: it kills itself in the middle of changing the weight: Envoy has the new one, the scoring service the old one.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from components.core.home import Home
from tests.fakes.reference_rollouts import RemoteStack, recipe
from tests.fakes.vllm_pair import Pair

PASSES = {"min_canary_requests": 40, "latency_ratio": 20.0, "alpha": 0.1, "requests_per_second": 30.0}


class HalfStack(RemoteStack):
    """Dies between the two writes of a weight."""

    def set_weight(self, percent: int) -> None:
        """At the first weight above 0."""
        if percent:
            self.ask("route", {"stable": 100 - percent, "canary": percent})
            os.kill(os.getpid(), signal.SIGKILL)
        super().set_weight(percent)


def main(root: Path, address: str, url: str, run_id: str, half: bool) -> int:
    """Lead one rollout to its end; exit status 0 where nobody's request failed, else 3."""
    pair = Pair.__new__(Pair)  # its folders are there
    pair.root, pair.home = root, Home.at(root / "home")
    pair.dirs = {"stable": root / "model-1", "candidate": root / "model-2"}
    stack = (HalfStack if half else RemoteStack)(address, url)
    report = pair.roll_out(stack, recipe(**PASSES), run_id)
    print(f"{report.outcome}: {report.requests} requests, {report.failed_requests} failed; {report.reason}", flush=True)
    return 3 if report.failed_requests else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:5], half=sys.argv[5:] == ["half"]))
