"""Changes in a contract's file that no rule tells of: columns, types, tags, extensions, words. Unknown keys break."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from components.contract.evolution.changes import Change, Pair, change
from components.contract.evolution.document import Place
from components.contract.evolution.rule_changes import holds_when_empty
from components.contract.evolution.sql_text import folded
from components.contract.standard.own_properties import OWN_TAGS
from components.contract.standard.yaml_file import words

WORDING = words(
    "name description businessName businessImpact dimension authoritativeDefinitions examples synonyms label id url "
    "dataGranularityDescription transformSourceObjects transformLogic transformDescription criticalDataElement "
    "semanticType method schedule scheduler context vendor"
)
ABOUT = words(
    "apiVersion kind name tenant domain dataProduct description tags team roles support price slaDefaultElement "
    "authoritativeDefinitions contractCreatedTs context"
)
PHYSICAL = words("partitioned partitionKeyPosition primaryKeyPosition deprecated")
OF_RULES = words("required unique primaryKey enum logicalTypeOptions quality relationships")
OF_RULES_CUSTOM = ("columnPresence", "ruleSeverity", "maxQuarantinePercent")
DRIFT = ("driftOfMeaning", "driftRowCountFactor", "driftNullSharePoints", "driftHistory")
DRIFT_RANKS = {"off": 0, "warning": 1, "error": 2}


def structure_changes(pair: Pair) -> list[Change]:
    """Identity, table, columns that came, went or were renamed, types, presence, key and the quarantine's cap."""
    old, new = pair.before, pair.after
    found = []
    if old.contract.identity != new.contract.identity:
        text = f"the id is {new.contract.identity!r}, it was {old.contract.identity!r}: another contract."
        found.append(change(("id",), "contract_id_changed", old.contract.identity, new.contract.identity, "both", text))
    if old.table != new.table:
        text = f"the table is called {new.table[1]!r}, it was {old.table[1]!r}."
        found.append(change((*old.table, "name"), "table_renamed", old.table[1], new.table[1], "both", text))
    found += [_renamed(pair, *names) for names in sorted(pair.renames.items())]
    found += [_removed(pair, name) for name in sorted(pair.removed)]
    found += [_added(pair, name) for name in sorted(pair.added)]
    return [*found, *_columns(pair), *_key(pair), *_cap(pair)]


def retyped(pair: Pair) -> frozenset[str]:
    """Shared columns whose logical type changed."""
    return frozenset(old.name for old, _ in pair.shared if len(set(_types(pair, old.name))) > 1)


def document_changes(pair: Pair, touched: Set[str]) -> list[Change]:
    """Every other leaf of the file that differs.

    Args:
        pair: both versions.
        touched: columns whose changed rules are told already, "" for the table.
    """
    before, after = pair.old_leaves, pair.after.leaves
    items = [{_quality_item(place) for place in leaves} for leaves in (before, after)]
    told: dict[str, Change] = {}
    for place in {**before, **after}:
        old, new = before.get(place), after.get(place)
        item = _quality_item(place)
        if old == new or (item and place[-1] == "query" and folded(str(old)) == folded(str(new))):
            continue
        whole = bool(item) and (item in items[0]) != (item in items[1])  # what a rule asks is told with the rules
        if made := _leaf(pair, item, None, None, touched) if whole else _leaf(pair, place, old, new, touched):
            told.setdefault(made.path, made)
    return list(told.values())


def _quality_item(place: Place) -> Place:
    """The rule in a `quality` list to which a leaf belongs; empty where it belongs to none."""
    at = 4 if place[2:3] == ("properties",) else 2
    return place[: at + 2] if place[:1] == ("schema",) and place[at : at + 1] == ("quality",) else ()


def _renamed(pair: Pair, old: str, new: str) -> Change:
    text = f"column {old!r} is gone and {new!r} is new with the same type: a rename; who reads {old!r} breaks."
    return change((*pair.before.table, "properties", old), "column_renamed", old, new, "both", text)


def _removed(pair: Pair, name: str) -> Change:
    text = f"column {name!r} is removed; who reads it breaks."
    return change((*pair.before.table, "properties", name), "column_removed", name, None, "consumers", text)


def _added(pair: Pair, name: str) -> Change:
    place, column = pair.column_place(name), pair.new.column(name)
    if not holds_when_empty(pair.new, name):
        text = f"column {name!r} is new and must hold values; batches made for the old version have none."
        return change(place, "required_column_added", None, name, "producers", text)
    where = "may be absent" if column.optional else "may be empty; until sources send it, say columnPresence: optional"
    return change(place, "column_added", None, name, "", f"column {name!r} is new; it {where}.")


def _types(pair: Pair, name: str) -> tuple[str, str]:
    old, new = pair.of_column(name, "logicalType")
    return str(old or "string"), str(new or "string")


def _columns(pair: Pair) -> Iterable[Change]:
    for old, new in pair.shared:
        name = new.name
        before, after = _types(pair, name)
        if before != after:
            text = f"column {name!r} is a {after}, it was a {before}."
            yield change(pair.column_place(name, "logicalType"), "type_changed", before, after, "both", text)
        if old.optional != new.optional:
            place = pair.column_place(name, "customProperties", "columnPresence")
            said = "absent" if new.optional else "there in every batch"
            breaks, kind = ("consumers", "may_be_absent") if new.optional else ("producers", "must_be_present")
            verb = "may" if new.optional else "must"
            yield change(place, kind, None, None, breaks, f"column {name!r} {verb} now be {said}.")


def _key(pair: Pair) -> Iterable[Change]:
    old, new = (
        sorted(place[3] for place, leaf in side.items() if place[4:] == ("primaryKey",) and leaf is True)
        for side in (pair.old_leaves, pair.after.leaves)
    )
    if old != new:
        text = f"the primary key is {', '.join(new) or 'none'}, it was {', '.join(old) or 'none'}."
        yield change((*pair.after.table, "primaryKey"), "key_changed", old, new, "both", text)


def _cap(pair: Pair) -> Iterable[Change]:
    old, new = pair.old.max_quarantine_percent, pair.new.max_quarantine_percent
    if old != new:
        place = (*pair.after.table, "customProperties", "maxQuarantinePercent")
        kind, breaks = ("quarantine_cap_lowered", "producers") if new < old else ("quarantine_cap_raised", "")
        yield change(place, kind, old, new, breaks, f"up to {new:g} % of the rows may be set aside, before {old:g} %.")


def _leaf(pair: Pair, place: Place, old: Any, new: Any, touched: Set[str]) -> Change | None:
    """What one differing leaf means; None where it is told elsewhere."""
    top = place[0]
    if top in ("version", "id", "slaProperties"):
        return None
    if top == "status":
        text = f"the status is {new}, it was {old}."
        return change(place, "status_changed", old, new, "consumers" if new == "retired" else "", text)
    if top == "servers":
        return change(place, "server_changed", old, new, "", f"{'.'.join(place)} is {new}, it was {old}.")
    if top in ABOUT:
        return _worded(place, old, new)
    if place[:2] == pair.after.table and len(place) > 2:
        if place[2] != "properties":
            return _inner(place, place[2:], old, new, "" in touched, "the table")
        if place[3] in pair.removed | pair.added:
            return None
        return _inner(place, place[4:], old, new, place[3] in touched, f"column {place[3]!r}")
    return _unknown(place, old, new)


def _inner(place: Place, keys: Place, old: Any, new: Any, touched: bool, about: str) -> Change | None:
    """A leaf of the schema object or of a property; `keys` are those below it."""
    key = keys[0]
    if key == "logicalType" or (key == "name" and len(keys) == 1) or keys[:2] == ("customProperties", "columnPresence"):
        return None
    if key == "customProperties":
        return _custom(place, keys, old, new, touched, about)
    if keys[-1] in WORDING and len(keys) > 1 and key not in WORDING:
        return _worded(place, old, new)
    if key in WORDING:
        return _worded(place[: len(place) - len(keys) + 1], old, new)
    if key in OF_RULES:
        return None if touched else _restated(place, old, new, about)
    if key in ("physicalType", "physicalName"):
        breaks = "" if old is None and key == "physicalType" else "both"
        said = key.replace("physical", "physical ").lower()
        kind = f"physical_{key.removeprefix('physical').lower()}_changed"
        return change(place, kind, old, new, breaks, f"{about}: the {said} is {new}, it was {old}.")
    if key == "tags":
        return _tag(place, keys, old, new, about)
    if key == "classification":
        breaks = "" if old is None else "both"
        return change(place, "classification_changed", old, new, breaks, f"{about}: classified {new}, was {old}.")
    if key in PHYSICAL:
        return change(place, "layout_changed", old, new, "", f"{about}: {key} is {new}, it was {old}.")
    return _unknown(place, old, new)


def _custom(place: Place, keys: Place, old: Any, new: Any, touched: bool, about: str) -> Change | None:
    """An extension: those that make rules are told with the rules; what is not known breaks."""
    name = keys[1]
    if keys[-1] in ("property", "id", "description", "vendor"):
        return None if keys[-1] == "property" else _worded(place, old, new)
    if name in OF_RULES_CUSTOM:
        return None if touched or name == "maxQuarantinePercent" else _restated(place, old, new, about)
    if name in DRIFT:
        raised = name == "driftOfMeaning" and DRIFT_RANKS.get(str(new), 2) > DRIFT_RANKS.get(str(old or "warning"), 0)
        breaks = "producers" if raised and new == "error" else ""
        return change(place, "drift_setting_changed", old, new, breaks, f"{about}: {name} is {new}, it was {old}.")
    if name == "availability":
        text = f"{about}: availability is {new or 'not declared'}, it was {old or 'not declared'}."
        return change(place, "availability_changed", old, new, "both", text)
    return _unknown(place, old, new)


def _tag(place: Place, keys: Place, old: Any, new: Any, about: str) -> Change:
    if keys[-1] not in OWN_TAGS or (old is not None and new is not None):
        return _worded(place, old, new)
    gone = new is None
    text = f"{about}: {'no longer tagged' if gone else 'tagged'} {keys[-1]}."
    return change(place, "tag_removed" if gone else "tag_added", old, new, "consumers" if gone else "", text)


def _worded(place: Place, old: Any, new: Any) -> Change:
    return change(place, "wording", old, new, "", f"{'.'.join(place)}: the wording changed.", bump="patch")


def _restated(place: Place, old: Any, new: Any, about: str) -> Change:
    return change(place, "restated", old, new, "", f"{about}: written otherwise, asks the same.", bump="patch")


def _unknown(place: Place, old: Any, new: Any) -> Change:
    text = f"{'.'.join(place)} is {new!r}, it was {old!r}; what that means is not known here, so it counts as breaking."
    return change(place, "unknown_changed", old, new, "both", text)
