"""Plans for a person: memory as bars, tables, reasons."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 80  # columns
NARROW = 24  # columns below which the last column of a table is not folded
BAR = 40
ASSUMED = re.compile(r"(?P<field>\w+) not given: (?P<value>[^()]*?) assumed \((?P<why>.*)\)")
EIGHTHS = " ▏▎▍▌▋▊▉█"


def memory_bars(parts: Mapping[str, float], total_gib: float, notes: Mapping[str, str]) -> list[str]:
    """One line a part: its GiB and a bar in proportion to the GPU's memory."""
    width = max(map(len, parts))
    scale = max(total_gib, sum(value for value in parts.values() if value > 0))
    lines = []
    for name, value in parts.items():
        lines.append(f"  {name:<{width}}  {value:8.1f}  {bar(value / scale)}".rstrip())
        if notes.get(name):
            lines.append(f"{'':<{width + 14}}{notes[name]}")
    return lines


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
    return [line for row in cells for line in _folded(row, widths, right)]


def listed(title: str, lines: Sequence[str]) -> list[str]:
    """A titled list, nothing where it is empty."""
    return ["", title, *[part for line in lines for part in folded(f"  {line}")]] if lines else []


def assumed(lines: Sequence[str]) -> list[str]:
    """What was assumed, numbers with the same reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for line in lines:
        found = ASSUMED.fullmatch(line)
        reason, text = (found["why"], f"{found['field']} {found['value']}") if found else (line, "")
        if reason == "the same" and by_reason:
            reason = next(reversed(by_reason))
        by_reason.setdefault(reason, []).append(text)
    told = [f"{', '.join(texts)} assumed ({why})" if texts[0] else why for why, texts in by_reason.items()]
    return listed("not given", told)


def folded(line: str) -> list[str]:
    """A line within the width, what goes on set in by two more."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def pasted(command: str) -> list[str]:
    """A command over several lines that a shell reads as one."""
    lines = textwrap.wrap(command, WIDTH - 6, break_long_words=False, break_on_hyphens=False)
    return [f"  {'  ' * (n > 0)}{line}{' ' + chr(92) if n < len(lines) - 1 else ''}" for n, line in enumerate(lines)]


def size(params: float) -> str:
    """A number of parameters in the unit that suits it."""
    for unit, word in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if params >= 0.9995 * unit:
            return f"{params / unit:.3g}{word}"
    return f"{params:,.0f}"


def _folded(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    """A row, its last column over several lines where it is long."""
    head = "  " + "".join(_pad(row[n], widths[n], right[n]) + "  " for n in range(len(row) - 1))
    room = WIDTH - len(head)
    if right[-1] or room < NARROW:
        return [f"{head}{_pad(row[-1], widths[-1], right[-1])}".rstrip()]
    parts = textwrap.wrap(row[-1], room, break_long_words=False) or [""]
    return [f"{head if n == 0 else ' ' * len(head)}{part}".rstrip() for n, part in enumerate(parts)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _pad(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
