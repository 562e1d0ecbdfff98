"""Personal data in what is shipped: the text in a model's files, above all its vocabulary.

What is measured: strings in JSON files (keys and values, so tokens, merges and metadata), lines of text files, and the
metadata in the head of each safetensors file, against patterns of e-mail addresses, phone numbers (with separators),
US social security numbers and payment card numbers (with a valid check digit). What is not: names and postal addresses,
numbers in other forms, and whatever the weights hold, of which the memorisation tests say something.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.core.personal_data import KINDS, count_kinds
from components.models.files import check_files

LONGEST_HEAD = 100 << 20

__all__ = ["KINDS", "count_kinds", "find_personal_data"]


def find_personal_data(model_dir: Path) -> dict[str, int]:
    """How many strings of each kind the model's files hold; all kinds are there, 0 where nothing was found.

    Raises:
        IntegrityError: the directory holds a file that no model directory may hold.
    """
    found = dict.fromkeys(KINDS, 0)
    for path in check_files(model_dir):
        for text in _texts(path):
            for kind, count in count_kinds(text).items():
                found[kind] += count
    return found


def _texts(path: Path) -> Iterator[str]:
    if path.suffix == ".safetensors":
        yield from _strings(_head(path).get("__metadata__", {}))
    elif path.suffix == ".json":
        yield from _strings(json.loads(path.read_text(encoding="utf-8")))
    else:
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def _head(path: Path) -> dict[str, Any]:
    """The JSON head of a safetensors file: its length in eight bytes, then itself; {} where there is none."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not 0 < size <= min(LONGEST_HEAD, path.stat().st_size):
            return {}
        try:
            head = json.loads(stream.read(size))
        except ValueError:
            return {}
    return head if isinstance(head, dict) else {}


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
