"""A decision's values as the scoring service hands them to the log, and a process that logs until it is killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any


def record(decision_id: str, **changes: Any) -> dict[str, Any]:
    """A decision's values; the shop is its subject where a test names one."""
    return {
        "id": decision_id, "status": "ok", "failure": "", "drawn": "stable", "weight": 0.5, "answered_by": "stable",
        "version": "3", "digest": "d", "label": "yes", "score": 0.75, "threshold": 0.5, "prompt_digest": "p",
        "seconds": 0.01, "model_seconds": 0.005, "entities": {"shop": "shop-1"}, "text": "my card was charged twice",
        "features": {"count": {"value": 12.0, "as_of": "", "fresh": True}},
    } | changes  # fmt: skip


def main() -> None:
    """Log 500 decisions a second, each id printed with the time it was given to the log."""
    from components.serving.decision_log import DecisionLog
    from components.serving.decision_log.schema import new_id

    log = DecisionLog(Path(sys.argv[1]), "run-1")
    while True:
        decision_id = new_id()
        log.decision(**record(decision_id))
        print(decision_id, time.time(), flush=True)
        time.sleep(0.002)


if __name__ == "__main__":
    main()
