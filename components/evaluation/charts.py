"""Charts of the evidence as inline SVG: no library, no script; each has a title for people who do not see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from components.core.records import Evidence, Interval

SIDE, EDGE = 220, 40  # of a square chart and its margin, in px
NAMES, ACROSS, ROW = 170, 250, 24  # of a chart of rows: width of names and of the plot, height of a row
Point = Sequence[float]


def roc(evidence: Evidence) -> str:
    """True positive rate over false positive rate; the diagonal is chance."""
    line = _line(evidence.curves.get("roc", []), "own")
    mark = _operating_mark(evidence, "fpr", "recall")
    return _square(
        line + mark, "ROC curve, with the operating point", "false positive rate", "true positive rate", 1, True
    )


def precision_recall(evidence: Evidence) -> str:
    """Precision over recall; the flat line is the rate of positives."""
    line = _line(evidence.curves.get("precision_recall", []), "own")
    rate = evidence.positives / evidence.rows if evidence.rows else 0.0
    chance = _line([[0, rate], [1, rate]], "chance")
    mark = _operating_mark(evidence, "recall", "precision")
    return _square(chance + line + mark, "Precision and recall, with the operating point", "recall", "precision", 1)


def reliability(evidence: Evidence) -> str:
    """Rate of positives over mean score in ten bins, each with a 95 % interval (Wilson, 1927)."""
    points = [point for point in evidence.curves.get("calibration", []) if len(point) == 3]
    bars = [(x, *wilson(rate * n, n)) for x, rate, n in points]
    top = min(1.0, max([0.05, *(point[0] for point in points), *(high for _, _, high in bars)]))
    ends = "".join(_segment(x / top, low / top, min(high / top, 1), "other") for x, low, high in bars)
    scaled = [[x / top, rate / top] for x, rate, _ in points]
    caption = f"Reliability in ten bins of equal count, 95 % intervals; axes end at {top:.2f}"
    return _square(ends + _line(scaled, "other", dots=True), caption, "mean score", "rate of positives", top, True)


def slices(evidence: Evidence, metric: str, title: str) -> str:
    """One row a slice, hollow where it is too small to say anything; the line is the whole test set."""
    rows = [
        (name, found.get(metric), evidence.slice_states.get(name) == "insufficient")
        for name, found in evidence.slices.items()
    ]
    whole = (evidence.metrics | evidence.operating).get(metric)
    return _rows(title, rows, whole.value if whole else None, low=0.0 if metric in evidence.operating else None)


def robustness(evidence: Evidence, measure: str, title: str) -> str:
    """One row a change of the input."""
    rows = [(name.replace("_", " "), found.get(measure), False) for name, found in evidence.robustness.items()]
    return _rows(title, rows, None, low=0.0)


def drift(evidence: Evidence) -> str:
    """The population stability index by column as a bar; the tick is what equal distributions would show."""
    found = evidence.drift
    values = {name: item["psi"] for name, item in found.items() if math.isfinite(item["psi"])}
    if not values:
        return ""
    top = max(0.25, *values.values(), *(item["noise"] for item in found.values()))
    parts = [_scale(0.0, top, len(values))]
    for at, (name, value) in enumerate(sorted(values.items(), key=lambda pair: -pair[1])):
        y, noise = ROW * at + 14, NAMES + ACROSS * found[name]["noise"] / top
        parts.append(_name(name, y))
        parts.append(
            f'<rect class="bar" x="{NAMES}" y="{y - 6}" width="{max(ACROSS * value / top, 1):.1f}" height="12"/>'
        )
        parts.append(f'<line class="chance" x1="{noise:.1f}" y1="{y - 9}" x2="{noise:.1f}" y2="{y + 9}"/>')
    caption = "Drift of test against training (PSI); the tick is what samples of one distribution would show"
    return _figure("".join(parts), caption, NAMES + ACROSS + 30, ROW * len(values) + 34)


def wilson(count: float, rows: float) -> tuple[float, float]:
    """95 % score interval of a share."""
    if rows <= 0:
        return 0.0, 1.0
    z, share = 1.959964, count / rows
    middle = share + z * z / (2 * rows)
    half = z * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    return max((middle - half) / (1 + z * z / rows), 0.0), min((middle + half) / (1 + z * z / rows), 1.0)


def _rows(
    title: str, rows: Sequence[tuple[str, Interval | None, bool]], mark: float | None, low: float | None = None
) -> str:
    """Names, dots and intervals over a common scale; rows without a value say so."""
    seen = [
        value for _, found, _ in rows if found for value in (found.value, found.low, found.high) if value is not None
    ]
    if not seen:
        return ""
    seen += [] if mark is None else [mark]
    first, last = (min(seen) if low is None else low), max(seen)
    span = (last - first) or 1.0
    first, last = (first if low is not None else first - span * 0.05), last + span * 0.05

    def x(value: float) -> float:
        return round(NAMES + ACROSS * (value - first) / (last - first), 1)

    parts = [_scale(first, last, len(rows))]
    if mark is not None:
        parts.append(f'<line class="chance" x1="{x(mark)}" y1="0" x2="{x(mark)}" y2="{ROW * len(rows)}"/>')
    for at, (name, found, hollow) in enumerate(rows):
        y, style = ROW * at + 14, "own hollow" if hollow else "own"
        parts.append(_name(name, y))
        if found is None or found.value is None:
            parts.append(f'<text x="{NAMES + 6}" y="{y + 4}">not defined</text>')
            continue
        if found.low is not None and found.high is not None:
            parts.append(f'<line class="own" x1="{x(found.low)}" y1="{y}" x2="{x(found.high)}" y2="{y}"/>')
        parts.append(f'<circle class="{style}" cx="{x(found.value)}" cy="{y}" r="4.5"/>')
    return _figure("".join(parts), title, NAMES + ACROSS + 30, ROW * len(rows) + 34)


def _scale(first: float, last: float, rows: int) -> str:
    """Grid lines at round numbers, three to six of them."""
    base, parts = ROW * rows + 4, []
    raw = (last - first) / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    for at in range(math.ceil(first / step - 1e-6), math.floor(last / step + 1e-6) + 1):
        value, x = at * step, NAMES + ACROSS * (at * step - first) / (last - first)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{base}"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{value:.3g}</text>')
    return "".join(parts)


def _name(name: str, y: float) -> str:
    shown = name if len(name) < 25 else f"{name[:23]}…"
    return f'<text x="{NAMES - 10}" y="{y + 4}" text-anchor="end"><title>{escape(name)}</title>{escape(shown)}</text>'


def _operating_mark(evidence: Evidence, across: str, up: str) -> str:
    pair = [found.value if (found := evidence.operating.get(name)) else None for name in (across, up)]
    if pair[0] is None or pair[1] is None:
        return ""
    return f'<circle class="mark" cx="{_x(pair[0]):.1f}" cy="{_y(pair[1]):.1f}" r="5"/>'


def _square(inside: str, caption: str, across: str, up: str, top: float, diagonal: bool = False) -> str:
    size, far = SIDE + 2 * EDGE, SIDE + EDGE
    grid = "".join(
        f'<line class="grid" x1="{_x(at):.1f}" y1="{EDGE}" x2="{_x(at):.1f}" y2="{far}"/>'
        f'<line class="grid" x1="{EDGE}" y1="{_y(at):.1f}" x2="{far}" y2="{_y(at):.1f}"/>'
        f'<text x="{_x(at):.1f}" y="{far + 15}" text-anchor="middle">{top * at:.2g}</text>'
        f'<text x="{EDGE - 5}" y="{_y(at) + 4:.1f}" text-anchor="end">{top * at:.2g}</text>'
        for at in (0, 0.25, 0.5, 0.75, 1)
    )
    line = f'<line class="chance" x1="{EDGE}" y1="{far}" x2="{far}" y2="{EDGE}"/>' if diagonal else ""
    words = (
        f'<text x="{size / 2}" y="{far + 32}" text-anchor="middle">{across}</text>'
        f'<text transform="translate(9 {size / 2}) rotate(-90)" text-anchor="middle">{up}</text>'
    )
    return _figure(grid + line + inside + words, caption, size, size)


def _figure(inside: str, caption: str, width: int, height: int) -> str:
    said = escape(caption)
    return (
        f'<figure><svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{said}">{inside}</svg><figcaption>{said}</figcaption></figure>'
    )


def _line(points: Sequence[Point], style: str, dots: bool = False) -> str:
    placed = [(round(_x(point[0]), 1), round(_y(point[1]), 1)) for point in points]
    marks = "".join(f'<circle class="{style}" cx="{x}" cy="{y}" r="3.5"/>' for x, y in placed) if dots else ""
    return f'<polyline class="{style}" points="{" ".join(f"{x},{y}" for x, y in placed)}"/>{marks}'


def _segment(x: float, low: float, high: float, style: str) -> str:
    return f'<line class="{style}" x1="{_x(x):.1f}" y1="{_y(low):.1f}" x2="{_x(x):.1f}" y2="{_y(high):.1f}"/>'


def _x(value: float) -> float:
    return EDGE + SIDE * min(max(value, 0.0), 1.0)


def _y(value: float) -> float:
    return EDGE + SIDE * (1 - min(max(value, 0.0), 1.0))
