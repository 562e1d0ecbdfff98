"""Rules about how well the model scores: complete evidence, floors and ceilings, baselines, the champion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist

from components.core.recipe import Gate
from components.core.records import Evidence, Interval, RuleResult
from components.registry.gate_rules.reading import (
    INFO,
    INSUFFICIENT,
    MEASURED,
    PASS,
    SHARE,
    insufficient,
    limited,
    measured,
    sampled,
    was_measured,
    within,
)

NORMAL = NormalDist()
COVERAGE = NORMAL.inv_cdf(0.975)  # an interval's end lies so many standard errors from its middle
POWER = NORMAL.inv_cdf(0.8)


def quality(evidence: Evidence, gate: Gate, champion_version: str) -> Iterator[RuleResult]:
    """Every rule of this file."""
    yield _complete(evidence)
    yield _enough_positives(evidence, gate)
    yield _floor("min_auc", "auc", evidence, gate.min_auc, "AUC")
    yield _ceiling("max_ece", "ece", evidence, gate.max_ece, "calibration error")
    for above, limit in sorted(gate.floors.items()):
        yield _floor("floor", above, evidence, limit, above.replace("_", " "), above)
    for below, limit in sorted(gate.ceilings.items()):
        yield _ceiling("ceiling", below, evidence, limit, below.replace("_", " "), below)
    yield from _baselines(evidence, gate)
    yield _champion(evidence, gate, champion_version)
    yield from _power(evidence, gate, champion_version)


def _complete(evidence: Evidence) -> RuleResult:
    """Every metric was measured on all rows and there are rows of both labels."""
    broken = [name for name in MEASURED if measured(evidence.metrics.get(name), name, evidence.rows) is None]
    reason = f"{broken[0]} was not measured on all test rows" if broken else ""
    if not was_measured(evidence, "metrics"):
        reason = f"the evaluation says of its metrics: {evidence.parts.get('metrics', 'nothing')}"
    if not 0 < evidence.positives < evidence.rows:
        reason = f"test rows hold one label only ({evidence.positives} positives of {evidence.rows})"
    outcome = INSUFFICIENT if reason else PASS
    return RuleResult(
        rule="evidence", outcome=outcome, observed=len(MEASURED) - len(broken), limit=len(MEASURED), reason=reason
    )


def _enough_positives(evidence: Evidence, gate: Gate) -> RuleResult:
    seen, asked = evidence.positives, gate.min_test_positives
    if seen >= asked:
        return RuleResult(rule="min_test_positives", outcome=PASS, observed=seen, limit=asked)
    reason = f"{seen} positive test rows, {asked} asked"
    return insufficient("min_test_positives", reason, observed=seen, limit=asked)


def _floor(rule: str, metric: str, evidence: Evidence, limit: float | None, what: str, subject: str = "") -> RuleResult:
    return limited(rule, _seen(metric, evidence), limit, at_least=True, what=what, subject=subject)


def _ceiling(
    rule: str, metric: str, evidence: Evidence, limit: float | None, what: str, subject: str = ""
) -> RuleResult:
    return limited(rule, _seen(metric, evidence), limit, at_least=False, what=what, subject=subject)


def _seen(metric: str, evidence: Evidence) -> float | None:
    """A metric of scores on all rows, or one of answers at the operating point, where fewer rows can count."""
    if metric in MEASURED:
        return measured(evidence.metrics.get(metric), metric, evidence.rows)
    answered = evidence.operating.get(metric)
    return sampled(answered, SHARE) if answered is not None and answered.n <= evidence.rows else None


def _baselines(evidence: Evidence, gate: Gate) -> Iterator[RuleResult]:
    """Not below a baseline by more than its margin; a negative margin asks for more than the baseline has."""
    for asked in gate.baselines:
        own = measured(evidence.metrics.get(asked.metric), asked.metric, evidence.rows)
        known = evidence.baselines.get(asked.baseline, {}).get(asked.metric)
        theirs = measured(known, asked.metric, evidence.rows)
        seen = None if own is None or theirs is None else own - theirs
        what = f"{'AUC' if asked.metric == 'auc' else asked.metric.replace('_', ' ')} less the baseline's"
        yield limited("baseline", seen, -asked.margin, at_least=True, what=what, subject=asked.baseline)


def _champion(evidence: Evidence, gate: Gate, champion_version: str) -> RuleResult:
    """The lower end of the paired AUC difference lies above -margin."""
    subject = f"version {champion_version}" if champion_version else ""
    if evidence.champion_version != champion_version:
        judged, now = evidence.champion_version or "none", champion_version or "none"
        return insufficient("champion", f"judged against champion {judged}, now it is {now}", subject=subject)
    if not champion_version:
        return RuleResult(rule="champion", outcome=INFO, observed=None, limit=None, reason="there is no champion yet")
    ends = _ends(evidence) if was_measured(evidence, "champion") else None
    limit = None if gate.champion_margin is None else -gate.champion_margin
    what = "lower end of the AUC difference"
    return limited("champion", ends[0] if ends else None, limit, at_least=True, what=what, subject=subject, strict=True)


def _power(evidence: Evidence, gate: Gate, champion_version: str) -> Iterator[RuleResult]:
    """What a comparison of this size could have told.

    The rule above is a non-inferiority test at one-sided level 2.5 %. With standard error s of the paired difference
    (the interval's width / 2z, z = 1.96), a candidate that is exactly as good as the champion passes with probability
    Phi(margin / s - z): the power. The same number is the probability that a candidate which is worse by the margin
    shows as worse (its interval lies below 0). With 80 % it is reached at the detectable difference (z + 0.84) s.
    Julious, Sample sizes for clinical trials with normal data, Statistics in Medicine 23 (2004), 1921-1986, section 5.
    """
    ends = _ends(evidence)
    if not champion_version or gate.champion_margin is None or ends is None:
        return
    error = (ends[1] - ends[0]) / (2 * COVERAGE)
    power = NORMAL.cdf(gate.champion_margin / error - COVERAGE) if error > 0 else float(gate.champion_margin > 0)
    detectable = (COVERAGE + POWER) * error
    told = (
        f"on {evidence.rows} rows with {evidence.positives} positives an equal model passes with probability "
        f"{power:.2f}; a difference of {detectable:.3f} is found with probability 0.80"
    )
    result = limited("champion_power", power, gate.min_champion_power, at_least=True, what="power")
    yield replace(result, reason=told) if result.outcome in (PASS, INFO) else result


def _ends(evidence: Evidence) -> tuple[float, float] | None:
    """The interval of the paired difference, where it was measured on these rows and holds its own value."""
    difference = evidence.champion.get("auc_difference")
    if difference is None or difference.n != evidence.rows or evidence.rows <= 0:
        return None
    return _ordered(difference)


def _ordered(difference: Interval) -> tuple[float, float] | None:
    value, low, high = (within(end, (-1.0, 1.0)) for end in (difference.value, difference.low, difference.high))
    return (low, high) if value is not None and low is not None and high is not None and low <= value <= high else None
