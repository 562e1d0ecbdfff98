"""Our own customProperties and tags: where each may stand, and that no misspelt one is passed over."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from components.contract.standard.yaml_file import CUSTOM_KEYS, Node

TABLE, COLUMN, LEVEL = "the schema object", "a property", "a service level"
PLACES = {
    "columnPresence": (COLUMN,),
    "ruleSeverity": (COLUMN, LEVEL),
    "availability": (COLUMN,),
    "maxQuarantinePercent": (TABLE,),
    "driftOfMeaning": (TABLE, COLUMN),
    "driftHistory": (TABLE,),
    "driftRowCountFactor": (TABLE,),
    "driftNullSharePoints": (TABLE,),
}
OWN_TAGS = ("pii", "protected")
NEAR = 0.8
STANDS = (
    (re.compile(r"schema\[\d+\]"), TABLE),
    (re.compile(r"schema\[\d+\]\.properties\[\d+\]"), COLUMN),
    (re.compile(r"slaProperties\[\d+\]"), LEVEL),
)


def check_own(node: Node) -> None:
    """UserError for one of our customProperties that is misspelt, given twice, or stands where nothing reads it.

    Args:
        node: the document, or what is below it; all is looked through.
    """
    if isinstance(node.value, list):
        for number, item in enumerate(node.value):
            check_own(Node(item, node.file, f"{node.path}[{number}]"))
    if not isinstance(node.value, dict):
        return
    for key in node.value:
        if key == "customProperties":
            _check(node)
        else:
            check_own(node.at(str(key)) if isinstance(key, str) else Node(node.value[key], node.file, node.path))


def own_tag(tag: Any) -> str:
    """A tag as it is compared: `PII` and `Protected` are our tags pii and protected; any other stands as it is."""
    folded = str(tag).strip().lower()
    return folded if folded in OWN_TAGS else str(tag)


def own_tags(tags: Iterable[Any]) -> frozenset[str]:
    """Those of our tags that a list of tags holds."""
    return frozenset(map(own_tag, tags)) & frozenset(OWN_TAGS)


def _check(node: Node) -> None:
    place = next((name for pattern, name in STANDS if pattern.fullmatch(node.path)), "")
    seen = set()
    for entry in node.items("customProperties"):
        name = entry.keys(CUSTOM_KEYS).value.get("property")
        if not isinstance(name, str):
            entry.at("property").fail(f"is {name!r}; name the property")
        if name not in PLACES and (near := _near(name)):
            entry.at("property").fail(f"unknown property {name!r}; did you mean {near!r}?")
        if name not in PLACES:
            continue
        if place not in PLACES[name]:
            entry.at("property").fail(f"{name} has no effect here; write it at {' or '.join(PLACES[name])}")
        if name in seen:
            entry.at("property").fail(f"{name} is given twice; keep one")
        seen.add(name)


def _near(name: str) -> str:
    folded = {_folded(own): own for own in PLACES}
    found = difflib.get_close_matches(_folded(name), list(folded), n=1, cutoff=NEAR)
    return folded[found[0]] if found else ""


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
