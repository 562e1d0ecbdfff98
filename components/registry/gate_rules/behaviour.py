"""Rules about how the model behaves: answers outside of the labels, changed inputs, time, what it has memorised."""

from __future__ import annotations

import math
from collections.abc import Iterator

from components.core.personal_data import KINDS
from components.core.recipe import Gate
from components.core.records import Evidence, RuleResult
from components.registry.gate_rules.reading import (
    FEWEST_SAMPLED,
    SHARE,
    insufficient,
    limited,
    sampled,
    was_measured,
    within,
)


def behaviour(evidence: Evidence, gate: Gate) -> Iterator[RuleResult]:
    """Every rule of this file."""
    yield limited(
        "invalid_rate",
        sampled(evidence.invalid_rate, SHARE),
        gate.max_invalid_rate,
        at_least=False,
        what="share of answers that are no label",
    )
    yield from _robustness("mean_shift", gate.max_mean_shift, evidence, "mean shift of the score")
    yield from _robustness("flip_rate", gate.max_flip_rate, evidence, "share of decisions that turn")
    yield limited(
        "latency",
        _p95(evidence, "offline_p95"),
        gate.max_offline_p95_ms,
        at_least=False,
        what="95th percentile of the scoring time in ms",
    )
    yield limited(
        "latency",
        _p95(evidence, "offline_cpu_p95"),
        gate.max_offline_cpu_p95_ms,
        at_least=False,
        what="95th percentile of the CPU time of a score in ms",
        subject="CPU time",
    )
    for name, limit in (
        ("completion_difference", gate.max_completion_difference),
        ("membership_auc", gate.max_membership_auc),
    ):
        span = SHARE if name == "membership_auc" else (-1.0, 1.0)
        seen = sampled(evidence.memorisation.get(name), span) if was_measured(evidence, "memorisation") else None
        words = name.replace("_", " ").replace("auc", "AUC")
        yield limited("memorisation", seen, limit, at_least=False, what=words, subject=words)
    yield _personal_data(evidence, gate)


def _robustness(measure: str, limits: dict[str, float], evidence: Evidence, what: str) -> Iterator[RuleResult]:
    """Each changed input that the policy limits; a shift counts in either direction."""
    for change, limit in sorted(limits.items()):
        part = "injection" if change == "injection" else "robustness"
        known = evidence.robustness.get(change, {}).get(measure) if was_measured(evidence, part) else None
        found = sampled(known, (-1.0, 1.0))
        seen = None if found is None else abs(found)
        words = change.replace("_", " ")
        what_of = f"{what} under {words}"
        subject = f"{words}: {measure.replace('_', ' ')}"
        yield limited("robustness", seen, limit, at_least=False, what=what_of, subject=subject)


def _p95(evidence: Evidence, which: str) -> float | None:
    """The 95th percentile of the scoring time, where enough rows were timed to have one."""
    timed = within(evidence.latency_ms.get("rows"), (FEWEST_SAMPLED, math.inf))
    if timed is None or not was_measured(evidence, "latency"):
        return None
    return within(evidence.latency_ms.get(which), (0.0, math.inf))


def _personal_data(evidence: Evidence, gate: Gate) -> RuleResult:
    """Finds of personal data in the exported model's files."""
    limit = gate.max_personal_data
    counts = [within(count, (0.0, math.inf)) for count in evidence.personal_data.values()]
    known = [count for count in counts if count is not None]
    whole = set(KINDS) <= set(evidence.personal_data) and len(known) == len(counts)
    if limit is not None and (not whole or not was_measured(evidence, "personal_data")):
        return insufficient(
            "personal_data", "the model's files were not searched for every kind of personal data", limit=limit
        )
    seen = sum(known) if counts else None
    return limited(
        "personal_data", seen, limit, at_least=False, what="number of finds of personal data in the model's files"
    )
