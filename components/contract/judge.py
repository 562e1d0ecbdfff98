"""From what an engine saw to a verdict. Pure: the same observations give the same verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from components.contract.rules import DataContract, Limit, Observation, Rule
from components.core.records import RuleResult

BLOCKING = ("fail", "insufficient")


@dataclass(frozen=True)
class Judgement:
    """The results of all rules, and for each row whether it is clean, and which rules it breaks and why."""

    passed: bool
    reason: str
    checks: tuple[RuleResult, ...]
    clean: tuple[bool, ...]
    rules: tuple[str, ...]
    reasons: tuple[str, ...]


def judge(
    contract: DataContract,
    columns: Sequence[str],
    rows: int,
    observations: Sequence[Observation | None],
    examples: Sequence[str],
) -> Judgement:
    """Decide on a batch.

    Args:
        contract: the rules.
        columns: the batch's columns.
        rows: how many rows it has.
        observations: one a rule, in the contract's order; None where the engine gave no result.
        examples: one a rule: values that break it, for people.
    """
    results = [
        _result(rule, contract, columns, rows, seen, example)
        for rule, seen, example in zip(contract.rules, observations, examples, strict=True)
    ]
    broken = _broken_rows(contract.rules, observations, rows)
    checks = [*_batch_results(contract, rows), *results, *_undeclared(contract, columns)]
    blocking = [check for check in checks if check.outcome in BLOCKING]
    aside = sum(bool(names) for names in broken)
    if not blocking and rows:
        share = _share_result(contract, aside, rows)
        checks.append(share)
        blocking = [share] if share.outcome in BLOCKING else []
    reason = _reason(blocking)
    asks = {_label(rule): f"{rule.subject}: {rule.asks}" for rule in contract.rules}
    refused = [] if not blocking else ["the batch"]
    names = [broken_by or refused for broken_by in broken]
    reasons = ["; ".join(asks.get(name, f"the batch was refused: {reason}") for name in found) for found in names]
    return Judgement(
        passed=not blocking,
        reason=reason,
        checks=tuple(checks),
        clean=tuple(not found for found in names),
        rules=tuple("; ".join(found) for found in names),
        reasons=tuple(reasons),
    )


def _result(
    rule: Rule, contract: DataContract, columns: Sequence[str], rows: int, seen: Observation | None, example: str
) -> RuleResult:
    if rule.kind == "note":
        return _told(rule, "info", None, "for people; not checked")
    absent = [name for name in rule.columns if name not in columns]
    if absent:
        return _absent(rule, absent, contract)
    if not rows:
        return _told(rule, "insufficient", None, "there is no row to look at")
    if seen is None or seen.error or not math.isfinite(seen.value):
        why = "left out" if seen is None else seen.error or f"it counts {seen.value}"
        return _told(rule, "fail", None, f"the engine gave no result ({why})")
    if rule.kind == "column":
        return _told(rule, "pass" if seen.value == 1 else "fail", "present" if seen.value == 1 else "missing", "")
    observed = 100 * seen.value / rows if rule.limit.unit == "percent" else seen.value
    if rule.kind not in ("rows", "present") and seen.looked_at <= 0:
        optional = all(contract.column(name).optional for name in rule.columns)
        return _told(rule, "info", observed, f"no value to look at{' in an optional column' if optional else ''}")
    if rule.limit.holds(observed):
        return _told(rule, "pass", observed, "")
    outcome = "fail" if rule.severity == "error" else "info"
    aside = "; rows set aside" if rule.severity == "warning" else ""
    if rule.kind == "rows":
        return _told(rule, outcome, observed, f"{rows} rows, asked are {rule.limit.text}")
    such = f", for example {example}" if example else ""
    return _told(rule, outcome, observed, f"{rule.asks}: broken by {int(seen.value)} of {rows} rows{such}{aside}")


def _absent(rule: Rule, absent: Sequence[str], contract: DataContract) -> RuleResult:
    named = ", ".join(repr(name) for name in absent)
    if all(contract.column(name).optional for name in absent):
        return _told(rule, "info", "missing", f"the optional column {named} is absent")
    outcome = "fail" if rule.kind == "column" else "insufficient"
    return _told(rule, outcome, "missing", f"the column {named} is missing")


def _told(rule: Rule, outcome: str, observed: float | str | None, reason: str) -> RuleResult:
    limit = "present" if rule.kind == "column" else None if rule.kind == "note" else rule.limit.text
    return RuleResult(
        rule=rule.name, outcome=outcome, observed=observed, limit=limit, subject=rule.subject, reason=reason
    )


def _batch_results(contract: DataContract, rows: int) -> list[RuleResult]:
    """What is asked of every batch and contract, declared or not."""
    declared = sum(rule.kind != "note" for rule in contract.rules)
    return [
        _number("batch has rows", rows, Limit("mustBeGreaterOrEqualTo", 1), "the batch has no row"),
        _number("contract has rules", declared, Limit("mustBeGreaterOrEqualTo", 1), "the contract declares no rule"),
    ]


def _share_result(contract: DataContract, aside: int, rows: int) -> RuleResult:
    limit = Limit("mustBeLessOrEqualTo", contract.max_quarantine_percent, unit="percent")
    if aside == rows:
        return _number("rows set aside", 100.0, Limit("mustBeLessThan", 100, unit="percent"), "no row is clean")
    return _number("rows set aside", 100 * aside / rows, limit, f"{aside} of {rows} rows break a rule: too many")


def _number(name: str, observed: float, limit: Limit, reason: str) -> RuleResult:
    held = limit.holds(observed)
    return RuleResult(
        rule=name,
        outcome="pass" if held else "fail",
        observed=observed,
        limit=limit.text,
        reason="" if held else reason,
    )


def _undeclared(contract: DataContract, columns: Sequence[str]) -> list[RuleResult]:
    """Columns that the contract does not know: told, as nothing downstream reads them."""
    known = {column.name for column in contract.columns}
    return [
        RuleResult(rule="undeclared column", outcome="info", observed="present", limit=None, subject=name)
        for name in columns
        if name not in known
    ]


def _broken_rows(rules: Sequence[Rule], observations: Sequence[Observation | None], rows: int) -> list[list[str]]:
    """For each row the labels of the rules that it breaks; rules that are only told do not count."""
    broken: list[list[str]] = [[] for _ in range(rows)]
    for rule, seen in zip(rules, observations, strict=True):
        sets_aside = rule.severity == "warning" or (rule.severity == "error" and not _tolerated(rule, seen, rows))
        if seen is not None and rule.of_rows and sets_aside:
            for position in seen.bad_rows:
                broken[position].append(_label(rule))
    return broken


def _tolerated(rule: Rule, seen: Observation | None, rows: int) -> bool:
    """Whether an error rule's limit allows the rows that break it; such rows stay."""
    if seen is None or not rows:
        return False
    return rule.limit.holds(100 * seen.value / rows if rule.limit.unit == "percent" else seen.value)


def _label(rule: Rule) -> str:
    return f"{rule.subject}: {rule.name}" if rule.subject else rule.name


def _reason(blocking: Sequence[RuleResult]) -> str:
    """One line: the first broken rules and how many there are."""
    if not blocking:
        return ""
    order = sorted(blocking, key=lambda check: check.outcome != "fail")
    told = list(dict.fromkeys(f"{check.subject or check.rule}: {check.reason or check.rule}" for check in order))
    more = f" (and {len(told) - 3} more)" if len(told) > 3 else ""
    return "; ".join(told[:3]) + more
