"""How every rule reads evidence: a value counts where it is a finite number of its range, else it is not known."""

from __future__ import annotations

import math
from dataclasses import replace

from components.core.records import Evidence, Interval, RuleResult

PASS, FAIL, INSUFFICIENT, INFO = "pass", "fail", "insufficient", "info"
SHARE = (0.0, 1.0)
FEWEST_SAMPLED = 20  # rows that a sample of its own has to hold to say anything
MEASURED = {  # what every evidence has to hold, with the range that a value can lie in
    "auc": SHARE,
    "average_precision": SHARE,
    "log_loss": (0.0, math.inf),
    "brier": SHARE,
    "ece": SHARE,
}


def limited(
    rule: str,
    seen: float | None,
    limit: float | None,
    *,
    at_least: bool,
    what: str,
    subject: str = "",
    strict: bool = False,
) -> RuleResult:
    """Compare an observed value with a limit; without a limit it is info, without a value it is insufficient."""
    known = within(seen, (-math.inf, math.inf))
    if limit is None:
        outcome, reason = INFO, "switched off"
    elif known is None or not math.isfinite(limit):
        outcome, reason = INSUFFICIENT, f"{what} is not known"
    else:
        inside = known > limit if strict else known >= limit if at_least else known <= limit
        relation = ("not above" if strict else "below") if at_least else "above"
        outcome, reason = (PASS, "") if inside else (FAIL, f"{what} is {known:.3f}, {relation} {limit:.3f}")
    return RuleResult(rule=rule, outcome=outcome, observed=known, limit=limit, subject=subject, reason=reason)


def insufficient(
    rule: str, reason: str, *, limit: float | str | None = None, observed: float | str | None = None, subject: str = ""
) -> RuleResult:
    """What cannot be told, and therefore does not pass."""
    return RuleResult(rule=rule, outcome=INSUFFICIENT, observed=observed, limit=limit, subject=subject, reason=reason)


def only_told(result: RuleResult) -> RuleResult:
    """The same row as information; a reason says that it would not have passed."""
    if result.outcome in (PASS, INFO):
        return replace(result, outcome=INFO)
    return replace(result, outcome=INFO, reason=f"not blocking; {result.outcome}: {result.reason}")


def measured(interval: Interval | None, metric: str, rows: int) -> float | None:
    """The value where it is a finite number in the metric's range and was measured on these rows."""
    if interval is None or rows <= 0 or interval.n != rows:
        return None
    return within(interval.value, MEASURED.get(metric, SHARE))


def sampled(interval: Interval | None, span: tuple[float, float]) -> float | None:
    """The value of something that was looked at on a sample of its own, in a range; None where that is too small."""
    return within(interval.value, span) if interval is not None and interval.n >= FEWEST_SAMPLED else None


def within(value: object, span: tuple[float, float]) -> float | None:
    """The value where it is a finite number in a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and span[0] <= value <= span[1] else None


def was_measured(evidence: Evidence, part: str) -> bool:
    """Whether the evaluation says that it measured a part; a record without such a list says nothing against it."""
    return not evidence.parts or evidence.parts.get(part) == "measured"
