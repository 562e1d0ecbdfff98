"""What can be known to be wrong before a source is read: the contracts and the feature service of a recipe."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from components.core.errors import UserError
from components.core.paths import find
from components.core.recipe import Recipe


def check_project(recipe: Recipe) -> None:
    """Load the contracts and look for the feature service.

    Raises:
        UserError: a contract cannot be read or checked, the feature project is not there or declares no such service.
    """
    from components.contract.standard.contract import load
    from components.features.repository import locate, nearest

    load(find(recipe.contract.path, "contract"))
    if recipe.contract.training:
        load(find(recipe.contract.training, "training contract"))
    service, repo = recipe.features.service, recipe.features.repo
    services = declared_services(locate(repo) / "features.py")
    if services and not any(re.fullmatch(pattern, service) for pattern in services.values()):
        near = nearest(service, list(services))
        raise UserError(f"features.service {service!r}: {repo}/features.py declares no such service{near}")


def declared_services(path: Path) -> dict[str, str]:
    """The feature services that a file declares, without importing Feast: as written, and as a regular expression.

    A part of a name that is computed (`f"triage_{version}"`) may be anything; none where a whole name is computed.

    Raises:
        UserError: the file is not Python.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error}); mend it") from error
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "FeatureService":
            given = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
            parts = _parts(given[0]) if len(given) == 1 else None
            if parts is None:
                return {}
            names["".join(part or "*" for part in parts)] = "".join(re.escape(part) if part else ".+" for part in parts)
    return names


def _parts(value: ast.expr) -> list[str] | None:
    """The literal parts of a text, "" for a computed one; None where the expression is no text."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return [value.value]
    if isinstance(value, ast.JoinedStr):
        return [str(part.value) if isinstance(part, ast.Constant) else "" for part in value.values]
    return None
