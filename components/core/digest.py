"""Content digests: the names by which steps hand things to each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes as 64 hex characters."""
    sha = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            sha.update(chunk)
    return sha.hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no white space; NaN and infinity are refused with ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def value_digest(value: Any) -> str:
    """sha256 of a JSON-serialisable value in canonical form."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def tree_digest(files: Mapping[str, str]) -> str:
    """Digest of a folder, given its files' relative POSIX paths and their digests."""
    return value_digest(dict(files))
