"""Who answers for the data behind a model: read from the archived contract, which the standard gives a place for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components.core.digest import file_digest
from components.core.errors import UserError
from components.core.paths import find


@dataclass(frozen=True)
class Owner:
    """The team that owns a data contract; "" where it names none."""

    team: str = ""


def contract_owner(path: str, digest: str) -> Owner:
    """The owner that a contract file names, where the file is still the one of this digest; else nobody.

    Open Data Contract Standard 3.1, section Team: a team with a name and members with roles; before 3.1 a list of
    members.
    """
    import yaml

    try:
        place = find(path, "contract")
        if digest and file_digest(place) != digest:
            return Owner()
        values = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (UserError, OSError, ValueError, yaml.YAMLError):
        return Owner()
    return Owner(_team(values.get("team") if isinstance(values, dict) else None))


def _team(team: Any) -> str:
    members = team.get("members") if isinstance(team, dict) else team
    owners = [
        str(member["username"])
        for member in (members if isinstance(members, list) else [])
        if isinstance(member, dict) and str(member.get("role", "")).lower() == "owner" and "username" in member
    ]
    name = str(team.get("name", "")) if isinstance(team, dict) else ""
    return ", ".join(dict.fromkeys([*([name] if name else []), *owners]))
