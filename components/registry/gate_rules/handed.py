"""Rules about what came with the evidence: signature, the contract's verdict, the leakage guard, skew, the window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from components.core.recipe import Gate
from components.core.records import ContractVerdict, Evidence, HandOver, RuleResult
from components.registry.gate_rules.reading import FAIL, INFO, PASS, SHARE, insufficient, limited, within


@dataclass(frozen=True)
class Handed:
    """What the earlier steps say of the model beside its evidence; what is absent does not pass.

    signed_by: id of the trusted key whose signature over the model's files was verified, "" where there is none.
    contract: the verdict on the clean rows. guard: the verdict on the training set. skew: share of feature values that
    online answers otherwise than training, None where nobody compared. evaluation: digest of the recipe's evaluation
    and threshold, under which the evidence has to have been made.
    """

    signed_by: str = ""
    contract: ContractVerdict | None = None
    guard: HandOver | None = None
    skew: float | None = None
    evaluation: str = ""


def handed_over(handed: Handed, evidence: Evidence, gate: Gate) -> Iterator[RuleResult]:
    """Every rule of this file."""
    yield _signature(handed)
    yield _contract(handed.contract)
    yield _leakage(handed.guard, evidence)
    yield limited(
        "skew",
        within(handed.skew, SHARE),
        gate.max_skew,
        at_least=False,
        what="share of feature values that online answers otherwise",
    )
    yield _evaluation(handed, evidence)
    yield _window(evidence, gate)


def _signature(handed: Handed) -> RuleResult:
    asked = "by a trusted key"
    if not handed.signed_by:
        return insufficient("signature", "the model has no signature", limit=asked)
    return RuleResult(rule="signature", outcome=PASS, observed=f"by key {handed.signed_by[:12]}", limit=asked)


def _contract(verdict: ContractVerdict | None) -> RuleResult:
    """The data contract was judged, on rows, and holds."""
    if verdict is None:
        return insufficient("contract", "no verdict of the data contract was handed over", limit="passed")
    title = f"{verdict.contract} {verdict.version}".strip()
    if not verdict.checks or verdict.rows <= 0 or verdict.clean <= 0 or not verdict.contract_digest:
        return insufficient("contract", f"the verdict of {title} rests on no rule or no row", limit="passed")
    if verdict.passed is not True:
        reason = f"contract {title} does not hold: {verdict.reason or 'no reason given'}"
        return RuleResult(rule="contract", outcome=FAIL, observed="refused", limit="passed", reason=reason)
    return RuleResult(rule="contract", outcome=PASS, observed=f"passed {title}", limit="passed")


def _leakage(guard: HandOver | None, evidence: Evidence) -> RuleResult:
    """The guard let this training set pass, rule by rule, and the evaluation was made under this very verdict."""
    if guard is None:
        return insufficient("leakage", "no verdict of the leakage guard was handed over", limit="passed")
    if guard.training_set_digest != evidence.training_set_digest:
        return insufficient("leakage", "the guard's verdict is about another training set", limit="passed")
    broken = [rule for rule in (*guard.guards, *guard.checks) if rule.outcome not in (PASS, INFO)]
    if guard.passed is not True or broken:
        found = broken[0] if broken else None
        first = f"{found.rule} {found.subject}".strip() + f": {found.reason}" if found else guard.reason
        return RuleResult(rule="leakage", outcome=FAIL, observed="refused", limit="passed", reason=f"guard: {first}")
    held = sum(rule.outcome == PASS for rule in guard.guards)
    if not held or guard.rows <= 0:
        return insufficient("leakage", "the guard's verdict rests on no rule or no row", limit="passed")
    if evidence.handover_digest != guard.record_digest:
        other = "another" if evidence.handover_digest else "no"
        return insufficient("leakage", f"the evaluation was made under {other} verdict of the guard", limit="passed")
    return RuleResult(rule="leakage", outcome=PASS, observed=f"{held} guards hold", limit="passed")


def _evaluation(handed: Handed, evidence: Evidence) -> RuleResult:
    """The evidence was made as this recipe asks: the same slices, resamples, seed, samples and operating point."""
    asked, made = handed.evaluation, evidence.evaluation_digest
    limit = asked[:12] or "of the recipe"
    if asked and made == asked:
        return RuleResult(rule="evaluation", outcome=PASS, observed=made[:12], limit=limit)
    told = "under another evaluation section or serving.threshold than the recipe's" if made else "nobody knows how"
    return insufficient("evaluation", f"the evidence was made {told}; evaluate again", limit=limit, observed=made[:12])


def _window(evidence: Evidence, gate: Gate) -> RuleResult:
    """How often this test window has judged candidates: each use of the same rows makes a pass by luck likelier."""
    uses, limit = evidence.test_window_uses, gate.max_window_uses
    if limit is None:
        told = f"the test rows have judged {uses} candidate{'s' if uses != 1 else ''}" if uses > 0 else "not counted"
        return RuleResult(rule="test_window", outcome=INFO, observed=uses, limit=None, reason=told)
    if uses <= 0:
        return insufficient("test_window", "the uses of the test window were not counted", limit=limit)
    what = "number of candidates that these test rows judged"
    return limited("test_window", uses, limit, at_least=False, what=what)
