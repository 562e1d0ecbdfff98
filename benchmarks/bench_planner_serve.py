"""The serving planner: its error on published start-ups and answer times, and the time of a plan.

    python benchmarks/bench_planner_serve.py [--repeat 20] [--table FILE.csv]

Errors are taken with each source left out of the fit in turn. `--table` judges start-ups collected elsewhere (columns
as in components/planner/published_rows.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

from components.planner.published_rows import read_rows, serving_rows
from components.planner.serving import plan_serving
from components.planner.serving_points import figures, judge, points_of, read_points
from components.planner.serving_request import request_from
from components.planner.serving_speed_points import read_speed_points, speed_figures

TARGET_ERROR, TARGET_RAN, TARGET_FAILED, TARGET_BAND, TARGET_MS = 0.10, 0.95, 0.80, 0.80, 100.0
CASES: dict[str, dict[str, object]] = {
    "one GPU": {"params": 8e9, "gpus": 1, "gpu_memory_gib": 80},
    "12 nodes of 4": {"weights_gb": 350, "nodes": 12, "gpus_per_node": 4, "gpu_memory_gib": 40},
    "1,024 GPUs": {"model": "llama-3.1-405b", "gpus": 1024, "gpu": "H100-80GB", "requests_per_s": 50.0},
}


def main() -> None:
    """Print figures beside their targets."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeat", type=int, default=20, help="plans a case (default 20)")
    options.add_argument("--table", type=Path)
    args = options.parse_args()
    points, left_out = read_points()
    if args.table:
        others, left_out = points_of(serving_rows(read_rows(args.table)))
        _memory(figures(judge(others, points)))
        _left_out("start-ups", left_out)
        return
    _memory(figures(judge(points)))
    _left_out("start-ups", left_out)
    times, without = read_speed_points()
    found = speed_figures(times)
    print(
        f"answer times: {found['times']} published, median error {found['median_error']:.1%}, "
        f"bands cover {found['band_coverage']:.0%} (target {TARGET_BAND:.0%})"
    )
    _left_out("answer times", without)
    for name, values in CASES.items():
        print(f"plan, {name}: {_milliseconds(values, args.repeat):.1f} ms of CPU (target {TARGET_MS:.0f})")


def _memory(found: dict[str, float]) -> None:
    print(
        f"KV-cache tokens: median error {found['kv_tokens_median_error']:.1%} on {found['kv_rows']} rows "
        f"(target {TARGET_ERROR:.0%}), p90 {found['kv_tokens_p90_error']:.0%}; bands cover "
        f"{found['band_coverage']:.0%} (target {TARGET_BAND:.0%})"
    )
    print(
        f"ran, called feasible: {found['ran_called_feasible']:.0%} of {found['ran_rows']} (target {TARGET_RAN:.0%}); "
        f"failed, called infeasible: {found['failed_called_infeasible']:.0%} of {found['failed_rows']} "
        f"(target {TARGET_FAILED:.0%})"
    )


def _left_out(what: str, reasons: dict[str, str]) -> None:
    print(f"{what} left out: {len(reasons)}")
    for name, reason in reasons.items():
        print(f"  {name}: {reason}")


def _milliseconds(values: Mapping[str, object], repeat: int) -> float:
    request = request_from(values)
    began = time.process_time()
    for _ in range(repeat):
        plan_serving(request)
    return 1000 * (time.process_time() - began) / repeat


if __name__ == "__main__":
    main()
