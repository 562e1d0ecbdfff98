"""The hand-over's verdict as one HTML page that needs no server and no network."""

from __future__ import annotations

import html

from components.contract.page import STYLE, checks_table
from components.core.records import HandOver


def handover_page(verdict: HandOver) -> str:
    """The page: whether training may begin, and every rule with what was seen. Examples are masked in the record."""
    title = "Training may begin" if verdict.passed else "Training is refused"
    contract = f"contract {verdict.contract} {verdict.version}" if verdict.contract else "no contract of its own"
    facts = (
        f"{verdict.rows} rows of training set {verdict.training_set_digest[:12]}, {contract}"
        f"{f', checked by {verdict.engine}' if verdict.engine else ''}."
    )
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1 class='{'pass' if verdict.passed else 'fail'}'>{title}</h1>",
        f"<p>{html.escape(verdict.reason)}</p>" if verdict.reason else "",
        f"<p>{html.escape(facts)}</p>",
        checks_table(verdict.guards, "Structure, time and leakage", "About"),
        checks_table(verdict.checks, "Training contract", "Split and column") if verdict.checks else "",
        "</body></html>",
    ]
    return "".join(parts)
