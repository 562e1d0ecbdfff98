"""Times of a planned replica at a few concurrencies, and the replicas that a rate of requests asks for."""

from __future__ import annotations

from components.planner.autoscale import Load, Scaling, scaling
from components.planner.serving_request import ServingRequest
from components.planner.serving_speed import Replica, SpeedEstimate, speed


def speeds(request: ServingRequest, split: Replica, tokens: int, most: int) -> tuple[SpeedEstimate, ...]:
    """Times alone, at the asked concurrency, and at the most that the cache holds of the usual request."""
    usual = request.prompt_tokens + request.output_tokens
    full = int(min(tokens / usual, most))
    counts = sorted({1, min(max(request.concurrency, 1), max(full, 1)), max(full, 1)})
    return tuple(speed(split, count, request.prompt_tokens, request.output_tokens) for count in counts)


def suggest(request: ServingRequest, split: Replica, found: tuple[SpeedEstimate, ...], replicas: int) -> Scaling | None:
    """Replicas for the asked rate, at the largest concurrency whose tokens come as fast as asked."""
    if request.requests_per_s is None:
        return None
    slots = found[-1].concurrency
    estimate = found[-1]
    while request.itl_ms and slots > 1 and (estimate.itl_ms or 0.0) > request.itl_ms:
        slots = max(1, slots // 2)
        estimate = speed(split, slots, request.prompt_tokens, request.output_tokens)
    if estimate.request_ms is None:
        return None
    load = Load(
        requests_per_s=request.requests_per_s,
        peak_requests_per_s=request.peak_requests_per_s or 2 * request.requests_per_s,
        wait_ms=request.wait_ms,
    )
    return scaling(load, estimate.request_ms / 1000, slots, replicas)
