"""The gate: a pure function from evidence and policy to a table of rules.

No evidence never passes: what is missing, not a finite number, out of range or too little is `insufficient`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from components.core.recipe import Gate
from components.core.records import Evidence, Interval, RuleResult

PASS, FAIL, INSUFFICIENT, INFO = "pass", "fail", "insufficient", "info"
MEASURED = {  # what every evidence has to hold, with the range that a value can lie in
    "auc": (0.0, 1.0),
    "average_precision": (0.0, 1.0),
    "log_loss": (0.0, math.inf),
    "brier": (0.0, 1.0),
    "ece": (0.0, 1.0),
}
REST = ":others"  # the slice of a group's complement


def judge(evidence: Evidence, gate: Gate, *, champion_version: str, signature: bool) -> tuple[RuleResult, ...]:
    """Every rule of the gate, also those that pass.

    Args:
        evidence: what the test rows say.
        gate: the policy; None switches a rule off, which shows as `info`.
        champion_version: the champion now, "" where there is none; the evidence has to be about this one.
        signature: whether the model directory carries its signature.
    """
    return (
        _signature(signature),
        _complete(evidence),
        _enough_positives(evidence, gate),
        _floor(evidence, gate),
        _calibrated(evidence, gate),
        *_baselines(evidence, gate),
        _champion(evidence, gate, champion_version),
        *_groups(evidence, gate),
    )


def passed(rules: Sequence[RuleResult]) -> bool:
    """True where there are rules, at least one passes, and every other one passes or is info."""
    outcomes = {rule.outcome for rule in rules}
    return PASS in outcomes and outcomes <= {PASS, INFO}


def refusal(rules: Sequence[RuleResult]) -> str:
    """Why the gate does not pass, in one line; empty where it passes."""
    if passed(rules):
        return ""
    said = [f"{rule.rule}{f' {rule.subject}' if rule.subject else ''}: {rule.reason}" for rule in rules]
    stopped = [text for text, rule in zip(said, rules, strict=True) if rule.outcome not in (PASS, INFO)]
    return "; ".join(stopped) or "no rule was judged"


def _signature(present: bool) -> RuleResult:
    if present:
        return RuleResult(rule="signature", outcome=PASS, observed="present", limit="present")
    return RuleResult(
        rule="signature", outcome=INSUFFICIENT, observed=None, limit="present", reason="the model has no signature"
    )


def _complete(evidence: Evidence) -> RuleResult:
    """Every metric was measured on all rows and there are rows of both labels."""
    broken = [name for name in MEASURED if _value(evidence.metrics.get(name), name, evidence.rows) is None]
    reason = f"{broken[0]} was not measured on all test rows" if broken else ""
    if not 0 < evidence.positives < evidence.rows:
        reason = f"test rows hold one label only ({evidence.positives} positives of {evidence.rows})"
    outcome = INSUFFICIENT if reason else PASS
    return RuleResult(
        rule="evidence", outcome=outcome, observed=len(MEASURED) - len(broken), limit=len(MEASURED), reason=reason
    )


def _enough_positives(evidence: Evidence, gate: Gate) -> RuleResult:
    seen, asked = evidence.positives, gate.min_test_positives
    enough = seen >= asked
    return RuleResult(
        rule="min_test_positives",
        outcome=PASS if enough else INSUFFICIENT,
        observed=seen,
        limit=asked,
        reason="" if enough else f"{seen} positive test rows, {asked} asked",
    )


def _floor(evidence: Evidence, gate: Gate) -> RuleResult:
    seen = _value(evidence.metrics.get("auc"), "auc", evidence.rows)
    return _limit("min_auc", seen, gate.min_auc, at_least=True, what="AUC")


def _calibrated(evidence: Evidence, gate: Gate) -> RuleResult:
    seen = _value(evidence.metrics.get("ece"), "ece", evidence.rows)
    return _limit("max_ece", seen, gate.max_ece, at_least=False, what="calibration error")


def _baselines(evidence: Evidence, gate: Gate) -> Iterator[RuleResult]:
    own = _value(evidence.metrics.get("auc"), "auc", evidence.rows)
    for margin in gate.baselines:
        theirs = _value(evidence.baselines.get(margin.baseline, {}).get("auc"), "auc", evidence.rows)
        seen = None if own is None or theirs is None else own - theirs
        what = "AUC less the baseline's"
        yield _limit("baseline", seen, -margin.margin, at_least=True, what=what, subject=margin.baseline)


def _champion(evidence: Evidence, gate: Gate, champion_version: str) -> RuleResult:
    """The lower end of the paired AUC difference lies above -margin."""
    subject = f"version {champion_version}" if champion_version else ""
    if evidence.champion_version != champion_version:
        reason = (
            f"judged against champion {evidence.champion_version or 'none'}, now it is {champion_version or 'none'}"
        )
        return RuleResult(
            rule="champion", outcome=INSUFFICIENT, observed=None, limit=None, subject=subject, reason=reason
        )
    if not champion_version:
        return RuleResult(rule="champion", outcome=INFO, observed=None, limit=None, reason="there is no champion yet")
    difference = evidence.champion.get("auc_difference")
    seen = None
    if difference is not None and difference.n == evidence.rows and _in(difference.value, (-1.0, 1.0)):
        seen = difference.low if _in(difference.low, (-1.0, difference.value or 0.0)) else None
    limit = None if gate.champion_margin is None else -gate.champion_margin
    what = "lower end of the AUC difference"
    return _limit("champion", seen, limit, at_least=True, what=what, subject=subject, strict=True)


def _groups(evidence: Evidence, gate: Gate) -> Iterator[RuleResult]:
    """By how much a group's AUC lies below that of all other rows; only blocking groups decide."""
    names = [name for name in evidence.slices if not name.endswith(REST)]
    for name in sorted({*names, *gate.blocking_groups}):
        blocking = name in gate.blocking_groups and gate.max_group_auc_gap is not None
        result = _gap(evidence, gate, name)
        yield result if blocking else RuleResult(**(result.__dict__ | {"outcome": INFO}))


def _gap(evidence: Evidence, gate: Gate, name: str) -> RuleResult:
    group, rest = (evidence.slices.get(key, {}).get("auc") for key in (name, f"{name}{REST}"))
    few = min(part.positives if part is not None else 0 for part in (group, rest))
    if group is None or rest is None or few < gate.min_group_positives:
        return RuleResult(
            rule="group_gap",
            outcome=INSUFFICIENT,
            observed=None,
            limit=gate.max_group_auc_gap,
            subject=name,
            reason=f"{few} positives, {gate.min_group_positives} asked inside and outside of the group",
        )
    own, others = _value(group, "auc", group.n), _value(rest, "auc", rest.n)
    seen = None if own is None or others is None else others - own
    what = "AUC outside of the group less AUC inside"
    return _limit("group_gap", seen, gate.max_group_auc_gap, at_least=False, what=what, subject=name)


def _limit(
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
    if limit is None:
        outcome, reason = INFO, "switched off"
    elif seen is None:
        outcome, reason = INSUFFICIENT, f"{what} is not known"
    else:
        inside = seen > limit if strict else seen >= limit if at_least else seen <= limit
        relation = ("not above" if strict else "below") if at_least else "above"
        outcome, reason = (PASS, "") if inside else (FAIL, f"{what} is {seen:.3f}, {relation} {limit:.3f}")
    return RuleResult(rule=rule, outcome=outcome, observed=seen, limit=limit, subject=subject, reason=reason)


def _value(interval: Interval | None, metric: str, rows: int) -> float | None:
    """The value where it is a finite number in the metric's range and was measured on these rows."""
    if interval is None or rows <= 0 or interval.n != rows:
        return None
    return interval.value if _in(interval.value, MEASURED[metric]) else None


def _in(value: float | None, span: tuple[float, float]) -> bool:
    return value is not None and math.isfinite(value) and span[0] <= value <= span[1]
