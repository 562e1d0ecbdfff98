"""Charts as inline SVG: no library, no script; colours come from the page's style, words are in the SVG as text.

Every chart has a title and a description for people who do not see it. Points that are no finite numbers are left
out. Coordinates are rounded to a tenth of a pixel, so that the same values give the same page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from pipelines.report.words import finite, number

Point = Sequence[object]
WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 22, 46
LABELS = 176  # pixels for the names of an interval chart
FLAT = 1e-9


@dataclass(frozen=True)
class Series:
    """A named line; `style` is one of a, b, c (a class of the page's style); `dots` marks each point."""

    name: str
    points: Sequence[Point]
    style: str = "a"
    dots: bool = False
    steps: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis: label, range and whether it is drawn in percent."""

    label: str
    low: float
    high: float

    @property
    def span(self) -> float:
        """Length of the range, never zero."""
        return max(self.high - self.low, FLAT)


@dataclass(frozen=True)
class Whisker:
    """A row of an interval chart; `style` own for the candidate, other for what it is compared with."""

    label: str
    value: object
    low: object
    high: object
    style: str = "other"


class Frame:
    """The plot area: maps values to pixels."""

    def __init__(self, x: Axis, y: Axis, width: int = WIDTH, height: int = HEIGHT) -> None:
        self.x, self.y, self.width, self.height = x, y, width, height

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point, clipped to the plot area."""
        right = LEFT + (min(max(x, self.x.low), self.x.high) - self.x.low) / self.x.span * self.inner_width
        up = (min(max(y, self.y.low), self.y.high) - self.y.low) / self.y.span * self.inner_height
        return round(right, 1), round(TOP + self.inner_height - up, 1)

    @property
    def inner_width(self) -> float:
        """Width of the plot area in pixels."""
        return self.width - LEFT - RIGHT

    @property
    def inner_height(self) -> float:
        """Height of the plot area in pixels."""
        return self.height - TOP - BOTTOM


def line_chart(
    title: str,
    description: str,
    series: Sequence[Series],
    x: Axis | str,
    y: Axis | str,
    *,
    diagonal: bool = False,
    mark_x: object = None,
    mark_label: str = "",
    height: int = HEIGHT,
) -> Markup | None:
    """Lines over common axes, or None where no series has two points.

    Args:
        title: what is drawn, for people who do not see it.
        description: what it shows, in a sentence.
        series: the lines, drawn in order.
        x: axis, or its label where the range comes from the points; `y` likewise.
        diagonal: draw the line from the lower left to the upper right corner.
        mark_x: draw a vertical line there, named `mark_label`.
        height: pixels before scaling.
    """
    drawn = [(item, list(_finite(item.points))) for item in series]
    drawn = [(item, points) for item, points in drawn if len(points) > 1]
    if not drawn:
        return None
    every = [point for _, points in drawn for point in points]
    frame = Frame(_axis(x, [p[0] for p in every]), _axis(y, [p[1] for p in every]), height=height)
    parts = [*_grid(frame)]
    if diagonal:
        (x1, y1), (x2, y2) = frame.at(frame.x.low, frame.y.low), frame.at(frame.x.high, frame.y.high)
        parts.append(Markup('<line class="diagonal" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(x1, y1, x2, y2))
    if (marked := finite(mark_x)) is not None and frame.x.low <= marked <= frame.x.high:
        parts += _mark(frame, marked, mark_label)
    for item, points in drawn:
        parts += _line(frame, item, points)
    return _svg(title, description, parts, frame.width, frame.height)


def interval_chart(
    title: str, description: str, rows: Sequence[Whisker], label: str, mark: object = None
) -> Markup | None:
    """One row an estimate: a dot with its interval; None where no row has a value. `mark` draws a limit."""
    seen = [(row, finite(row.value), finite(row.low), finite(row.high)) for row in rows]
    seen = [item for item in seen if item[1] is not None]
    if not seen:
        return None
    limit = finite(mark)
    values = [value for _, *three in seen for value in three if value is not None] + (
        [limit] if limit is not None else []
    )
    axis, left, height = _axis(label, values), LABELS, 26 * len(seen) + BOTTOM + 6

    def across(value: float) -> float:
        return round(left + (value - axis.low) / axis.span * (WIDTH - left - RIGHT), 1)

    base = height - BOTTOM
    parts: list[Markup] = []
    for tick in ticks(axis.low, axis.high, 4):
        parts.append(Markup('<line class="grid" x1="{0}" y1="4" x2="{0}" y2="{1}"/>').format(across(tick), base))
        parts.append(_text(across(tick), base + 17, number(tick, 2), "tick middle"))
    if limit is not None:
        parts.append(Markup('<line class="limit" x1="{0}" y1="0" x2="{0}" y2="{1}"/>').format(across(limit), base))
    for index, (row, value, low, high) in enumerate(seen):
        parts += _whisker(
            row, across(value or 0.0), [across(end) for end in (low, high) if end is not None], 20 + 26 * index
        )
    parts.append(_text((left + WIDTH - RIGHT) / 2, height - 8, label, "label middle"))
    return _svg(title, description, parts, WIDTH, height)


def histogram_pair(title: str, first: Sequence[object], second: Sequence[object]) -> Markup | None:
    """Two histograms over the same buckets as shares, side by side in each bucket; None where one is empty."""
    shares = [_shares(values) for values in (first, second)]
    if not all(shares) or len(shares[0]) != len(shares[1]):
        return None
    width, height, top = 180, 40, max(max(values) for values in shares) or 1.0
    step = width / len(shares[0])
    parts = []
    for index, pair in enumerate(zip(*shares, strict=True)):
        for offset, (value, style) in enumerate(zip(pair, ("a", "b"), strict=True)):
            tall = round(value / top * (height - 2), 1)
            left = round(index * step + 1 + offset * (step - 2) / 2, 1)
            parts.append(
                Markup('<rect class="bar-{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    style, left, round(height - tall, 1), round((step - 2) / 2, 1), tall
                )
            )
    return _svg(title, "Shares of rows in each bucket, training beside test.", parts, width, height, "spark")


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers inside the range, about `wanted` of them."""
    span = max(high - low, FLAT)
    raw = span / max(wanted, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * (1 - FLAT))
    first = math.ceil(low / step - 1e-6)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-6) + 1)]


def _axis(given: Axis | str, values: Sequence[float]) -> Axis:
    if isinstance(given, Axis):
        return given
    low, high = min(values), max(values)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    return Axis(given, low - (pad if low != 0 else 0), high + pad)


def _finite(points: Sequence[Point]) -> Iterator[tuple[float, float]]:
    for point in points:
        if isinstance(point, Sequence) and len(point) > 1:
            x, y = finite(point[0]), finite(point[1])
            if x is not None and y is not None:
                yield x, y


def _grid(frame: Frame) -> Iterator[Markup]:
    for tick in ticks(frame.y.low, frame.y.high):
        (x1, y), (x2, _) = frame.at(frame.x.low, tick), frame.at(frame.x.high, tick)
        yield Markup('<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(x1, y, x2, y)
        yield _text(LEFT - 6, y + 4, number(tick, 2), "tick end")
    for tick in ticks(frame.x.low, frame.x.high):
        x, y = frame.at(tick, frame.y.low)
        yield _text(x, y + 17, number(tick, 2), "tick middle")
    yield _text(LEFT + frame.inner_width / 2, frame.height - 8, frame.x.label, "label middle")
    yield Markup('<text class="label middle" transform="translate(13 {}) rotate(-90)">{}</text>').format(
        TOP + frame.inner_height / 2, frame.y.label
    )


def _line(frame: Frame, item: Series, points: list[tuple[float, float]]) -> Iterator[Markup]:
    if item.steps:  # hold the last value until the next point
        held = [(later[0], earlier[1]) for earlier, later in itertools.pairwise(points)]
        points = [point for pair in zip(points, [*held, points[-1]], strict=True) for point in pair]
    pixels = " ".join(f"{x},{y}" for x, y in (frame.at(*point) for point in points))
    yield Markup('<polyline class="line-{}" points="{}"/>').format(item.style, pixels)
    for point in points if item.dots else []:
        yield Markup('<circle class="dot-{}" cx="{}" cy="{}" r="3.5"/>').format(item.style, *frame.at(*point))


def _mark(frame: Frame, x: float, label: str) -> Iterator[Markup]:
    (at, low), (_, high) = frame.at(x, frame.y.low), frame.at(x, frame.y.high)
    yield Markup('<line class="limit" x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>').format(at, low, high)
    yield _text(at, high - 7, label, "tick middle")


def _whisker(row: Whisker, value: float, ends: list[float], y: int) -> Iterator[Markup]:
    yield _text(LABELS - 8, y + 4, row.label if len(row.label) < 27 else f"{row.label[:25]}…", f"row end {row.style}")
    if len(ends) == 2:
        yield Markup('<line class="whisker {}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            row.style, ends[0], y, ends[1], y
        )
    yield Markup('<circle class="point {}" cx="{}" cy="{}" r="5"/>').format(row.style, value, y)


def _shares(values: Sequence[object]) -> list[float]:
    known = [finite(value) for value in values]
    total = sum(value for value in known if value is not None)
    return [] if None in known or total <= 0 else [(value or 0.0) / total for value in known]


def _text(x: float, y: float, words: str, style: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(style, round(x, 1), round(y, 1), words)


def _svg(title: str, description: str, parts: Sequence[Markup], width: int, height: int, style: str = "") -> Markup:
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(style, width, height, f"{title}. {description}", title, description, Markup("").join(map(escape, parts)))
