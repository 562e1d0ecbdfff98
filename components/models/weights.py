"""The header of a safetensors file, read before anything else opens the file.

Layout: 8 bytes with the header's length (little endian), the header as JSON, then the tensors' bytes. Offsets have to
cover those bytes without gap and overlap: what no tensor names could be a file of another kind behind the weights.
https://github.com/huggingface/safetensors, section Format.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError

LARGEST_HEADER_BYTES = 100_000_000  # as the format's own reader allows
LENGTH_BYTES = 8


def check_weights(path: Path) -> None:
    """Check that a file is safetensors from its first to its last byte, without reading a tensor.

    Raises:
        IntegrityError: the file is too short, its header has an absurd length or is no JSON object, or its offsets
            do not cover the rest of the file exactly.
    """
    size = path.stat().st_size
    if size < LENGTH_BYTES + 2:
        raise _refused(path, f"{size} bytes are no safetensors file")
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(LENGTH_BYTES))
        if not 2 <= length <= min(LARGEST_HEADER_BYTES, size - LENGTH_BYTES):
            raise _refused(path, f"its header claims {length} bytes, the file has {size}")
        text = stream.read(length)
    spans = _spans(path, text)
    end = 0
    for start, stop in sorted(spans):
        if start != end or stop < start:
            raise _refused(path, f"tensors leave a gap or overlap at byte {end}")
        end = stop
    if end != size - LENGTH_BYTES - length:
        raise _refused(path, f"tensors take {end} bytes, the file holds {size - LENGTH_BYTES - length}")


def _spans(path: Path, text: bytes) -> list[tuple[int, int]]:
    """The byte range of every tensor."""
    try:
        header = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"its header is not readable JSON ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise _refused(path, "its header is no JSON object")
    tensors = [value for name, value in header.items() if name != "__metadata__"]
    if not all(_is_tensor(value) for value in tensors):
        raise _refused(path, "its header names something that is no tensor")
    return [(int(value["data_offsets"][0]), int(value["data_offsets"][1])) for value in tensors]


def _is_tensor(value: Any) -> bool:
    offsets = value.get("data_offsets") if isinstance(value, dict) else None
    return (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(at) is int and at >= 0 for at in offsets)
        and isinstance(value.get("dtype"), str)
        and isinstance(value.get("shape"), list)
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where a name is there twice, of which two readers may take two."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refused(path: Path, why: str) -> IntegrityError:
    return IntegrityError(f"{path}: {why}; restore the files or train the model again")
