"""What a model reads and answers, as columns: the input signature of its registered version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def input_schema(signature: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Columns {"name", "type", "required"} of inputs and outputs, from `pilotline.json` of the model.

    Features are doubles and may be missing (no history yet); the text is asked for where the model reads any.
    """
    inputs = [{"name": name, "type": "double", "required": False} for name in signature["features"]]
    if signature.get("text_tokens"):
        inputs.append({"name": "text", "type": "string", "required": True})
    return {"inputs": inputs, "outputs": [{"name": "score", "type": "double", "required": True}]}
