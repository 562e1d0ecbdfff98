"""The model card: what a version is for, how it was judged and where it comes from, as Markdown and HTML.

Sections follow Mitchell et al., Model Cards for Model Reporting (2019). No time stamps: the same inputs, the same card.
What happens to the version afterwards (approvals, promotions) is read from the ledger when the card is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError

APPROVALS = "Approvals and promotions"
CARD = "card.json"
MARKS = re.compile(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)|^[#>]|^[+-](?=\s)|!(?=\[)")  # what Markdown would take for its own

_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:24px auto}"
    "body{padding:0 16px}"
    "table{border-collapse:collapse}th,td{padding:4px 12px 4px 0;text-align:left;border-bottom:1px solid #8886}"
    "td{overflow-wrap:anywhere}"
)


@dataclass(frozen=True)
class Part:
    """A section: sentences, then a table with a head."""

    title: str
    sentences: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = field(default=())


def write_card(folder: Path, title: str, parts: Sequence[Part]) -> None:
    """Write card.json (the parts), card.md and card.html into a folder."""
    (folder / CARD).write_text(json.dumps({"title": title, "parts": [asdict(part) for part in parts]}, indent=1))
    (folder / "card.md").write_text(as_markdown(title, parts), encoding="utf-8")
    (folder / "card.html").write_text(as_html(title, parts), encoding="utf-8")


def read_card(folder: Path) -> tuple[str, list[Part]]:
    """Title and parts of a card that was written; IntegrityError where there is none."""
    try:
        values = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return str(values["title"]), [_part(part) for part in values["parts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{folder}: no readable model card ({type(error).__name__}); register again") from error


def with_approvals(parts: Sequence[Part], rows: Sequence[tuple[str, ...]]) -> list[Part]:
    """The card with what the ledger says now: rows of time, event, by whom, reason."""
    said = Part(APPROVALS, (), ("time", "event", "by", "reason"), tuple(rows))
    return [said if part.title == APPROVALS and rows else part for part in parts]


def as_markdown(title: str, parts: Sequence[Part]) -> str:
    """The card as Markdown; bars and line breaks in values cannot break a table."""
    lines = [f"# {_flat(title)}"]
    for part in parts:
        lines += ["", f"## {part.title}", ""]
        lines += [f"{_flat(sentence)}  " for sentence in part.sentences]
        if part.rows:
            lines += ["", "| " + " | ".join(part.head) + " |", "|" + "---|" * len(part.head)]
            lines += ["| " + " | ".join(map(_flat, row)) + " |" for row in part.rows]
    return "\n".join(lines) + "\n"


def as_html(title: str, parts: Sequence[Part]) -> str:
    """The card as one self-contained page; every value is escaped."""
    body = f"<h1>{escape(title)}</h1>"
    for part in parts:
        body += f"<h2>{escape(part.title)}</h2>" + "".join(f"<p>{escape(text)}</p>" for text in part.sentences)
        if part.rows:
            head = "".join(f"<th>{escape(cell)}</th>" for cell in part.head)
            rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in part.rows]
            body += f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def _part(values: Mapping[str, Any]) -> Part:
    rows = tuple(tuple(map(str, row)) for row in values["rows"])
    return replace(Part(values["title"]), sentences=tuple(values["sentences"]), head=tuple(values["head"]), rows=rows)


def _flat(text: str) -> str:
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return MARKS.sub(r"\\\g<0>", plain)
