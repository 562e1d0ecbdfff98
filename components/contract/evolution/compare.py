"""What changed between two versions of a contract, and whom it breaks.

A change breaks producers where a batch that the old version lets pass may be refused or lose rows under the new one,
and consumers where something that they could rely on is gone. Either is breaking and needs a new major version. What a
value may be can widen (additive: minor), and so can how much is tolerated; a promise that is taken back is breaking.

| what changed | breaking |
|---|---|
| column removed or renamed, table renamed, another contract id | yes |
| column added that must hold values, or whose rules cannot be met by an empty column | yes |
| column added otherwise: empty is allowed, `columnPresence: optional` where it may be absent too | no, minor |
| logical or physical type, date format (readers of it must change) | yes |
| column may now be absent, or may no longer be | yes |
| primary key; unique added or removed; required added or removed | yes |
| enum, range, length, quality limit: narrower, or a rule added | yes |
| enum, range, length, quality limit: wider | no, minor |
| a rule removed altogether | yes |
| pattern: provably wider (decided as regular languages) | no, minor |
| pattern: anything else | yes |
| texts that count as missing: unless every batch still passes | yes |
| severity raised, or lowered to info (no longer a promise) | yes |
| severity lowered from error to warning | no, minor |
| quarantine cap lowered; raised | yes; no, minor |
| SLA loosened, removed, or changed in a way that cannot be compared | yes |
| SLA tightened or added: where batches are checked against it; elsewhere | yes; no, minor |
| tag `pii` or `protected`, classification: removed or changed; added | yes; no, minor |
| `availability` of a column | yes |
| status retired | yes |
| query, expectation, reference, or any kind of rule, field or key that is not known here | yes |
| servers, status, deprecation, drift settings | no, minor |
| wording, ownership, links, a rule that is only told, another way to write the same rule | no, patch |

Batches are compared by the columns that the old version declares: a column that a source already sent undeclared
is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from components.contract.evolution.changes import Change, Pair, Release, change
from components.contract.evolution.document_changes import document_changes, retyped, structure_changes
from components.contract.evolution.rule_changes import rule_changes
from components.contract.evolution.sla_changes import sla_changes
from components.contract.evolution.versions import BUMPS, Version
from components.contract.standard.rules import Column, DataContract
from components.contract.standard.yaml_file import words

TOLD_OF_CONTRACT = words(
    "identity name version status digest columns rules max_quarantine_percent table owner key drift"
)
TOLD_OF_COLUMN = words(
    "name optional masked protected logical_type physical_type reading missing description custom availability"
)


@dataclass(frozen=True)
class Comparison:
    """All changes from one version to the other, breaking ones first, and what the version numbers say."""

    old_version: str
    new_version: str
    changes: tuple[Change, ...]

    @property
    def breaking(self) -> bool:
        """Whether any change breaks anybody."""
        return any(found.breaking for found in self.changes)

    @property
    def needed(self) -> str:
        """The part of the version that had to be raised: major, minor, patch or none."""
        return max((found.bump for found in self.changes), key=BUMPS.index, default="none")

    @property
    def raised(self) -> str:
        """The part that was raised; none where the version is equal or went back."""
        return Version.parse(self.new_version, "new").raised_from(Version.parse(self.old_version, "old"))

    @property
    def major_raised(self) -> bool:
        """Whether the new version is a new major version."""
        return self.raised == "major"

    @property
    def accepted(self) -> bool:
        """Whether the new version may take the old one's place."""
        return self.major_raised or not self.breaking

    @property
    def warning(self) -> str:
        """Why the version number is too low for changes that are not breaking; "" where it is not."""
        if self.breaking or BUMPS.index(self.raised) >= BUMPS.index(self.needed):
            return ""
        told = next(found for found in self.changes if found.bump == self.needed)
        return f"version {self.new_version}: raise the {self.needed} version above {self.old_version} ({told.text})"

    @property
    def refusal(self) -> str:
        """The breaking changes in one line; "" where the new version may take the old one's place."""
        if self.accepted:
            return ""
        told = [f"{found.path}: {found.text}" for found in self.changes if found.breaking]
        more = f" (and {len(told) - 8} more)" if len(told) > 8 else ""
        return (
            f"{self.old_version} to {self.new_version} breaks without a new major version: {' '.join(told[:8])}{more}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values, as `pilotline contract diff` prints them."""
        return {
            "breaking": self.breaking,
            "major_raised": self.major_raised,
            "changes": [found.to_dict() for found in self.changes],
            "old_version": self.old_version,
            "new_version": self.new_version,
            "needed": self.needed,
            "warning": self.warning,
        }


def compare(old: Release, new: Release) -> Comparison:
    """All changes between two versions of a contract; pure."""
    if old.contract.digest == new.contract.digest:
        return Comparison(old.contract.version, new.contract.version, ())
    pair = Pair.of(old, new)
    other_type = retyped(pair)
    rules = rule_changes(pair, other_type)
    structure = structure_changes(pair)
    promised = {found.path for found in rules.changes if found.path.startswith("slaProperties.")}
    levels = [found for found in sla_changes(old, new) if found.breaking or found.path not in promised]
    found = [
        *structure,
        *rules.changes,
        *levels,
        *document_changes(pair, rules.touched | other_type),
        *_unknown_facts(pair),
    ]
    found += _version_change(old, new) if found else []
    ordered = sorted(found, key=lambda one: -BUMPS.index(one.bump))
    return Comparison(old.contract.version, new.contract.version, tuple(ordered))


def _version_change(old: Release, new: Release) -> list[Change]:
    """A version that went back, or stayed where the contract changed, is a fault of its own."""
    before, after = old.contract.version, new.contract.version
    order = Version.parse(before, "old").order, Version.parse(after, "new").order
    if order[1] < order[0]:
        text = f"the version went back from {before} to {after}; a change needs a higher one."
        return [change(("version",), "version_went_back", before, after, "both", text)]
    if order[1] == order[0]:
        text = f"the contract changed but the version is still {after}."
        return [change(("version",), "version_not_raised", before, after, "", text, bump="patch")]
    return []


def _unknown_facts(pair: Pair) -> list[Change]:
    """Facts of the contract or a column that this module was never told of: breaking where they differ."""
    found = [
        change((name,), "unknown_changed", getattr(pair.old, name), getattr(pair.new, name), "both", _not_known(name))
        for name in {field.name for field in fields(DataContract)} - TOLD_OF_CONTRACT
        if getattr(pair.old, name) != getattr(pair.new, name)
    ]
    for old, new in pair.shared:
        for name in {field.name for field in fields(Column)} - TOLD_OF_COLUMN:
            if getattr(old, name) != getattr(new, name):
                place = pair.column_place(new.name, name)
                found.append(
                    change(place, "unknown_changed", getattr(old, name), getattr(new, name), "both", _not_known(name))
                )
    return found


def _not_known(name: str) -> str:
    return f"{name} changed; what that means is not known here, so it counts as breaking."
