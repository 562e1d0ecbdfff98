"""Rules about groups of rows: how much worse one is served than the others. Only what the policy names decides."""

from __future__ import annotations

from collections.abc import Iterator

from components.core.recipe import Gate
from components.core.records import Evidence, RuleResult
from components.registry.gate_rules.reading import SHARE, insufficient, limited, measured, only_told, sampled

REST = ":others"  # the slice of a group's complement
WORDS = {
    "selection_rate_difference": "difference of selection rates",
    "recall_difference": "difference of true positive rates",
    "fpr_difference": "difference of false positive rates",
    "equalized_odds_difference": "larger difference of true and false positive rates",
    "auc_difference": "difference of AUC",
    "ece_difference": "difference of calibration errors",
}


def groups(evidence: Evidence, gate: Gate) -> Iterator[RuleResult]:
    """Every rule of this file: the AUC gap of each group, and each limited difference of each group or column.

    A group that the policy does not name shows as info. One that is too small is insufficient, never fair: that blocks
    where the policy names it.
    """
    pairs = [name for name in evidence.slices if f"{name}{REST}" in evidence.slices]
    for name in sorted({*pairs, *(name for name in gate.blocking_groups if name not in evidence.fairness)}):
        result = _gap(evidence, gate, name)
        yield result if _blocks(gate, name) and gate.max_group_auc_gap is not None else only_told(result)
    for name in sorted({*evidence.fairness, *gate.blocking_groups}):
        for measure, limit in sorted(gate.max_differences.items()):
            result = _difference(evidence, gate, name, measure, limit)
            yield result if _blocks(gate, name) else only_told(result)


def _blocks(gate: Gate, name: str) -> bool:
    return name in gate.blocking_groups


def _gap(evidence: Evidence, gate: Gate, name: str) -> RuleResult:
    """By how much a group's AUC lies below that of all other rows."""
    limit = gate.max_group_auc_gap
    group, rest = (evidence.slices.get(key, {}).get("auc") for key in (name, f"{name}{REST}"))
    few = min(part.positives if part is not None else 0 for part in (group, rest))
    if group is None or rest is None or few < gate.min_group_positives:
        reason = f"{few} positives, {gate.min_group_positives} asked inside and outside of the group"
        return insufficient("group_gap", reason, limit=limit, subject=name)
    own, others = measured(group, "auc", group.n), measured(rest, "auc", rest.n)
    seen = None if own is None or others is None else others - own
    what = "AUC outside of the group less AUC inside"
    return limited("group_gap", seen, limit, at_least=False, what=what, subject=name)


def _difference(evidence: Evidence, gate: Gate, name: str, measure: str, limit: float) -> RuleResult:
    """The largest less the smallest value of a measure over the slices of a group or a column."""
    subject = f"{name}: {measure.removesuffix('_difference').replace('_', ' ')}"
    found = evidence.fairness.get(name)
    if found is None or found.state != "measured" or len(found.compared) < 2:
        reason = found.reason if found is not None and found.reason else "was not measured"
        return insufficient("fairness", f"{name}: {reason}", limit=limit, subject=subject)
    few = min(_positives(evidence, part) for part in found.compared)
    if few < gate.min_group_positives:
        reason = f"{few} positives in the smallest slice, {gate.min_group_positives} asked"
        return insufficient("fairness", reason, limit=limit, subject=subject)
    seen = sampled(found.differences.get(measure), SHARE)
    return limited("fairness", seen, limit, at_least=False, what=f"{name}: {WORDS[measure]}", subject=subject)


def _positives(evidence: Evidence, part: str) -> int:
    """The fewest positives that any measure of a slice rests on; 0 where nothing is known of it."""
    return min((interval.positives for interval in evidence.slices.get(part, {}).values()), default=0)
