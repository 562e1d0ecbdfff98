"""One change between two versions of a contract, and the two versions laid side by side."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from components.contract.evolution.document import Place, item_names, leaves, place_of
from components.contract.evolution.versions import Version
from components.contract.standard.contract import load
from components.contract.standard.rules import Column, DataContract, Rule
from components.contract.standard.yaml_file import read_yaml

LIKELY_RENAME = 0.6


@dataclass(frozen=True)
class Change:
    """One difference.

    path: where it stands, by names. kind: what it is, in snake case. old, new: what stood there; None for nothing.
    bump: the part of the version that it asks for: major, minor or patch. breaks: producers, consumers, both or "".
    text: one sentence.
    """

    path: str
    kind: str
    old: Any
    new: Any
    bump: str
    breaks: str
    text: str

    @property
    def breaking(self) -> bool:
        """Whether it needs a new major version."""
        return self.bump == "major"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"path": self.path, "kind": self.kind, "breaking": self.breaking, **asdict(self)}


def asks(rule: Rule) -> str:
    """What a rule asks, in words; its kind where there are none for it."""
    try:
        return rule.asks
    except KeyError:
        return f"keeps the rule of kind {rule.kind}"


def change(place: Place, kind: str, old: Any, new: Any, breaks: str, text: str, bump: str = "minor") -> Change:
    """A change at a place; major where it breaks anybody, else `bump`."""
    return Change(".".join(place), kind, _plain(old), _plain(new), "major" if breaks else bump, breaks, text)


@dataclass(frozen=True)
class Release:
    """One version of a contract: its rules, and its file's content as leaves."""

    contract: DataContract
    document: Mapping[str, Any]
    leaves: Mapping[Place, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load a contract; UserError where it cannot be loaded or its version is no semantic version."""
        contract, document = load(path), read_yaml(path).value
        Version.parse(contract.version, str(path))
        return cls(contract, document, leaves(document))

    @property
    def table(self) -> Place:
        """Where the schema object stands."""
        return ("schema", item_names(self.document["schema"], "schema")[0])

    def place(self, rule: Rule) -> Place:
        """Where a rule stands."""
        return place_of(self.document, rule.where)

    def leaf(self, column: str, *keys: str) -> Any:
        """A key of a column's property; None where it is not given."""
        return self.leaves.get((*self.table, "properties", column, *keys))


@dataclass(frozen=True)
class Pair:
    """Two versions; `old` and `old_leaves` speak of what was probably renamed by its new name.

    renames: old name to new name of columns. removed, added: columns that only one version has.
    """

    old: DataContract
    new: DataContract
    before: Release
    after: Release
    old_leaves: Mapping[Place, Any]
    renames: Mapping[str, str]
    removed: frozenset[str]
    added: frozenset[str]

    @classmethod
    def of(cls, old: Release, new: Release) -> Self:
        """Lay two versions side by side."""
        before, after = ({column.name for column in side.contract.columns} for side in (old, new))
        renames = _renames(old, new, sorted(before - after), sorted(after - before))
        gone, come = before - after - set(renames), after - before - set(renames.values())
        return cls(
            old=_renamed(old.contract, renames),
            new=new.contract,
            before=old,
            after=new,
            old_leaves={_moved(place, old.table, new.table, renames): leaf for place, leaf in old.leaves.items()},
            renames=renames,
            removed=frozenset(gone),
            added=frozenset(come),
        )

    @property
    def shared(self) -> list[tuple[Column, Column]]:
        """The columns that both have, old and new."""
        new = {column.name: column for column in self.new.columns}
        return [(column, new[column.name]) for column in self.old.columns if column.name in new]

    def column_place(self, name: str, *keys: str) -> Place:
        """Where a column stands, or a key of it."""
        return (*self.after.table, "properties", name, *keys)

    def of_column(self, name: str, *keys: str) -> tuple[Any, Any]:
        """A key of a column that both have, old and new."""
        place = self.column_place(name, *keys)
        return self.old_leaves.get(place), self.after.leaves.get(place)


def _renames(old: Release, new: Release, gone: Sequence[str], come: Sequence[str]) -> dict[str, str]:
    """The likely new names of columns that are gone, the likeliest first."""
    scored = sorted(((_likeness(old, new, one, other), one, other) for one in gone for other in come), reverse=True)
    found: dict[str, str] = {}
    for score, one, other in scored:
        if score >= LIKELY_RENAME and one not in found and other not in found.values():
            found[one] = other
    return found


def _likeness(old: Release, new: Release, gone: str, come: str) -> float:
    """How likely a new column is an old one renamed: its name, its description, its rules; a synonym settles it."""
    if old.leaf(gone, "logicalType") != new.leaf(come, "logicalType"):
        return 0.0
    start = (*new.table, "properties", come, "synonyms")
    synonyms = {_folded(place[-1]) for place in new.leaves if place[: len(start)] == start}
    if _folded(gone) in synonyms:
        return 2.0
    score = difflib.SequenceMatcher(None, _folded(gone), _folded(come)).ratio()
    said = old.leaf(gone, "description")
    score += 0.4 if said and said == new.leaf(come, "description") else 0.0
    mine, theirs = (_asked(side.contract, name) for side, name in ((old, gone), (new, come)))
    return score + (0.4 if mine == theirs and len(mine) > 1 else 0.0)


def _asked(contract: DataContract, name: str) -> set[tuple[str, str, str]]:
    rules = [rule for rule in contract.rules if rule.columns == (name,) and rule.kind != "note"]
    return {(rule.kind, rule.severity, asks(rule)) for rule in rules}


def _folded(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _renamed(contract: DataContract, renames: Mapping[str, str]) -> DataContract:
    """The contract with other names for its columns."""

    def named(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(renames.get(name, name) for name in names)

    columns = tuple(replace(column, name=renames.get(column.name, column.name)) for column in contract.columns)
    rules = tuple(replace(rule, columns=named(rule.columns), targets=named(rule.targets)) for rule in contract.rules)
    return replace(contract, columns=columns, rules=rules)


def _moved(place: Place, old_table: Place, new_table: Place, renames: Mapping[str, str]) -> Place:
    """A place of the old version as it is called in the new one."""
    if place[:2] != old_table:
        return place
    rest = place[2:]
    if rest[:1] == ("properties",) and len(rest) > 1:
        rest = ("properties", renames.get(rest[1], rest[1]), *rest[2:])
    return (*new_table, *rest)


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return list(value) if isinstance(value, tuple | list | set | frozenset) else str(value)
