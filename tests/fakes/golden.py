"""Golden files: what was reviewed, in tests/golden; PILOTLINE_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "golden"
UPDATE = "PILOTLINE_UPDATE_GOLDEN"


def check_golden(name: str, text: str) -> None:
    """Compare a text with the golden file of this name; an assertion shows the first differing lines."""
    path = FOLDER / name
    if os.environ.get(UPDATE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.exists(), f"{path.name}: no golden file; {UPDATE}=1 writes it"
    reviewed = path.read_text(encoding="utf-8")
    if text != reviewed:
        lines = difflib.unified_diff(reviewed.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=1)
        shown = "\n".join(list(lines)[:40])
        raise AssertionError(f"{name} differs from the golden file; {UPDATE}=1 accepts it:\n{shown}")
