"""How many replicas for a rate of requests: Erlang's waiting formula over the sequences that replicas serve at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from components.core.errors import UserError
from components.core.records import Record

MOST_SERVERS = 100_000
BUSY = 0.8  # share of the slots that are busy on average at most: the rest takes bursts and a replica's start


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests a second on average and at the peak, and the waiting time that 95 % may not exceed, milliseconds."""

    requests_per_s: float
    peak_requests_per_s: float
    wait_ms: float = 100.0


@dataclass(frozen=True, kw_only=True)
class Scaling(Record):
    """What to give an autoscaler. `queue_per_replica`: requests that wait at which one more replica is asked for."""

    min_replicas: int
    max_replicas: int
    target_concurrency: int
    queue_per_replica: int
    replica_requests_per_s: float
    busy_share: float
    wait_p95_ms: float
    reasons: tuple[str, ...]
    enough: bool = True


def scaling(load: Load, request_seconds: float, slots: int, most: int | None = None) -> Scaling:
    """Replicas for a load, each serving `slots` requests at once that take `request_seconds` at that concurrency.

    M/M/c with c = replicas x slots: P(wait > t) = C(c, a) exp(-(c - a) t / s) for offered load a = rate x s (A. K.
    Erlang, 1917; W. Whitt, Understanding the efficiency of multi-server service systems, 1992). The fewest replicas
    are taken at which 95 % wait no longer than asked and at most 80 % of the slots are busy. Where there can be only
    `most` replicas, the peak takes those; `enough` is False where they are too few for the average.

    Raises:
        UserError: impossible numbers.
    """
    if not (0 < load.requests_per_s <= load.peak_requests_per_s and request_seconds > 0 and slots > 0):
        raise UserError("requests a second, their peak, seconds a request and slots a replica have to be above 0")
    low = _fewest(load.requests_per_s, request_seconds, slots, load.wait_ms / 1000)
    high = _fewest(load.peak_requests_per_s, request_seconds, slots, load.wait_ms / 1000)
    enough = most is None or low <= most
    served = BUSY * (most or low) * slots / request_seconds
    short = f"the peak needs {high} replicas, {most} fit; they serve {served:.1f} requests/s"
    offered = load.requests_per_s * request_seconds
    wait = 1000 * wait_quantile(low * slots, offered, request_seconds)
    return Scaling(
        min_replicas=low,
        max_replicas=high if most is None else max(low, min(high, most)),
        target_concurrency=max(1, math.floor(BUSY * slots)),
        queue_per_replica=max(1, math.ceil(load.wait_ms / 1000 * slots / request_seconds)),
        replica_requests_per_s=BUSY * slots / request_seconds,
        busy_share=offered / (low * slots),
        wait_p95_ms=wait,
        reasons=(
            f"a request takes {request_seconds:.2f} s at {slots} at once: {offered:.1f} are in service on average",
            f"{low} x {slots} slots are {offered / (low * slots):.0%} busy; 95 % wait at most {wait:.0f} ms (M/M/c)",
            *([short] if most is not None and high > most else []),
        ),
        enough=enough,
    )


def wait_quantile(servers: int, offered: float, service_seconds: float, share: float = 0.95) -> float:
    """The waiting time that `share` of requests do not exceed; infinite where the load is more than the servers."""
    if offered >= servers:
        return math.inf
    waiting = erlang_c(servers, offered)
    if waiting <= 1 - share:
        return 0.0
    return math.log(waiting / (1 - share)) * service_seconds / (servers - offered)


def erlang_c(servers: int, offered: float) -> float:
    """Probability of having to wait, by the recursion of Erlang's loss formula."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def _fewest(rate: float, seconds: float, slots: int, wait: float) -> int:
    offered = rate * seconds
    replicas = max(1, math.ceil(offered / (BUSY * slots)))
    if replicas * slots > MOST_SERVERS:
        raise UserError(
            f"{rate:g} requests/s of {seconds:.1f} s are more than this plan is made for; split the traffic"
        )
    while wait_quantile(replicas * slots, offered, seconds) > wait:
        replicas += 1
    return replicas
