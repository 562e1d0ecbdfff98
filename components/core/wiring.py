"""Where a step finds the services of another step.

Step packages never import each other. What a component needs beyond its own package is built in
`pipelines.wiring` and looked up here by name when the component runs.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

WIRING_MODULE = "pipelines.wiring"


def wired(name: str) -> Any:
    """The attribute `name` of the wiring module ($PILOTLINE_WIRING, else pipelines.wiring)."""
    module = importlib.import_module(os.environ.get("PILOTLINE_WIRING", WIRING_MODULE))
    return getattr(module, name)
