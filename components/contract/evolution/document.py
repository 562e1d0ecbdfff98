"""A contract's YAML as leaves at paths that do not move when a list is reordered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from components.contract.standard.own_properties import own_tag

Place = tuple[str, ...]
NAMES = {
    "schema": ("name",),
    "properties": ("name",),
    "slaProperties": ("property", "element"),
    "quality": ("id", "name", "metric", "type"),
    "customProperties": ("property",),
    "enum": ("value",),
    "relationships": ("id", "from", "to"),
    "servers": ("server", "id"),
    "roles": ("role",),
    "members": ("username", "name"),
    "support": ("channel",),
    "authoritativeDefinitions": ("type", "url"),
}
STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def leaves(value: Any, place: Place = ()) -> dict[Place, Any]:
    """Every scalar by its place: keys, and for an item of a list what names it (`schema`, `rows`, `properties`, `id`).

    Scalars in a list stand for themselves, in whatever order they come. Null is absent.
    """
    if isinstance(value, Mapping):
        children = {str(key): item for key, item in value.items()}
    elif isinstance(value, list):
        children = dict(zip(item_names(value, place[-1] if place else ""), value, strict=True))
    else:
        return {} if value is None else {place: value}
    return {at: leaf for name, item in children.items() for at, leaf in leaves(item, (*place, name)).items()}


def item_names(items: list[Any], key: str) -> list[str]:
    """A name for each item of the list below a key; the second of one name is `name #2`."""
    seen: dict[str, int] = {}
    names = []
    for number, item in enumerate(items):
        name = _named(item, key, number)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names


def place_of(document: Mapping[str, Any], where: str) -> Place:
    """A path with positions (`schema[0].properties[3].enum`) as a place; steps that lead nowhere stay as they are."""
    place: list[str] = []
    value: Any = document
    for name, position in STEP.findall(where):
        if position and isinstance(value, list) and int(position) < len(value):
            place.append(item_names(value, place[-1] if place else "")[int(position)])
            value = value[int(position)]
        else:
            place.append(name or position)
            value = value.get(name) if isinstance(value, Mapping) else None
    return tuple(place)


def _named(item: Any, key: str, number: int) -> str:
    if key == "tags":
        return own_tag(item)
    if not isinstance(item, Mapping):
        return str(number) if isinstance(item, list) else str(item)
    known = NAMES.get(key, ())
    if key in ("slaProperties", "relationships"):
        return ":".join(str(item[name]) for name in known if item.get(name) is not None) or str(number)
    return next((str(item[name]) for name in known if item.get(name) is not None), str(number))
