"""The YAML of a contract with places: every error names the file and the path in it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from components.core.errors import UserError


@dataclass(frozen=True)
class Node:
    """A value of the file and where it stands."""

    value: Any
    file: str
    path: str = ""

    def fail(self, text: str) -> NoReturn:
        """Raise a UserError that names this place."""
        raise UserError(f"contract {self.file}: {self.path}{': ' if self.path else ''}{text}")

    def keys(self, known: Collection[str]) -> Node:
        """This node, checked to be a mapping of known keys."""
        if not isinstance(self.value, dict):
            self.fail(f"is {self.value!r}; write a mapping")
        for key in self.value:
            if key not in known:
                near = difflib.get_close_matches(str(key), sorted(known), n=1, cutoff=0.5)
                self.fail(f"unknown key {str(key)!r}{f'; did you mean {near[0]!r}?' if near else '; remove it'}")
        return self

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a key, of this type, or the default where it is absent or null."""
        value = self.value.get(key)
        if value is None:
            return default
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            self.at(key).fail(f"is {value!r}; write {' or '.join(item.__name__ for item in allowed)}")
        return value

    def at(self, key: str) -> Node:
        """The node below a key."""
        return Node(self.value.get(key), self.file, f"{self.path}.{key}" if self.path else key)

    def items(self, key: str) -> list[Node]:
        """The nodes of a list below a key; none where the key is absent."""
        values = self.get(key, list, [])
        return [Node(value, self.file, f"{self.at(key).path}[{number}]") for number, value in enumerate(values)]

    def custom(self) -> dict[str, Any]:
        """customProperties as a dictionary."""
        entries = self.items("customProperties")
        return {
            str(entry.value.get("property")): entry.value.get("value") for entry in entries if entry.keys(CUSTOM_KEYS)
        }


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


CUSTOM_KEYS = words("id property value description vendor")


def read_yaml(path: Path) -> Node:
    """The file's mapping; UserError where it is absent, not YAML, or holds a key twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"contract {path}: no such file; check contract.path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"contract {path}: cannot be read ({error}); give a UTF-8 YAML file") from error
    try:
        value = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"contract {path}: not valid YAML ({error}); mend that line") from error
    if not isinstance(value, dict):
        raise UserError(f"contract {path}: holds no mapping; write an Open Data Contract Standard file")
    return Node(value, str(path))


class _UniqueKeys(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice; the plain one lets the last win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
