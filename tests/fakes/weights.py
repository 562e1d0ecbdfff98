"""Weight files whose content does not matter: safetensors with a text as the bytes of one tensor."""

from __future__ import annotations

import json
import struct


def weights(text: str) -> bytes:
    """A valid safetensors file that differs with the text."""
    data = text.encode()
    tensor = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    header = json.dumps({"text": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + data
