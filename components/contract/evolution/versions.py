"""Semantic versions (semver.org 2.0.0) of contracts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from components.core.errors import UserError

SHAPE = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
BUMPS = ("none", "patch", "minor", "major")


@dataclass(frozen=True)
class Version:
    """major.minor.patch with an optional pre-release; a part that is not written is 0."""

    numbers: tuple[int, int, int]
    pre: str = ""

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Read a version; UserError where it is no semantic version."""
        found = SHAPE.fullmatch(text)
        if not found:
            raise UserError(f"contract {where}: version {text!r} is no semantic version; write MAJOR.MINOR.PATCH")
        major, minor, patch = (int(part or 0) for part in found.groups()[:3])
        return cls((major, minor, patch), found[4] or "")

    @property
    def order(self) -> tuple[object, ...]:
        """What versions are sorted by: a pre-release comes before its release, numbers in it before words."""
        parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre.split(".") if part]
        return (*self.numbers, not self.pre, tuple(parts))

    def raised_from(self, old: Version) -> str:
        """The part that is higher than in `old`: major, minor, patch; none where the version is equal or lower."""
        if not self.order > old.order:
            return "none"
        higher = [mine > theirs for mine, theirs in zip(self.numbers, old.numbers, strict=True)]
        return next((name for name, up in zip(("major", "minor", "patch"), higher, strict=True) if up), "patch")
