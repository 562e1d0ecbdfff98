"""Silent drift of meaning: what changed against the last accepted snapshots although the declared rules may hold.

Pure. Findings have rules named `meaning: <kind>`, the new value as observed and the earlier one as limit, and outcome
fail or info (told); the contract's customProperties (drift_settings) turn one into the other. What a small batch cannot
show is told under `meaning: evidence` and never blocks: the declared rules have judged the same rows already.
A finding needs to differ from every one of the last accepted snapshots: what was accepted once is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from components.contract.meaning.drift_settings import DriftSettings
from components.contract.meaning.meaning_names import near_renames, same_values, similarity
from components.contract.meaning.meaning_rows import row_count
from components.contract.meaning.meaning_values import (
    MIN_VALUES,
    constant,
    date_format,
    finding,
    null_share,
    number_format,
    unit,
)
from components.contract.meaning.profile import ColumnProfile, Profile
from components.contract.standard.rules import DataContract
from components.core.records import RuleResult

Columns = Sequence[ColumnProfile]


def findings(
    contract: DataContract, profile: Profile, history: Sequence[Profile], fresh: Profile | None = None
) -> tuple[RuleResult, ...]:
    """Compare a batch with earlier ones.

    Args:
        contract: its rules say which values and formats are declared, its `drift` how findings count.
        profile: the batch.
        history: the profiles accepted before it, oldest first; the last `drift.history` are used.
        fresh: the profile of the rows that are later than all of the last accepted snapshot, where the batch repeats
            the earlier rows: in a long export a change of the last week is a small share of the whole.
    """
    settings = contract.drift
    before = tuple(history)[-settings.history :]
    if settings.mode == "off" and not settings.modes:
        return (RuleResult(rule="meaning: history", outcome="info", observed=None, limit=None, reason="switched off"),)
    if not before:
        told = "no earlier snapshot was accepted; there is nothing to compare with"
        return (RuleResult(rule="meaning: history", outcome="info", observed=0, limit=None, reason=told),)
    found = [*row_count(profile, before, settings.row_count_factor), *_gone(contract, profile, before[-1])]
    for now in profile.columns:
        earlier = [column for item in before if (column := item.column(now.name))]
        later = fresh.column(now.name) if fresh else None
        found += _column(contract, now, earlier, later, profile.time_column) if earlier else []
    counted = [result for item in found if (result := _counted(item, settings))]
    return (_compared(before), *_evidence(profile, before), *counted)


def _column(
    contract: DataContract, now: ColumnProfile, before: Columns, fresh: ColumnProfile | None, time_column: str
) -> list[RuleResult]:
    """The findings of one column; those of the fresh rows where the whole shows none of that kind."""
    formats = tuple(
        text for rule in contract.rules if rule.columns == (now.name,) and rule.reading for text in rule.reading.formats
    )
    declared = frozenset(
        value
        for rule in contract.rules
        if rule.columns == (now.name,) and rule.kind == "values"
        for value in rule.values
    )
    unique = now.name in contract.key or any(
        rule.kind == "unique" and rule.columns == (now.name,) for rule in contract.rules
    )
    of_values: tuple[Callable[[ColumnProfile], list[RuleResult]], ...] = (
        lambda column: date_format(column, before, formats),
        lambda column: number_format(column, before),
        lambda column: [] if unique else unit(column, before),
        lambda column: [] if unique else near_renames(column, before, declared),
    )
    found = [] if now.name == time_column else constant(now, before)
    found += null_share(now, before, contract.drift.null_share_points)
    for look in of_values:
        whole = look(now)
        late = look(fresh) if fresh and not whole else []
        found += whole + [replace(item, reason=f"in the rows that are new: {item.reason}") for item in late]
    return found


def _counted(result: RuleResult, settings: DriftSettings) -> RuleResult | None:
    """The result as the contract wants it counted."""
    mode = settings.mode_of(result.subject)
    if mode == "off":
        return None
    if mode == "error":
        return replace(result, outcome="fail")
    return replace(result, outcome="info") if mode == "warning" else result


def _gone(contract: DataContract, profile: Profile, last: Profile) -> list[RuleResult]:
    """Columns that the last accepted snapshot had, with the new column that looks like each."""
    names = {column.name for column in profile.columns}
    new = [column for column in profile.columns if last.column(column.name) is None]
    declared = {column.name for column in contract.columns if not column.optional}
    found = []
    for old in last.columns:
        if old.name in names:
            continue
        like = max(new, key=lambda column: _likeness(old, column), default=None)
        hint = ""
        if like is not None and _likeness(old, like) >= 0.6:
            hint = f"; the new column {like.name!r} (for example {like.examples}) looks like it: renamed?"
        had = f"the last accepted snapshot had it, for example {old.examples}" if old.examples else "it held no value"
        outcome = "fail" if old.name in declared else "info"
        found.append(finding("column gone", old.name, outcome, "gone", "present", f"the column is gone; {had}{hint}"))
    return found


def _likeness(old: ColumnProfile, new: ColumnProfile) -> float:
    """From 0 to 1: how much a column looks like another, by its values or its name."""
    return max(similarity(old.name, new.name), same_values(old, new))


def _compared(before: Sequence[Profile]) -> RuleResult:
    last = before[-1]
    many = f"{len(before)} accepted snapshot{'s' if len(before) > 1 else ''}, the last {last.snapshot_digest[:12]}"
    return RuleResult(
        rule="meaning: history", outcome="info", observed=len(before), limit=None, reason=f"against {many}"
    )


def _evidence(profile: Profile, before: Sequence[Profile]) -> list[RuleResult]:
    """Columns with too few values to tell a change, where the earlier snapshots had enough."""
    few = []
    for column in profile.columns:
        earlier = [found.looked_at for item in before if (found := item.column(column.name))]
        if column.looked_at < MIN_VALUES <= max(earlier, default=0):
            few.append(f"{column.name} ({column.looked_at})")
    if not few:
        return []
    reason = f"too few values to tell a change of unit, format or category: {', '.join(few)}"
    return [
        RuleResult(
            rule="meaning: evidence", outcome="info", observed=len(few), limit=f"{MIN_VALUES} values", reason=reason
        )
    ]
