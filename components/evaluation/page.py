"""The evidence for people: a self-contained HTML page and a summary in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from components.core.recipe import Recipe
from components.core.records import Evidence, Interval

NAMES = {
    "auc": "ROC AUC",
    "average_precision": "Average precision",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "ece": "Calibration error",
}
SIDE, EDGE = 260, 34  # of a square chart and its margin, in px

_STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6675;--line:#d5dae1;--paper:#fff;--mark:#2457c5;--other:#b4540a}
@media(prefers-color-scheme:dark){
:root{--ink:#e6eaf0;--soft:#9aa5b4;--line:#38424f;--paper:#141a21;--mark:#7aa5ff;--other:#f0a15e}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:24px auto;padding:0 16px}
body{max-width:1000px}h1{font-size:22px}h2{font-size:17px;margin-top:28px}p{max-width:70ch}.soft{color:var(--soft)}
table{border-collapse:collapse;width:100%}th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line)}
th,td{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}th:first-child,td:first-child{text-align:left}
.wide{overflow-x:auto}.charts{display:flex;gap:32px;flex-wrap:wrap}figure{margin:0}
figcaption{color:var(--soft);font-size:13px}svg text{fill:var(--soft);font-size:11px}
"""


def page(evidence: Evidence, recipe: Recipe) -> str:
    """One HTML document without outside references; every text from data is escaped."""
    title = f"{recipe.model.name}: evaluation on {evidence.rows} test rows"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(summary(evidence))}</p>",
        f'<div class="charts">{_roc(evidence)}{_calibration(evidence)}</div>',
        "<h2>Beside baselines, on the same rows</h2>",
        _table("Model", _comparison(evidence, recipe.model.name)),
        "<h2>By group</h2>" if evidence.slices else "",
        _table("Rows", evidence.slices.items()) if evidence.slices else "",
        f'<p class="soft">Brackets: 95 % bootstrap interval, {recipe.evaluation.bootstrap} resamples of the test rows. '
        f"Model {evidence.model_digest[:12]}, training set {evidence.training_set_digest[:12]}, "
        f"test rows {evidence.test_digest[:12]}.</p>",
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"{''.join(parts)}</body></html>"
    )


def notes(evidence: Evidence, recipe: Recipe) -> str:
    """A few lines of Markdown for the step's notes."""
    lines = [f"### {recipe.model.name} on {evidence.rows} test rows", "", summary(evidence), ""]
    lines += ["| model | " + " | ".join(NAMES.values()) + " |", "|---" * (len(NAMES) + 1) + "|"]
    for name, metrics in _comparison(evidence, recipe.model.name):
        lines.append(f"| {name} | " + " | ".join(text(metrics.get(metric)) for metric in NAMES) + " |")
    left_out = sorted(set(recipe.evaluation.baselines) - set(evidence.baselines))
    if left_out:
        lines += ["", f"Not run, for want of text or features: {', '.join(left_out)}."]
    return "\n".join(lines) + "\n"


def summary(evidence: Evidence) -> str:
    """The result in a sentence or two."""
    said = f"AUC {text(evidence.metrics.get('auc'))} on {evidence.positives} positives of {evidence.rows} rows."
    ranked = [(m["auc"].value, name) for name, m in evidence.baselines.items() if m["auc"].value is not None]
    if ranked:
        value, name = max(ranked)
        said += f" Best baseline: {name.replace('_', ' ')} with {value:.3f}."
    if evidence.champion_version:
        difference = evidence.champion.get("auc_difference")
        said += f" Against champion version {evidence.champion_version}: AUC difference {text(difference)}."
    return said


def text(interval: Interval | None) -> str:
    """`0.812 [0.790, 0.833]`, without brackets where there is no interval, a dash where nothing was measured."""
    if interval is None or interval.value is None:
        return "–"
    ends = "" if interval.low is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
    return f"{interval.value:.3f}{ends}"


def _comparison(evidence: Evidence, name: str) -> list[tuple[str, Mapping[str, Interval]]]:
    rows: list[tuple[str, Mapping[str, Interval]]] = [(f"{name} (candidate)", evidence.metrics)]
    if evidence.champion_version:
        rows.append((f"champion, version {evidence.champion_version}", evidence.champion))
    return rows + [(baseline.replace("_", " "), metrics) for baseline, metrics in evidence.baselines.items()]


def _table(first: str, rows: Iterable[tuple[str, Mapping[str, Interval]]]) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in (first, *NAMES.values(), "rows", "positives"))
    body = ""
    for name, metrics in rows:
        size = metrics.get("brier")
        cells = [name, *(text(metrics.get(metric)) for metric in NAMES)]
        cells += [str(size.n), str(size.positives)] if size else ["–", "–"]
        body += "<tr>" + "".join(f"<td>{escape(cell).replace(' [', '<br>[')}</td>" for cell in cells) + "</tr>"
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _roc(evidence: Evidence) -> str:
    line = _polyline(evidence.curves.get("roc", []), "var(--mark)")
    return _chart(line, "ROC curve", "false positive rate", "true positive rate")


def _calibration(evidence: Evidence) -> str:
    points = [point[:2] for point in evidence.curves.get("calibration", [])]
    top = max([0.05, *(value for point in points for value in point)])
    scaled = [[value / top for value in point] for point in points]
    marks = "".join(f'<circle cx="{_x(x):.1f}" cy="{_y(y):.1f}" r="3.5" fill="var(--other)"/>' for x, y in scaled)
    caption = f"Calibration, ten bins of equal count; axes end at {top:.2f}"
    return _chart(_polyline(scaled, "var(--other)") + marks, caption, "mean score", "rate of positives", top)


def _chart(inside: str, caption: str, across: str, up: str, top: float = 1.0) -> str:
    size, far = SIDE + 2 * EDGE, SIDE + EDGE
    frame = (
        f'<rect x="{EDGE}" y="{EDGE}" width="{SIDE}" height="{SIDE}" fill="none" stroke="var(--line)"/>'
        f'<line x1="{EDGE}" y1="{far}" x2="{far}" y2="{EDGE}" stroke="var(--line)" stroke-dasharray="4 4"/>'
        f'<text x="{EDGE}" y="{far + 14}">0</text>'
        f'<text x="{far}" y="{far + 14}" text-anchor="end">{top:.2g}</text>'
        f'<text x="{size / 2}" y="{far + 26}" text-anchor="middle">{across}</text>'
        f'<text transform="translate({EDGE - 10} {size / 2}) rotate(-90)" text-anchor="middle">{up}</text>'
    )
    return (
        f'<figure><svg width="{size}" height="{size}" viewBox="0 0 {size} {size}" role="img" '
        f'aria-label="{escape(caption)}">{frame}{inside}</svg><figcaption>{escape(caption)}</figcaption></figure>'
    )


def _polyline(points: Sequence[Sequence[float]], colour: str) -> str:
    path = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _x(value: float) -> float:
    return EDGE + SIDE * value


def _y(value: float) -> float:
    return EDGE + SIDE * (1 - value)
