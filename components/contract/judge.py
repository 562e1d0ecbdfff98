"""From what an engine saw to a verdict. Pure: the same observations give the same verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from components.contract.standard.rules import SINGLE_KINDS, DataContract, Limit, Observation, Rule
from components.core.records import RuleResult

BLOCKING = ("fail", "insufficient")
REASONS = 8  # columns that the reason of a refusal names
NO_ROW = "there is no row to look at"
SET_ASIDE = "; rows set aside"


@dataclass(frozen=True)
class Judgement:
    """The results of all rules, how many rows are clean, and the numbers of the rules that set rows aside.

    clean + quarantined = rows; a refused batch has no clean row.
    """

    passed: bool
    reason: str
    checks: tuple[RuleResult, ...]
    clean: int
    quarantined: int
    setting_aside: tuple[int, ...]


def judge(
    contract: DataContract,
    columns: Sequence[str],
    rows: int,
    observations: Mapping[int, Observation],
    aside: int,
    examples: Mapping[int, str] | None = None,
    extra: Sequence[RuleResult] = (),
) -> Judgement:
    """Decide on a batch.

    Args:
        contract: the rules.
        columns: the batch's columns.
        rows: how many rows it has.
        observations: by the rule's number in the contract; absent where the engine gave no result.
        aside: how many rows break one of the rules `setting_aside` or more.
        examples: by the rule's number: values that break it, for people.
        extra: results found elsewhere, which count like those of rules.
    """
    told = examples or {}
    results = [
        _result(rule, contract, columns, rows, observations.get(number), told.get(number, ""))
        for number, rule in enumerate(contract.rules)
    ]
    checks = [*_batch_results(contract, rows), *extra, *results, *_undeclared(contract, columns)]
    blocking = [check for check in checks if check.outcome in BLOCKING]
    if not blocking:
        share = _share_result(contract, aside, rows)
        checks.append(share)
        blocking = [share] if share.outcome in BLOCKING else []
    quarantined = rows if blocking else aside
    return Judgement(
        passed=not blocking,
        reason=_reason(blocking),
        checks=tuple(checks),
        clean=rows - quarantined,
        quarantined=quarantined,
        setting_aside=setting_aside(contract.rules, observations, rows),
    )


def setting_aside(rules: Sequence[Rule], observations: Mapping[int, Observation], rows: int) -> tuple[int, ...]:
    """The numbers of the rules whose broken rows leave: warnings, and errors beyond what their limit allows."""
    found = []
    for number, rule in enumerate(rules):
        seen = observations.get(number)
        if seen is None or seen.error or not rule.of_rows or not seen.value:
            continue
        if rule.severity == "warning" or (rule.severity == "error" and not _tolerated(rule, seen, rows)):
            found.append(number)
    return tuple(found)


def label(rule: Rule) -> str:
    """What a rule is called beside its column."""
    return f"{rule.subject}: {rule.name}" if rule.subject else rule.name


def observed_text(observed: float | str | None) -> str:
    """What was seen, for people: whole numbers without a point."""
    if observed is None or isinstance(observed, str):
        return observed or ""
    return str(int(observed)) if float(observed).is_integer() else f"{observed:g}"


def _tolerated(rule: Rule, seen: Observation, rows: int) -> bool:
    """Whether an error rule's limit allows the rows that break it; such rows stay."""
    return rows > 0 and rule.limit.holds(_observed(rule, seen, rows))


def _observed(rule: Rule, seen: Observation, rows: int) -> float:
    return 100 * seen.value / rows if rule.limit.unit == "percent" else seen.value


def _result(
    rule: Rule, contract: DataContract, columns: Sequence[str], rows: int, seen: Observation | None, example: str
) -> RuleResult:
    if rule.kind == "note":
        return _told(rule, "info", None, "for people; not checked")
    absent = [name for name in (*rule.columns, *rule.targets) if name not in columns]
    if absent:
        return _absent(rule, absent, contract)
    if not rows:
        return _told(rule, "insufficient", None, NO_ROW)
    if seen is None or seen.error or not math.isfinite(seen.value):
        why = "left out" if seen is None else seen.error or f"it counts {seen.value}"
        return _told(rule, "fail", None, f"the engine gave no result ({why})")
    if rule.kind == "column":
        return _told(rule, "pass" if seen.value == 1 else "fail", "present" if seen.value == 1 else "missing", "")
    observed = _observed(rule, seen, rows)
    if rule.of_rows and rule.kind != "present" and seen.looked_at <= 0:
        optional = all(contract.column(name).optional for name in rule.columns)
        return _told(rule, "info", observed, f"no value to look at{' in an optional column' if optional else ''}")
    if rule.limit.holds(observed):
        return _told(rule, "pass", observed, "")
    outcome = "fail" if rule.severity == "error" else "info"
    if rule.kind in SINGLE_KINDS:
        return _told(rule, outcome, observed, _off_limit(rule, observed, rows))
    aside = SET_ASIDE if rule.severity == "warning" else ""
    such = f", for example {example}" if example else ""
    return _told(rule, outcome, observed, f"{rule.asks}: broken by {int(seen.value)} of {rows} rows{such}{aside}")


def _off_limit(rule: Rule, observed: float, rows: int) -> str:
    if rule.kind == "rows":
        return f"{rows} rows, asked are {rule.limit.text}"
    return f"{rule.asks}: {Limit('mustBe', observed, unit=rule.limit.unit).text[2:]}, asked is {rule.limit.text}"


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


def _reason(blocking: Sequence[RuleResult]) -> str:
    """One line: what is worst of each column, failures before what could not be looked at."""
    seen = [check for check in blocking if check.reason != NO_ROW]  # that there is no row is told once, of the batch
    order = sorted(seen, key=lambda check: check.outcome != "fail")
    clauses: dict[str, str] = {}
    for check in order:
        place = check.subject or check.rule
        clauses.setdefault(place, f"{place}: {check.reason or check.rule}")
    told = list(clauses.values())
    more = f" (and {len(told) - REASONS} more)" if len(told) > REASONS else ""
    return "; ".join(told[:REASONS]) + more
