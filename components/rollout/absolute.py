"""After the last switch: nothing is left to compare with, so absolute limits hold, however often one looks.

The null of each test is "the rate is within its limit". This is another promise than the comparison's (a candidate that
is no worse than a stable that was itself beyond its limits fails here), and it has an error probability of its own.
"""

from __future__ import annotations

from components.core.recipe import Rollout
from components.core.records import RuleResult
from components.rollout.evalues import RateLimit, rate_interval, weighted_mean
from components.rollout.observations import Observation
from components.rollout.slo import LATE_SHARE
from components.rollout.table import CONTINUE, FAIL, INCONCLUSIVE, PASS, Verdict

ALPHA = 0.01  # probability that a version within all limits is taken back, over the whole watch
SHARES = {"errors": 0.5, "invalid": 0.25, "latency_p95": 0.25}
LEAST_BAD = 3


class Absolute:
    """Watches a version that has all traffic: failed, invalid and late answers against the recipe's limits."""

    def __init__(self, rollout: Rollout, digest: str = "") -> None:
        """Reads slo_error_rate, slo_p95_ms and slo_requests; `digest` of the version stands in each verdict."""
        self._rollout, self._digest = rollout, digest
        errors = min(max(rollout.slo_error_rate, 1e-4), 0.5)
        self._limits = {"errors": errors, "invalid": errors, "latency_p95": LATE_SHARE}
        self._tests = {name: RateLimit("above", limit) for name, limit in self._limits.items()}
        self._bad = dict.fromkeys(SHARES, 0)
        self._requests, self._surprise = 0, ""

    def add(self, seen: Observation) -> None:
        """Add one request; one that its user got no answer to counts as failed whoever was asked."""
        self._requests += 1
        self._surprise = self._surprise or seen.surprise
        late = not seen.own.seconds * 1000 <= self._rollout.slo_p95_ms
        happened = {
            "errors": seen.own.failed or seen.user_failed,
            "invalid": seen.own.invalid,
            "latency_p95": late,
        }
        for name, bad in happened.items():
            self._bad[name] += bad
            self._tests[name].update(bad)

    def verdict(self, elapsed_seconds: float, hold_seconds: float) -> Verdict:
        """Fail as soon as a limit is shown to be broken; at the end of the watch pass, or say that nothing was seen."""
        outcome, rule, why = self._decide(elapsed_seconds, hold_seconds)
        ends = {FAIL: "the old version takes over", PASS: "it stays", INCONCLUSIVE: "not proven bad, not proven well"}
        parts = [f"{outcome.upper()}, full, {rule}: {why}", f"{elapsed_seconds:.1f} of {hold_seconds:.0f} s"]
        parts += [f"α {ALPHA:g} for the watch at any number of looks", ends.get(outcome, "going on")]
        parts += [f"candidate {self._digest[:12]}"] if self._digest else []
        return Verdict(outcome, rule, "; ".join(parts), () if outcome == CONTINUE else self._rules(outcome, rule), why)

    def _decide(self, elapsed: float, hold: float) -> tuple[str, str, str]:
        if self._surprise:
            return FAIL, "version", self._surprise
        values = {name: self._value(name) for name in SHARES}
        total = weighted_mean((SHARES[name], value) for name, value in values.items())
        if total >= 1 / ALPHA:
            worst = max(values, key=lambda name: SHARES[name] * values[name])
            return FAIL, worst, f"{self._text(worst)}, evidence {total:.3g} ≥ {1 / ALPHA:.3g}"
        if elapsed < hold:
            return CONTINUE, "limits", self._text("errors")
        if self._requests < self._rollout.slo_requests:
            return INCONCLUSIVE, "samples", f"{self._requests} of {self._rollout.slo_requests} requests"
        return PASS, "limits", "; ".join(self._text(name) for name in SHARES)

    def _value(self, name: str) -> float:
        value = self._tests[name].value
        return min(value, 1.0) if self._bad[name] < LEAST_BAD else value

    def _text(self, name: str) -> str:
        count, total = self._bad[name], self._requests
        low, high = rate_interval(count, total)
        what = {"errors": "failed", "invalid": "invalid", "latency_p95": f"over {self._rollout.slo_p95_ms:g} ms"}[name]
        return f"{count}/{total} {what} ({low * 100:.1f} to {high * 100:.1f} %), limit {self._limits[name]:.1%}"

    def _rules(self, outcome: str, rule: str) -> tuple[RuleResult, ...]:
        table = [
            self._rule(
                name, "fail" if outcome == FAIL and rule == name else "pass" if self._requests else "insufficient"
            )
            for name in SHARES
        ]
        if rule not in SHARES and outcome != PASS:
            kind = "fail" if outcome == FAIL else "insufficient"
            reason = self._surprise or f"{self._requests} of {self._rollout.slo_requests} requests"
            table.append(RuleResult(rule=rule, outcome=kind, observed=None, limit=None, subject="full", reason=reason))
        return tuple(table)

    def _rule(self, name: str, outcome: str) -> RuleResult:
        rate = self._bad[name] / self._requests if self._requests else None
        shown = None if rate is None else round(rate, 6)
        limit, reason = self._limits[name], self._text(name)
        return RuleResult(rule=name, outcome=outcome, observed=shown, limit=limit, subject="full", reason=reason)
