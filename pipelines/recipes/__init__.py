"""Whole named runs as TOML: `laptop`, `complaints-real`, `complaints-windows`."""

from __future__ import annotations

from pathlib import Path

from components.core.errors import UserError

FOLDER = Path(__file__).parent


def locate(name: str) -> Path:
    """A recipe's file from its name or path; UserError lists what is shipped."""
    given = Path(name).expanduser()
    if given.suffix == ".toml" or given.is_file():
        return given
    shipped = sorted(path.stem for path in FOLDER.glob("*.toml"))
    if name not in shipped:
        raise UserError(f"recipe {name!r}: not one of {', '.join(shipped)}, and no file of that name")
    return FOLDER / f"{name}.toml"
