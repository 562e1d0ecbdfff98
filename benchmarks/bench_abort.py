"""From the first bad answer of a canary to no traffic for it, in real time, on the reference engine.

    python benchmarks/bench_abort.py [--runs N]

Two servers of the reference engine behind Envoy and the scoring service; 20 requests a second (held-out rows that the
rollout sends), 10 % to the canary, which answers the first requests well and then every one with 500. The clock begins
when the first request that the canary fails arrives, by its id, and ends when weight 0 was read back from Envoy and the
scoring service. Target: under 5 s at the median. Users are answered by stable meanwhile: failed requests are counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from components.serving.decision_log import read_decisions
from components.serving.decision_log.schema import time_of
from tests.fakes.reference_rollouts import PROBES, Served2, Timed, recipe, served_by_reference

TARGET_SECONDS = 5.0
HEALTHY = 3  # canary answers before the first bad one


def main() -> None:
    """Print each run and the median."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=20)
    args = options.parse_args()
    seconds, failed, requests = [], 0, 0
    with tempfile.TemporaryDirectory() as folder, served_by_reference(Path(folder)) as served:
        for run in range(args.runs):
            found, report = one_run(served, f"run-{run}")
            seconds.append(found)
            failed, requests = failed + report.failed_requests, requests + report.requests
            rule = next(rule.rule for rule in report.rules if rule.outcome == "fail" and rule.rule != "harm")
            print(f"run {run + 1}: {found:.2f} s, {rule}, {report.requests} requests", flush=True)
    seconds.sort()
    median = statistics.median(seconds)
    print(
        f"{len(seconds)} runs: median {median:.2f} s, p90 {seconds[int(0.9 * len(seconds))]:.2f} s, longest "
        f"{seconds[-1]:.2f} s (target {TARGET_SECONDS:g} s at the median: "
        f"{'met' if median < TARGET_SECONDS else 'MISSED'}); {failed} of {requests} requests failed"
    )


def one_run(served: Served2, run_id: str) -> tuple[float, Any]:
    """Seconds from the first bad answer to weight 0, and the rollout's report."""
    served.engine.faults["canary"], served.engine.healthy["canary"] = "error", PROBES + HEALTHY
    log = served.stack.decision_log
    known = {row["id"] for row in read_decisions(log)} if log.exists() else set()
    stack = Timed(served.stack)
    report = served.pair.roll_out(stack, recipe(steps=[10], requests_per_second=20.0), run_id)
    assert report.outcome == "rolled_back", report.reason
    bad = [row["id"] for row in read_decisions(log) if row["id"] not in known and row["failure"]]
    begins = datetime.fromisoformat(str(time_of(min(bad)))).timestamp()
    given = next(at for at, percent in stack.weights if percent)
    return next(at for at, percent in stack.weights if at > given and percent == 0) - begins, report


if __name__ == "__main__":
    main()
