"""What the page's sections have in common: their frame, rule tables and figures with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.core.records import Interval, RuleResult
from pipelines.report import words
from pipelines.report.charts import Whisker
from pipelines.report.facts import Facts

RESULT = {"pass": "passed", "fail": "failed", "insufficient": "not enough evidence", "info": "for information"}
TONE = {"pass": "good", "fail": "bad", "insufficient": "warn", "info": "none"}


def section(name: str, title: str, state: str, summary: str, **more: Any) -> dict[str, Any]:
    """A section's common values; `state` is good, bad, warn or none."""
    return {"id": name, "title": title, "state": state, "summary": summary, **more}


def missing(facts: Facts, name: str, title: str, step: str) -> dict[str, Any]:
    """A section whose step left no record: it failed, or it was not reached."""
    note = facts.notes.get(step, {})
    if note.get("status") == "failed":
        said = f"The step failed: {note.get('error') or 'no error was recorded'}"
        return section(name, title, "bad", said, empty=True, said="failed")
    return section(name, title, "none", "", empty=True)


def rules(found: Sequence[RuleResult]) -> list[dict[str, str]]:
    """Rule table rows, what did not pass first, else in their order."""
    order = {"fail": 0, "insufficient": 1}
    return [
        {
            "rule": words.plain(rule.rule),
            "subject": rule.subject,
            "observed": words.text(rule.observed),
            "limit": words.text(rule.limit),
            "result": RESULT.get(rule.outcome, rule.outcome),
            "tone": TONE.get(rule.outcome, "warn"),
            "reason": rule.reason,
        }
        for rule in sorted(found, key=lambda rule: order.get(rule.outcome, 2))
    ]


def cell(interval: Interval | None) -> dict[str, str]:
    """A table cell: the estimate and its interval."""
    if interval is None:
        return {"value": words.NONE, "interval": ""}
    ends = (words.finite(interval.low), words.finite(interval.high))
    known = f"{words.number(ends[0])} to {words.number(ends[1])}" if None not in ends else ""
    return {"value": words.number(interval.value), "interval": known}


def whisker(label: str, interval: Interval | None, own: bool) -> Whisker:
    """A row of an interval chart."""
    style = "own" if own else "other"
    return Whisker(label, *((interval.value, interval.low, interval.high) if interval else (None, None, None)), style)
