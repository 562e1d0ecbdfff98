"""The gate: a pure function from evidence and policy to a table of rules.

No evidence never passes: what is missing, not a finite number, out of range or too little is `insufficient`.
The rules lie in `gate_rules/`, by what they look at.
"""

from __future__ import annotations

from collections.abc import Sequence

from components.core.recipe import Gate
from components.core.records import Evidence, RuleResult
from components.registry.gate_rules.behaviour import behaviour
from components.registry.gate_rules.groups import groups
from components.registry.gate_rules.handed import Handed, handed_over
from components.registry.gate_rules.quality import quality
from components.registry.gate_rules.reading import INFO, PASS

__all__ = ["Handed", "judge", "passed", "refusal"]


def judge(evidence: Evidence, gate: Gate, *, champion_version: str, handed: Handed) -> tuple[RuleResult, ...]:
    """Every rule of the gate, also those that pass.

    Args:
        evidence: what the test rows say, of the candidate and of the champion on the same rows.
        gate: the policy; None switches a rule off, which shows as `info`.
        champion_version: the champion now, "" where there is none; the evidence has to be about this one.
        handed: what earlier steps say of the model beside its evidence.
    """
    return (
        *handed_over(handed, evidence, gate),
        *quality(evidence, gate, champion_version),
        *groups(evidence, gate),
        *behaviour(evidence, gate),
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
