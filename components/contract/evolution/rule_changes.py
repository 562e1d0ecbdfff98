"""Changes among the rules of two versions: which are asked anew, which are gone, which allow more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from components.contract.evolution.changes import Change, Pair, asks, change
from components.contract.evolution.document import Place
from components.contract.evolution.strictness import RANKS, differing, implies
from components.contract.standard.rules import Column, DataContract, Rule

SLA_KINDS = ("freshness", "frequency", "latency", "retention")
NAMES = {  # kind of rule: the word in the change's kind
    "present": "required",
    "values": "enum",
    "pattern": "pattern",
    "length": "length",
    "reading": "range",
    "unique": "unique",
    "rows": "row_count",
    "reference": "reference",
    **dict.fromkeys(SLA_KINDS, "sla"),
}
EMPTY_HOLDS = {*("column", "values", "pattern", "length", "reading"), *("unique", "reference", "latency", "retention")}


@dataclass
class RuleChanges:
    """The changes, and the columns whose rules changed ("" for rules about the table)."""

    changes: list[Change] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)

    def add(self, rule: Rule, found: Change) -> None:
        """Keep a change of a rule."""
        self.changes.append(found)
        self.touched |= set(rule.columns) or {""}
        if ".properties[" not in rule.where:
            self.touched.add("")


def rule_changes(pair: Pair, retyped: frozenset[str]) -> RuleChanges:
    """Compare all rules but those of columns that are gone or new; `retyped` columns: not those of their type."""
    old = list(_compared(pair.old, pair.removed, retyped))
    new = list(_compared(pair.new, pair.added, retyped))
    reread = any(_read(one) != _read(other) for one, other in pair.shared)

    def covered(rule: Rule, others: Iterable[Rule]) -> bool:
        """A query's columns come to it as they are read: it is another query where that changed."""
        return not (rule.kind == "sql" and reread) and any(implies(other, rule) for other in others)

    partner = _partners(old, new)
    found, told = RuleChanges(), set[int]()
    for rule in new:
        if not covered(rule, old):
            before = partner.get(id(rule))
            told.add(id(before))
            place = pair.after.place(rule)
            found.add(rule, _added(rule, place) if before is None else _asks_more(before, rule, place))
    backward = {id(partner[id(rule)]): rule for rule in new if id(rule) in partner}
    for rule in old:
        if id(rule) in told or covered(rule, new):
            continue
        after = backward.get(id(rule))
        if after is None:
            found.add(rule, _gone(rule, pair.before.place(rule)))
        elif made := _asks_less(rule, after, pair.after.place(after)):
            found.add(rule, made)
    return found


def holds_when_empty(contract: DataContract, name: str) -> bool:
    """Whether a batch whose new column is there without a value lets all rules about that column pass."""
    rules = [rule for rule in contract.rules if name in rule.columns and rule.severity != "info"]
    if contract.column(name).optional:
        return True
    return all(rule.kind in EMPTY_HOLDS or (rule.kind == "present" and _allows_none(rule)) for rule in rules)


def _allows_none(rule: Rule) -> bool:
    """Whether a column without any value keeps the limit, however many rows there are."""
    return rule.limit.holds(100.0) if rule.limit.unit == "percent" else False


def _read(column: Column) -> tuple[object, ...]:
    return column.reading, frozenset(column.missing), column.logical_type


def _compared(contract: DataContract, apart: frozenset[str], retyped: frozenset[str]) -> Iterable[Rule]:
    for rule in contract.rules:
        alone = bool(rule.columns) and set(rule.columns) <= apart
        of_type = set(rule.columns) & retyped and (".logicalType" in rule.where or rule.kind == "reading")
        if rule.kind != "column" and not alone and not of_type:
            yield rule


def _partners(old: Iterable[Rule], new: Iterable[Rule]) -> Mapping[int, Rule]:
    """For a new rule (by id) the old one that it continues: same kind, columns and name, else same kind and columns."""
    left, found = list(old), dict[int, Rule]()
    for with_name in (True, False):
        for rule in new:
            if id(rule) in found:
                continue
            same = [other for other in left if _subject(other, with_name) == _subject(rule, with_name)]
            if same:
                found[id(rule)] = same[0]
                left = [other for other in left if other is not same[0]]
    return found


def _subject(rule: Rule, with_name: bool) -> tuple[str, ...]:
    columns = sorted(rule.columns) if rule.kind == "unique" else rule.columns
    return (rule.kind, *columns, "", rule.name if with_name else "")


def _added(rule: Rule, place: Place) -> Change:
    text = (
        f"{_about(rule)}: new rule ({asks(rule).rstrip('.')}, {rule.limit.text}); batches that break it no longer pass."
    )
    return change(place, f"{_word(rule)}_added", None, asks(rule), "producers", text)


def _gone(rule: Rule, place: Place) -> Change:
    kind = "sla_removed" if rule.kind in SLA_KINDS else f"{_word(rule)}_removed"
    text = f"{_about(rule)}: no longer promised: {asks(rule).rstrip('.')}."
    return change(place, kind, asks(rule), None, "consumers", text)


def _asks_more(old: Rule, new: Rule, place: Place) -> Change:
    """The new rule lets less pass, or what it lets pass cannot be compared."""
    differ, about = differing(old, new), _about(new)
    if RANKS.get(new.severity, 9) > RANKS.get(old.severity, 9):
        text = f"{about}: breaking '{asks(new)}' now counts as {new.severity}, not {old.severity}."
        return change(place, "severity_raised", old.severity, new.severity, "producers", text)
    if "values" in differ and (lost := [value for value in old.values if value not in new.values]):
        text = f"{about}: {', '.join(map(repr, lost[:5]))} is no longer allowed."
        return change(place, "enum_member_removed", old.values, new.values, "producers", text)
    if "pattern" in differ:
        text = f"{about}: {new.pattern!r} is not provably wider than {old.pattern!r}, so it counts as breaking."
        return change(place, "pattern_changed", old.pattern, new.pattern, "both", text)
    if new.kind == "reading" and old.reading and new.reading and old.reading.formats != new.reading.formats:
        return _format_change(old, new, place)
    if asks(old) == asks(new) and not differ:
        text = f"{about}: '{asks(new)}' must now be {new.limit.text}, it was {old.limit.text}."
        return change(place, "limit_tightened", old.limit.text, new.limit.text, "producers", text)
    if new.kind in ("length", "reading", *SLA_KINDS):
        text = f"{about}: {asks(new)}; before it was enough that it {asks(old)}."
        return change(place, f"{_word(new)}_tightened", asks(old), asks(new), "producers", text)
    seen = ", ".join(sorted(differ)) or "limit"
    text = f"{about}: the rule {new.name} changed ({seen}) so that batches which passed may be refused."
    return change(place, f"{_word(new)}_changed", _shown(old, differ), _shown(new, differ), "both", text)


def _asks_less(old: Rule, new: Rule, place: Place) -> Change | None:
    """All that the old rule lets pass, the new one lets pass; and more."""
    differ, about = differing(old, new), _about(new)
    if new.severity == "info" and old.severity != "info":
        text = f"{about}: '{asks(old)}' is only told now; it is no longer promised."
        return change(place, "severity_lowered", old.severity, new.severity, "consumers", text)
    if old.kind in SLA_KINDS:  # what an SLA's value became is told once, where it is declared
        return None
    if new.kind == "reading" and old.reading and new.reading and old.reading.formats != new.reading.formats:
        return _format_change(old, new, place)
    if RANKS.get(new.severity, 9) < RANKS.get(old.severity, 9):
        text = f"{about}: rows that break '{asks(new)}' are set aside; before they refused the batch."
        return change(place, "severity_lowered", old.severity, new.severity, "", text)
    if "values" in differ:
        more = [value for value in new.values if value not in old.values]
        text = f"{about}: {', '.join(map(repr, more[:5])) or 'more'} is allowed too."
        return change(place, "enum_member_added", old.values, new.values, "", text)
    if not differ:
        text = f"{about}: '{asks(new)}' may now be {new.limit.text}, it was {old.limit.text}."
        return change(place, "limit_loosened", old.limit.text, new.limit.text, "", text)
    if differ == {"missing"}:
        text = f"{about}: other texts count as missing; every batch that passed still passes."
        return change(place, "missing_values_changed", old.missing, new.missing, "", text)
    text = f"{about}: {asks(new)}; before: {asks(old)}."
    return change(place, f"{_word(new)}_widened", asks(old), asks(new), "", text)


def _format_change(old: Rule, new: Rule, place: Place) -> Change:
    before, after = (rule.reading.formats if rule.reading else () for rule in (old, new))
    text = f"{_about(new)}: times are written as {' or '.join(after)}; before as {' or '.join(before)}."
    return change(place, "format_changed", before, after, "both", text)


def _shown(rule: Rule, differ: set[str]) -> str:
    return ", ".join(f"{name}={getattr(rule, name)!r}" for name in sorted(differ)) or rule.limit.text


def _word(rule: Rule) -> str:
    return NAMES.get(rule.kind, "rule")


def _about(rule: Rule) -> str:
    return f"column {rule.subject}" if rule.columns else "the batch"
