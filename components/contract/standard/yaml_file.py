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
ALIASED, DEPTH = 50_000, 100


def read_yaml(path: Path) -> Node:
    """The file's mapping; UserError where it is absent, not YAML, or holds a key twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"contract {path}: no such file; check contract.path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"contract {path}: cannot be read ({error}); give a UTF-8 YAML file") from error
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"contract {path}: not valid YAML ({error}); mend that line") from error
    if not isinstance(value, dict):
        raise UserError(f"contract {path}: holds no mapping; write an Open Data Contract Standard file")
    return Node(value, str(path))


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; ValueError, on one line, where it is none or where its aliases have no end.

    Aliases may add ALIASED nodes to those that are written, and nothing is nested deeper than DEPTH.
    """
    try:
        return yaml.load(text, Loader=_Checked)  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error


class _Checked(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where the plain one lets the last win, and aliases that expand."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[int, tuple[int, int]] = {}  # by the node's id: nodes once expanded, levels
        self._written = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node; its aliases are counted before anything is built of them."""
        alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark
        node = super().compose_node(parent, index)
        if node is None or (alias and id(node) in self._sizes):
            return node
        if alias:
            raise yaml.composer.ComposerError(None, None, "an alias refers to what it stands in", mark)
        self._written += 1
        inner = [self._sizes[id(child)] for child in _children(node)]
        size, depth = 1 + sum(count for count, _ in inner), 1 + max((levels for _, levels in inner), default=0)
        if size - self._written > ALIASED or depth > DEPTH:
            what = f"is nested deeper than {DEPTH} levels" if depth > DEPTH else f"grows by more than {ALIASED} values"
            raise yaml.composer.ComposerError(None, None, f"with its aliases written out it {what}", mark)
        self._sizes[id(node)] = size, depth
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
