"""Prometheus metrics of the scoring service."""

from __future__ import annotations

from functools import partial

from components.serving.deciding import Decider, Outcome
from components.serving.decision_log import DecisionLog


class ServiceMeters:
    """Prometheus metrics of the service."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        add = partial(Counter, registry=self._registry)
        self._decisions = add("pilotline_decisions", "Decisions.", ("drawn", "answered_by", "status", "version"))
        self._failures = add("pilotline_arm_failures", "What the drawn arm failed with.", ("drawn", "failure"))
        self._problems = add("pilotline_http_problems", "Requests answered with an error, by status.", ("status",))
        self._reviews = add("pilotline_reviews", "Decisions marked for a person.", ("version",))
        self._seconds = Histogram(
            "pilotline_decision_seconds", "Time in the service.", ("drawn", "version"), registry=self._registry,
            buckets=(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10),
        )  # fmt: skip
        self._weight = Gauge("pilotline_canary_weight", "Probability of a canary draw.", registry=self._registry)
        self._waiting = Gauge("pilotline_decision_log_waiting", "Records not yet written.", registry=self._registry)

    def count(self, outcome: Outcome) -> None:
        """Count a decision."""
        version = outcome.arm.version if outcome.arm else ""
        self._decisions.labels(outcome.drawn, outcome.answered_by, outcome.status, version).inc()
        self._seconds.labels(outcome.drawn, version).observe(outcome.seconds)
        if outcome.review:
            self._reviews.labels(version).inc()
        if outcome.failure:
            self._failures.labels(outcome.drawn, outcome.failure).inc()

    def problem(self, status: int) -> None:
        """Count an answer that is an error."""
        self._problems.labels(str(status)).inc()

    def text(self, decider: Decider, log: DecisionLog) -> bytes:
        """The exposition."""
        from prometheus_client import generate_latest

        self._weight.set(decider.in_force.state.drawn_weight)
        self._waiting.set(log.waiting)
        return generate_latest(self._registry)
