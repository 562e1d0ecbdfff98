"""Rules about groups of rows: how differently one is served from the others. Only what the policy names decides."""

from __future__ import annotations

from collections.abc import Iterator

from components.core.recipe import Gate
from components.core.records import Evidence, RuleResult
from components.registry.gate_rules.reading import SHARE, insufficient, limited, only_told, sampled

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

    The policy names a group, "A & B", a column, or one value of a column ("COLUMN=VALUE"). What it does not name shows
    as info. A slice that is too small is insufficient, never fair: that blocks where the policy names it, its group or
    its column.
    """
    pairs = [name for name in evidence.slices if f"{name}{REST}" in evidence.slices]
    for name in sorted({*pairs, *gate.blocking_groups}):
        result = _gap(evidence, gate, name)
        yield result if _blocks(gate, name) and gate.max_group_auc_gap is not None else only_told(result)
    for name in sorted({*evidence.fairness, *gate.blocking_groups}):
        for measure, limit in sorted(gate.max_differences.items()):
            result = _difference(evidence, gate, name, measure, limit)
            yield result if _blocks(gate, name) else only_told(result)


def _blocks(gate: Gate, name: str) -> bool:
    return name in gate.blocking_groups


def _gap(evidence: Evidence, gate: Gate, name: str) -> RuleResult:
    """How far a group's AUC lies from that of all other rows, a value's from that of all rows, a column's apart.

    In either direction: where the others are served worse, they are who is treated unfairly.
    """
    limit, slices = gate.max_group_auc_gap, _slices(evidence, name)
    if why := _unfit(evidence, gate, name, slices):
        return insufficient("group_gap", why, limit=limit, subject=name)
    if name in evidence.slices:
        seen, what = _apart(evidence, name, "auc"), "AUC outside of the group less AUC inside, in either direction"
    else:
        seen = sampled(evidence.fairness[name].differences.get("auc_difference"), SHARE)
        what = "largest less smallest AUC of its values"
    return limited("group_gap", seen, limit, at_least=False, what=what, subject=name)


def _difference(evidence: Evidence, gate: Gate, name: str, measure: str, limit: float) -> RuleResult:
    """The largest less the smallest value of a measure over the slices of a group or a column.

    One value of a column is compared with all rows.
    """
    subject = f"{name}: {measure.removesuffix('_difference').replace('_', ' ')}"
    if why := _unfit(evidence, gate, name, _slices(evidence, name)):
        return insufficient("fairness", why, limit=limit, subject=subject)
    found = evidence.fairness.get(name)
    if found is not None:
        seen = sampled(found.differences.get(measure), SHARE)
    else:
        parts = ("recall", "fpr") if measure == "equalized_odds_difference" else (measure.removesuffix("_difference"),)
        apart = [_apart(evidence, name, part) for part in parts]
        known = [value for value in apart if value is not None]
        seen = max(known) if len(known) == len(parts) else None
    return limited("fairness", seen, limit, at_least=False, what=f"{name}: {WORDS[measure]}", subject=subject)


def _slices(evidence: Evidence, name: str) -> list[str]:
    """The slices that a name of the policy is about."""
    if name in evidence.slices:
        return [name, f"{name}{REST}"] if f"{name}{REST}" in evidence.slices else [name]
    found = evidence.fairness.get(name)
    own = [key for key in evidence.slices if key.startswith(f"{name}=")]
    return sorted({*own, *(found.compared if found else ()), *(found.left_out if found else ())})


def _unfit(evidence: Evidence, gate: Gate, name: str, slices: list[str]) -> str:
    """Why nothing can be said of a name, in words; "" where every slice of it is large enough.

    A group or a column needs two slices that were compared and none that was left out.
    """
    found, column_value = evidence.fairness.get(name), "=" in name and name in evidence.slices
    if not slices:
        return f"{name}: was not measured"
    if found is not None and (found.state != "measured" or len(set(found.compared)) < 2):
        return f"{name}: {found.reason or 'was not measured'}"
    if found is not None and len(set(found.compared)) != len(found.compared):
        return f"{name}: a slice is compared with itself"
    if not column_value and len(slices) < 2:
        return f"{name}: there is nothing to compare it with"
    left = [*(found.left_out if found else ()), *(key for key in slices if _too_small(evidence, key))]
    if left:
        more = f" and {len(set(left)) - 1} more" if len(set(left)) > 1 else ""
        return f"{left[0]}{more}: too few rows, positives or negatives to say anything"
    key = min(slices, key=lambda one: _fewest(evidence, one))
    if (few := _fewest(evidence, key)) < gate.min_group_positives:
        return f"{few} positives or negatives in {key}, {gate.min_group_positives} positives asked, and negatives"
    return ""


def _too_small(evidence: Evidence, key: str) -> bool:
    """Whether the evaluation calls a slice insufficient; a record without such a list says nothing against it."""
    return bool(evidence.slice_states) and evidence.slice_states.get(key) != "measured"


def _fewest(evidence: Evidence, key: str) -> int:
    """The fewest positives, or negatives, that any measure of a slice rests on; 0 where nothing is known of it."""
    found = evidence.slices.get(key, {}).values()
    return min((min(one.positives, one.n - one.positives) for one in found), default=0)


def _apart(evidence: Evidence, name: str, measure: str) -> float | None:
    """How far a slice lies from the others of its group, or from all rows where it is a value of a column."""
    rest = evidence.slices.get(f"{name}{REST}") or evidence.metrics | evidence.operating
    own, others = (sampled(part.get(measure), SHARE) for part in (evidence.slices[name], rest))
    return None if own is None or others is None else abs(others - own)
