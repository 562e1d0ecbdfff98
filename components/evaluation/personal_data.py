"""Personal data in what is shipped: the text in a model's files, above all its vocabulary.

What is measured: strings in JSON files (keys and values, so tokens, merges and metadata), lines of text files, and the
metadata in the head of each safetensors file, against patterns of e-mail addresses, phone numbers (with separators),
US social security numbers and payment card numbers (with a valid check digit). What is not: names and postal addresses,
numbers in other forms, and whatever the weights hold, of which the memorisation tests say something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.models.files import check_files

KINDS = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,4}\.[A-Za-z]{2,24}\b"),
    "phone": re.compile(r"(?<![\w.-])(?:\+?\d{1,3}[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"),
    "social_security": re.compile(r"(?<![\w.-])(?!000|666)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])"),
    "card": re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)"),
}
LONGEST_HEAD = 100 << 20


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


def count_kinds(text: str) -> dict[str, int]:
    """Finds in one text by kind."""
    return {kind: sum(_valid(kind, match[0]) for match in pattern.finditer(text)) for kind, pattern in KINDS.items()}


def _valid(kind: str, text: str) -> bool:
    return kind != "card" or _check_digit([int(sign) for sign in text if sign.isdigit()])


def _check_digit(digits: list[int]) -> bool:
    """Luhn's rule, ISO/IEC 7812."""
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (doubled + sum(digits[::-2])) % 10 == 0


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
