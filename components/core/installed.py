"""What is installed where a step ran: name and version of every distribution, as one digest."""

from __future__ import annotations

import importlib.metadata
import platform
import re

from components.core.digest import value_digest


def installed_digest() -> str:
    """sha256 of the sorted `name==version` lines of the running environment and its Python version.

    It is that of the environment itself and not of a lock file, which says what was asked for.
    """
    return value_digest([f"python=={platform.python_version()}", *installed()])


def installed() -> list[str]:
    """Sorted `name==version` lines, names in their normal form (PEP 503), each once."""
    found = {
        f"{re.sub(r'[-_.]+', '-', name).lower()}=={item.version}"
        for item in importlib.metadata.distributions()
        if (name := item.metadata["Name"])
    }
    return sorted(found)
