"""Plans for a person: memory as bars, tables, reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BAR = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"


def memory_bars(parts: Mapping[str, float], total_gib: float, notes: Mapping[str, str]) -> list[str]:
    """One line a part: its GiB and a bar in proportion to the GPU's memory."""
    width = max(map(len, parts))
    scale = max(total_gib, sum(value for value in parts.values() if value > 0))
    return [
        f"  {name:<{width}}  {value:8.1f}  {bar(value / scale):<{BAR}}  {notes.get(name, '')}".rstrip()
        for name, value in parts.items()
    ]


def bar(share: float) -> str:
    """A bar of up to 40 characters in eighths of one; something above 0 is always seen."""
    eighths = round(max(min(share, 1.0), 0.0) * BAR * 8)
    eighths = max(eighths, 1) if share > 0 else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Columns aligned: numbers right, words left; the last column is not padded."""
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    right = [all(_is_number(row[n]) for row in rows) and bool(rows) for n in range(len(header))]
    widths = [max(len(row[n]) for row in cells) for n in range(len(header))]
    return ["  " + "  ".join(_pad(row[n], widths[n], right[n]) for n in range(len(row))).rstrip() for row in cells]


def listed(title: str, lines: Sequence[str]) -> list[str]:
    """A titled list, nothing where it is empty."""
    return ["", title, *[f"  {line}" for line in lines]] if lines else []


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _pad(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
