"""The rollout for people: weights over time and the verdicts, as SVG for the report and Markdown for the step."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from components.core.records import RolloutEvent, RolloutReport, RuleResult

WIDTH, HEIGHT, LEFT, TOP = 760, 150, 44, 34  # pixels of the plot and its margins
COLOURS = {"pass": "#1a7f37", "fail": "#cf222e", "inconclusive": "#9a6700"}
WORDS = {
    "passed": "The candidate passed",
    "rolled_back": "The candidate was rolled back",
    "inconclusive": "The candidate was not promoted: the evidence did not suffice",
}


def timeline_svg(report: RolloutReport) -> str:
    """An inline SVG (no script, no link): the canary's weight as a line, stages as bands, verdicts as marks."""
    events = report.timeline
    total = max((event.seconds for event in events), default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {LEFT + WIDTH + 16} {TOP + HEIGHT + 40}" '
        f'style="max-width:100%;font:12px system-ui,sans-serif">',
        f"<title>Canary weight and verdicts: {escape(report.outcome)}</title>",
        *_axes(total),
        *_bands(events, total),
        f'<polyline fill="none" stroke="#0969da" stroke-width="2" points="{_points(events, total)}"/>',
        *(_mark(event, total) for event in events if event.verdict in COLOURS),
        "</svg>",
    ]
    return "".join(parts)


def page_markdown(report: RolloutReport) -> str:
    """The step's page: outcome, why, timeline, the events and the rules as tables."""
    arms = f"candidate version {report.candidate_version} (`{report.candidate_digest[:12]}`)"
    if report.stable_version:
        arms += f" against stable version {report.stable_version} (`{report.stable_digest[:12]}`)"
    latency = ", ".join(f"{name} {value:g} ms" for name, value in sorted(report.latency_ms.items()))
    lines = [
        f"# Rollout: {report.outcome}",
        f"{WORDS.get(report.outcome, report.outcome)}: {_cell(report.reason)}",
        f"{arms}, served by {_cell(report.engine) or 'none'}. "
        f"{report.requests} replayed requests, {report.failed_requests} failed for their user. {latency}",
        timeline_svg(report),
        _table(("seconds", "stage", "weight", "verdict", "what"), [_event_cells(event) for event in report.timeline]),
        "## Rules",
        _table(("stage", "rule", "outcome", "observed", "limit", "why"), [_rule_cells(rule) for rule in report.rules]),
        "Evidence is an e-value: at 20 and above it decides, at any time and however often one looks. The margins are "
        "those of the recipe; on a laptop they are wide, because seconds of traffic cannot show less.",
    ]
    return "\n\n".join(lines) + "\n"


def _axes(total: float) -> list[str]:
    marks = []
    for percent in (0, 50, 100):
        y = _y(percent)
        marks.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d0d7de"/>')
        marks.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#57606a">{percent} %</text>')
    for part in range(5):
        x, y = LEFT + WIDTH * part / 4, TOP + HEIGHT + 16
        seconds = f"{total * part / 4:.0f} s"
        marks.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="#57606a">{seconds}</text>')
    return marks


def _bands(events: Sequence[RolloutEvent], total: float) -> list[str]:
    """One band a stage, from its first event to the next stage's first."""
    starts = [event for at, event in enumerate(events) if at == 0 or events[at - 1].stage != event.stage]
    ends = [*(event.seconds for event in starts[1:]), total][: len(starts)]  # nothing happened: no band
    bands = []
    for number, (event, end) in enumerate(zip(starts, ends, strict=True)):
        x, width = _x(event.seconds, total), _x(end, total) - _x(event.seconds, total)
        tint = "#f6f8fa" if number % 2 else "#eaeef2"
        bands.append(
            f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT}" fill="{tint}" fill-opacity="0.6">'
            f"<title>{escape(event.stage)}</title></rect>"
        )
        if width > 7 * len(event.stage):
            middle = x + width / 2
            bands.append(f'<text x="{middle:.1f}" y="{TOP - 6}" text-anchor="middle">{escape(event.stage)}</text>')
    return bands


def _points(events: Sequence[RolloutEvent], total: float) -> str:
    """A staircase: the weight holds until the next event."""
    corners, weight = [], 0
    for event in events:
        x = _x(event.seconds, total)
        corners += [f"{x:.1f},{_y(weight):.1f}", f"{x:.1f},{_y(event.weight):.1f}"]
        weight = event.weight
    return " ".join([*corners, f"{LEFT + WIDTH},{_y(weight):.1f}"])


def _mark(event: RolloutEvent, total: float) -> str:
    x, y = _x(event.seconds, total), _y(event.weight)
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[event.verdict]}">'
        f"<title>{event.seconds:.1f} s {escape(event.text)}</title></circle>"
    )


def _x(seconds: float, total: float) -> float:
    return LEFT + WIDTH * min(max(seconds / total, 0.0), 1.0)


def _y(percent: float) -> float:
    return TOP + HEIGHT * (1 - percent / 100)


def _event_cells(event: RolloutEvent) -> tuple[str, ...]:
    return f"{event.seconds:.1f}", event.stage, f"{event.weight} %", event.verdict, event.text


def _rule_cells(rule: RuleResult) -> tuple[str, ...]:
    return rule.subject, rule.rule, rule.outcome, _number(rule.observed), _number(rule.limit), rule.reason


def _number(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)])


def _cell(text: str) -> str:
    """Text that can neither end a table cell nor be read as HTML."""
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|")
