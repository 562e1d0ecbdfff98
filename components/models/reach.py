"""What a model directory's JSON may point at: files of the directory itself, and nothing that a loader would run.

A signature covers the directory's files. A value that makes a loader open another file, or fetch one, would bring in
bytes that nobody signed: so a key that names files may name only those that lie in the directory, and shards are those
of the index, all of them and no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
CODE_KEYS = frozenset(
    {"auto_map", "chat_template", "custom_generate", "custom_pipelines", "trust_remote_code", "code_revision"}
)
BASE_KEYS = re.compile(r"base_model.*|.*_base_model|adapter_.*(?:path|name)", re.ASCII | re.IGNORECASE)
FILE_KEYS = re.compile(r"(?:.*_)?(?:file|filename|dir|directory|folder|uri|url)s?", re.ASCII | re.IGNORECASE)
PLACE_KEYS = re.compile(r"(?:.*_)?paths?", re.ASCII | re.IGNORECASE)  # also of names: `_name_or_path`
OUTSIDE = re.compile(r"^\s*(?:[/~\\]|[a-z]:[/\\]|[a-z][a-z0-9+.-]*://|file:)|(?:^|/)\.\.(?:/|$)|\\", re.IGNORECASE)
CONFIGURATIONS = frozenset({"config.json", "generation_config.json"})  # where no value is a text or a token


def reaches_out(name: str, value: Any, names: set[str]) -> str:
    """Why this file's JSON value is refused, in words; "" where it stays within the directory.

    Args:
        name: the file's name.
        value: what it holds.
        names: of all files of the directory.
    """
    for key, text in _entries(value):  # a number is no name of anything: a vocabulary may hold any word
        if key in CODE_KEYS and text and (isinstance(text, bool) or not isinstance(text, (int, float))):
            return f"{key} makes the loader run code; remove it"
        for item in text if isinstance(text, list) else [text]:
            if isinstance(item, str) and (why := _why(name, key, item, names)):
                return why
    return _shards(value, names) if name == INDEX else ""


def check_shards(names: set[str]) -> str:
    """Why these names of weight files are no set that a loader reads in one way only; "" where they are."""
    shards = {name for name in names if SHARD.fullmatch(name)}
    if shards and SINGLE in names:
        return f"holds {SINGLE} and shards; a loader reads one or the other: remove what is not the model's"
    if shards and INDEX not in names:
        return f"holds shards and no {INDEX}; train the model again"
    return f"holds {INDEX} and no shard; train the model again" if INDEX in names and not shards else ""


def _why(name: str, key: str, text: str, names: set[str]) -> str:
    """Of one string under a key."""
    if not text:
        return ""
    if BASE_KEYS.fullmatch(key):
        return f"{key} names weights of elsewhere; remove it, a model directory holds all of its weights"
    if FILE_KEYS.fullmatch(key) and text not in names:
        return f"{key} names {_shown(text)}, which is no file of the model directory; remove it"
    if (PLACE_KEYS.fullmatch(key) or name in CONFIGURATIONS) and OUTSIDE.search(text):
        return f"{key} points out of the model directory ({_shown(text)}); remove it"
    return ""


def _shards(index: Any, names: set[str]) -> str:
    """The index names every shard of the directory, and only those."""
    kept = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(kept, dict) or not kept or not all(isinstance(shard, str) for shard in kept.values()):
        return "weight_map does not name a file for each tensor; train the model again"
    shards, named = {name for name in names if SHARD.fullmatch(name)}, set(kept.values())
    if outside := sorted(named - shards):
        return f"weight_map names {_shown(outside[0])}, which is no shard of the model directory; train the model again"
    if left := sorted(shards - named):
        return f"weight_map does not name {_shown(left[0])}; remove that file or train the model again"
    return ""


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield from item.items()
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _shown(text: str) -> str:
    return ascii(text[:80])
