"""Where the files that a recipe names lie: contracts, feature repositories, recipes."""

from __future__ import annotations

from pathlib import Path

from components.core.errors import UserError

PROJECT_ROOT = Path(__file__).resolve().parents[2]


def find(name: str, what: str) -> Path:
    """A path named in a recipe: as it is, below the working folder, or below the project's root.

    Raises:
        UserError: it is in none of these places.
    """
    given = Path(name).expanduser()
    for candidate in (given.absolute(), PROJECT_ROOT / given):
        if candidate.exists():
            return candidate
    raise UserError(f"{what} {name!r}: not found in {Path.cwd()} nor in {PROJECT_ROOT}; check the path in the recipe")
