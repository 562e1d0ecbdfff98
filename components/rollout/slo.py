"""The first version's check: with nothing to compare with, absolute limits on replayed requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from components.core.errors import UserError
from components.core.recipe import Rollout
from components.core.records import RuleResult
from components.rollout.observations import Observation

LATE_SHARE = 0.05  # p95 at most L means: at most this share of requests above L
FEWEST = math.ceil(math.log(0.05) / math.log(1 - LATE_SHARE))  # 59 requests, none late, show it with 95 %


def check_slo_settings(rollout: Rollout) -> None:
    """UserError where too few requests are asked for to show anything about p95."""
    if rollout.slo_requests < FEWEST:
        raise UserError(f"recipe: rollout.slo_requests is {rollout.slo_requests}; p95 takes at least {FEWEST}")


def slo_rules(seen: Sequence[Observation], rollout: Rollout) -> tuple[RuleResult, ...]:
    """Error rate, invalid answers and p95 of a version that serves alone.

    The error rate has to be within its limit as observed; its one-sided 95 % bound is stated beside it (150 requests
    without an error show a rate below 2 %). p95 is shown: the share of late requests is below 5 % with 95 %
    confidence, above it is a fail, and between is insufficient. Wrong versions and invalid answers may not happen.
    """
    total = len(seen)
    failed, invalid = sum(one.own.failed or one.user_failed for one in seen), sum(one.own.invalid for one in seen)
    late = sum(not one.own.seconds * 1000 <= rollout.slo_p95_ms for one in seen)
    surprises = sorted({one.surprise for one in seen if one.surprise})
    rate, bound = (failed / total, upper_bound(failed, total)) if total else (None, 1.0)
    slow = f"{late} of {total} took longer"
    errors = f"{failed} of {total} requests failed; rate below {bound:.1%} (95 %)"
    enough = total >= rollout.slo_requests
    return (
        _rule("samples", "pass" if enough else "insufficient", total, rollout.slo_requests, "requests answered or not"),
        _rule("version", "fail" if surprises else _some(total), len(surprises), 0, "; ".join(surprises)),
        _rule("errors", _within(rate, rollout.slo_error_rate), rate, rollout.slo_error_rate, errors),
        _rule("invalid", "fail" if invalid else _some(total), invalid, 0, f"{invalid} of {total} answers invalid"),
        _rule("latency_p95", _latency(late, total), _p95_ms(seen), rollout.slo_p95_ms, slow),
    )


def upper_bound(count: int, total: int, alpha: float = 0.05) -> float:
    """Exact (Clopper and Pearson 1934) one-sided upper bound of a rate; 1 where nothing was seen."""
    if count >= total:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if _at_most(count, total, rate) > alpha else (low, rate)
    return high


def _at_most(count: int, total: int, rate: float) -> float:
    """P(X <= count) for a binomial X."""
    if rate <= 0 or rate >= 1:
        return 1.0 if rate <= 0 else float(count >= total)
    return sum(math.comb(total, k) * rate**k * (1 - rate) ** (total - k) for k in range(count + 1))


def _latency(late: int, total: int) -> str:
    if total and upper_bound(late, total) <= LATE_SHARE:
        return "pass"
    lower = 1 - upper_bound(total - late, total) if total else 0.0
    return "fail" if lower > LATE_SHARE else "insufficient"


def _within(rate: float | None, limit: float) -> str:
    return "insufficient" if rate is None else "pass" if rate <= limit else "fail"


def _some(total: int) -> str:
    return "pass" if total else "insufficient"


def _p95_ms(seen: Sequence[Observation]) -> float | None:
    ordered = sorted(one.own.seconds for one in seen)
    value = ordered[math.ceil(0.95 * len(ordered)) - 1] * 1000 if ordered else math.inf
    return round(value, 3) if math.isfinite(value) else None


def _rule(name: str, outcome: str, observed: float | None, limit: float, reason: str) -> RuleResult:
    return RuleResult(rule=name, outcome=outcome, observed=observed, limit=limit, subject="slo", reason=reason)
