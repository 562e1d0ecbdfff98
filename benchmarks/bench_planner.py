"""The planner against published runs that its constants have not seen, and the time that a plan takes.

    python benchmarks/bench_planner.py [--fit] [--table FILE.csv]

`--fit` fits the constants again and writes components/planner/facts/training_constants.json. `--table` judges rows
collected elsewhere (columns as in components/planner/published_rows.py) with constants that have not seen their source.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from statistics import median

from components.planner.calibration_fit import fit, left_out_constants
from components.planner.calibration_judge import Errors, Judgement, judge
from components.planner.published_rows import read_rows, training_rows
from components.planner.training import plan_training, request_from
from components.planner.training_constants import FILE
from components.planner.training_points import points_of, read_points

REQUESTS = (
    {"params": 1e9, "gpus": 1, "gpu_memory_gib": 80},
    {"params": 13e9, "gpus": 8, "gpu": "A100-80GB"},
    {"model": "llama-3-70b", "gpus": 64, "gpu": "H100-80GB", "seq": 8192, "global_batch": 512},
    {"model": "llama-3.1-405b", "gpus": 512, "gpu": "H100-80GB", "seq": 8192, "global_batch": 1024},
)


def main() -> None:
    """Print one line a figure with its target."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fit", action="store_true")
    options.add_argument("--table", type=Path)
    args = options.parse_args()
    own = read_points()
    if args.table:
        show(judge(points_of(training_rows(read_rows(args.table))), left_out_constants(own)))
        return
    if args.fit:
        FILE.write_text(fit(own).to_json())
        print(f"written: {FILE.name}")
    show(judge(own))
    plan_times()


def show(found: Judgement) -> None:
    """Errors on organisations left out of the fit."""
    if found.ran:
        figure("runs that ran called feasible", found.ran_called_feasible / found.ran, 0.95, found.ran, at_least=True)
    if found.failed:
        right = found.failed_called_infeasible / found.failed
        figure("out-of-memory called infeasible", right, 0.8, found.failed, at_least=True)
    errors("peak memory", found.memory, 0.10)
    errors("tokens/s", found.speed, 0.20)
    for purpose, reasons in found.left_out.items():
        for reason, count in Counter(reasons).most_common():
            print(f"  left out of {purpose}: {count:3d} {reason}")
    for line in found.wrong:
        print(f"  called wrongly: {line}")


def errors(name: str, found: Errors, target: float) -> None:
    """Median and nine tenths of relative errors, all together and by organisation, and the bands' coverage."""
    if not found.all:
        print(f"     {name}: no point states what is needed")
        return
    figure(f"{name}, median relative error", found.median, target, len(found.all))
    print(f"  p90 {found.p90:.3f}; " + ", ".join(f"{g} {median(e):.3f} of {len(e)}" for g, e in found.by_group.items()))
    figure(f"{name}, points in their 80 % band", found.coverage, 0.8, len(found.all), at_least=True)


def figure(name: str, value: float, target: float, count: int, at_least: bool = False) -> None:
    """One figure beside its target."""
    good = value >= target if at_least else value <= target
    sign = "at least" if at_least else "at most"
    print(f"{'ok  ' if good else 'MISS'} {name}: {value:.3f} ({sign} {target:g}, {count} points)")


def plan_times() -> None:
    """Milliseconds of a plan, the slowest of several."""
    for values in REQUESTS:
        request = request_from(values)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            plan = plan_training(request)
            times.append(1000 * (time.perf_counter() - began))
        print(f"plan of {values}: {max(times):.1f} ms (target 100): {plan.strategy}")


if __name__ == "__main__":
    main()
