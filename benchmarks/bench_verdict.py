"""What a verdict costs, and how fast it comes: the design's operating table on simulated traffic, with ratios to it.

    python benchmarks/bench_verdict.py [--runs N] [--long]

Every cell runs the whole judge (all metrics, all rules) at 20 requests a second, with the budget of its step, from 60
requests of stable alone; a look at each arrival in the first half minute, twice a second later. A ratio below 1 is
faster than the design's figure; the target for 5 % errors against 0.5 % is 1.3. "known rates" is the best test of this
kind at the same budget that knows both rates beforehand: no test that has to learn them can beat it. `--long` runs the
cells that take minutes of traffic (2 % of errors) with as many runs as the others. Costs are CPU seconds of
this process.
"""

from __future__ import annotations

import argparse
import statistics
import time

from components.rollout.verdict import Judge
from tests.fakes.verdict_table import PROVED, TABLE, Row, clairvoyant_seconds, measure, proved_seconds
from tests.fakes.verdict_traffic import Arm, LiveTraffic, design_margins

TARGET = 1.3


def main() -> None:
    """Print the costs and the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=40)
    options.add_argument("--long", action="store_true")
    args = options.parse_args()
    costs()
    began = time.process_time()
    print(f"\n{'change':<44}{'weight':>7}{'median s':>10}{'p90 s':>8}{'design':>8}{'ratio':>7}  outcomes, rules")
    for row in TABLE:
        for weight in row.seconds:
            slow = "2 %" in row.change and not args.long
            _print_cell(row, weight, max(5, args.runs // 4) if slow else args.runs)
    for (metric, weight, margin), design in PROVED.items():
        seconds, name = proved_seconds(metric, weight, margin, args.runs), f"identical: {metric} proved"
        name += f" (+{margin * 100:g} pp)" if metric == "errors" else " (x1.25)"
        print(f"{name:<44}{weight:>5} %{seconds:>10.1f}{'':>8}{design:>8.1f}{seconds / design:>7.2f}", flush=True)
    for weight in (10, 50):
        print(f"known rates, errors .5 → 5 %, {weight} %: median {clairvoyant_seconds(400, weight / 100):.1f} s")
    print(f"table: {time.process_time() - began:.0f} CPU s")


def _print_cell(row: Row, weight: int, runs: int) -> None:
    measured, (design, _) = measure(row, weight, runs), row.seconds[weight]
    ended = ", ".join(f"{count} {name}" for name, count in (measured.outcomes + measured.rules).most_common())
    ratio = measured.median / design
    verdict = "" if "5 %" not in row.change[-4:] else f" (target {TARGET}: {'met' if ratio <= TARGET else 'MISSED'})"
    print(
        f"{row.change:<44}{weight:>5} %{measured.median:>10.1f}{measured.p90:>8.1f}{design:>8.1f}{ratio:>7.2f}"
        f"  {ended}{verdict}",
        flush=True,
    )


def costs() -> None:
    """CPU of one request taken in and of one look, in a step after a shadow and another step."""
    traffic, judge = LiveTraffic("cost", Arm()), Judge(design_margins(canary_requests=10**9), 2)
    judge.baseline(traffic.baseline())
    judge.begin_shadow()
    for one in traffic.requests(0, 400):
        judge.add(one)
    judge.begin_step(10)
    for one in traffic.requests(10, 2_000):
        judge.add(one)
    judge.begin_step(50)
    adding, looking = [], []
    for _ in range(20):
        seen = traffic.requests(50, 500)
        began = time.process_time()
        for one in seen:
            judge.add(one)
        added = time.process_time()
        for _ in range(50):
            judge.verdict(1.0, 150.0)
        adding.append((added - began) / len(seen))
        looking.append((time.process_time() - added) / 50)
    per_request, per_look = statistics.median(adding) * 1e6, statistics.median(looking) * 1e6
    share = (20 * per_request + 2 * per_look) / 1e6
    print(
        f"a request taken in: {per_request:.0f} µs CPU (two processes of harm and the proof); a look: {per_look:.0f} µs"
    )
    print(f"at 20 requests and two looks a second: {share:.2%} of one core; {1e6 / per_request:,.0f} requests/s a core")


if __name__ == "__main__":
    main()
