"""What a verdict says: one line, and the table of rules behind it."""

from __future__ import annotations

from dataclasses import dataclass

from components.core.records import RuleResult
from components.rollout.margins import Margins

PASS, FAIL, INCONCLUSIVE, CONTINUE = "pass", "fail", "inconclusive", "continue"
ENDS = {
    PASS: "no worse within the margins",
    FAIL: "traffic back on stable",
    INCONCLUSIVE: "not proven bad; traffic back on stable",
    CONTINUE: "going on",
}
Decided = tuple[str, str, str]  # outcome, the rule that decided, why


@dataclass(frozen=True)
class Verdict:
    """What is decided now: `rule` names what decided, `why` the reason, `text` is one line for people.

    `rules` is the table of the stage, empty while it goes on.
    """

    outcome: str
    rule: str
    text: str
    rules: tuple[RuleResult, ...] = ()
    why: str = ""


def line(decided: Decided, stage: str, time: str, margins: Margins, digests: tuple[str, str]) -> str:
    """Verdict, stage, what decided and why, time, the guarantee, what is done, and which two versions it is about."""
    outcome, rule, why = decided
    unit = ", counted by entity" if margins.sticky else ""
    guarantee = f"α {margins.alpha:g} for the whole rollout at any number of looks{unit}"
    parts = [f"{outcome.upper()}, {stage}, {rule}: {why}", time, guarantee, ENDS[outcome]]
    if any(digests):
        candidate, stable = (digest[:12] for digest in digests)
        parts.append(f"candidate {candidate} against stable {stable}")
    return "; ".join(parts)


def row(name: str, holds: bool, observed: float, limit: float, stage: str, reason: str) -> RuleResult:
    """A rule that passes where it holds, and else has not the evidence to."""
    outcome = "pass" if holds else "insufficient"
    return RuleResult(
        rule=name, outcome=outcome, observed=round(observed, 4), limit=limit, subject=stage, reason=reason
    )


def with_decision(table: list[RuleResult], decided: Decided, stage: str) -> tuple[RuleResult, ...]:
    """The table with what decided against a pass in it."""
    outcome, rule, why = decided
    if outcome in (FAIL, INCONCLUSIVE):
        kind = "fail" if outcome == FAIL else "insufficient"
        table = [one for one in table if one.rule != rule]
        table.append(RuleResult(rule=rule, outcome=kind, observed=None, limit=None, subject=stage, reason=why))
    return tuple(table)
