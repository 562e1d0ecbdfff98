"""The steps of a run as a graph, once across for wide screens and paper, once downwards for narrow ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipelines.report.facts import Facts
from pipelines.report.words import duration, finite, text

# name, title, what it does in two words
STEPS = (
    ("ingest", "Ingest", "snapshot"),
    ("validate", "Validate", "contract"),
    ("featurise", "Featurise", "point in time"),
    ("guard", "Guard", "leakage"),
    ("train", "Train", "DeepSpeed"),
    ("evaluate", "Evaluate", "test rows"),
    ("register", "Register", "gate"),
    ("rollout", "Roll out", "canary"),
    ("promote", "Promote", "champion"),
)
STATUS = {
    "done": "done",
    "no": "said no",
    "failed": "failed",
    "running": "unfinished",
    "absent": "not reached",
}
GLYPHS = {"done": "✓", "no": "✕", "failed": "!", "running": "…", "absent": ""}


@dataclass(frozen=True)
class Step:
    """One step as shown; `status` is a key of STATUS."""

    name: str
    title: str
    what: str
    status: str
    seconds: float | None
    error: str = ""
    engines: str = ""

    @property
    def word(self) -> str:
        """The status in words."""
        return STATUS[self.status]

    @property
    def time(self) -> str:
        """How long it took."""
        return "" if self.seconds is None else duration(self.seconds)


def steps(facts: Facts) -> list[Step]:
    """Every step of the pipeline in its order, also those that were not reached."""
    said_no = {
        "validate": facts.contract is not None and not facts.contract.passed,
        "guard": facts.handover is not None and not facts.handover.passed,
        "register": facts.version is not None and not facts.version.gate_passed,
        "rollout": facts.rollout is not None and facts.rollout.outcome != "passed",
    }
    return [_step(facts, *about, refused=said_no.get(about[0], False)) for about in STEPS]


def _step(facts: Facts, name: str, title: str, what: str, refused: bool) -> Step:
    note = facts.notes.get(name, {})
    status = str(note.get("status", "absent"))
    status = status if status in STATUS else "running"
    spent = note.get("engines") or {}
    engines = (
        ", ".join(f"{engine} {duration(took)}" for engine, took in spent.items()) if isinstance(spent, dict) else ""
    )
    return Step(
        name=name,
        title=title,
        what=what,
        status="no" if status == "done" and refused else status,
        seconds=finite(note.get("seconds")) if status != "absent" else None,
        error=text(note.get("error")) if note.get("error") else "",
        engines=engines,
    )


def graph_across(shown: Sequence[Step]) -> Markup:
    """The graph from left to right, 1,040 pixels wide before scaling."""
    wide, gap, high = 98, 20, 84
    parts = []
    for index, step in enumerate(shown):
        x = index * (wide + gap)
        if index:
            parts.append(_edge(x - gap, high / 2, x - 2, high / 2, shown[index - 1], step))
        parts.append(_node(step, x, 0, wide, high))
    return _svg(shown, parts, len(shown) * (wide + gap) - gap, high + 2, "across")


def graph_down(shown: Sequence[Step]) -> Markup:
    """The graph from top to bottom, for narrow screens."""
    wide, gap, high = 330, 18, 50
    parts = []
    for index, step in enumerate(shown):
        y = index * (high + gap)
        if index:
            parts.append(_edge(28, y - gap, 28, y - 2, shown[index - 1], step))
        parts.append(_row(step, y, wide, high))
    return _svg(shown, parts, wide + 2, len(shown) * (high + gap) - gap + 2, "down")


def _node(step: Step, x: int, y: int, wide: int, high: int) -> Markup:
    middle = x + wide / 2
    return Markup(
        '<g class="node {status}"><rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="8"/>'
        '<text class="name" x="{middle}" y="{first}">{title}</text>'
        '<text class="what" x="{middle}" y="{second}">{what}</text>'
        '<text class="state" x="{middle}" y="{third}">{state}</text></g>'
    ).format(
        status=step.status,
        x=x + 1,
        y=y + 1,
        wide=wide - 2,
        high=high,
        middle=middle,
        first=y + 26,
        second=y + 45,
        third=y + 67,
        title=step.title,
        what=step.what,
        state=_state(step),
    )


def _row(step: Step, y: int, wide: int, high: int) -> Markup:
    return Markup(
        '<g class="node {status}"><rect x="1" y="{top}" width="{wide}" height="{high}" rx="8"/>'
        '<text class="name start" x="16" y="{first}">{title}</text>'
        '<text class="what start" x="16" y="{second}">{what}</text>'
        '<text class="state end" x="{right}" y="{third}">{state}</text></g>'
    ).format(
        status=step.status,
        top=y + 1,
        wide=wide - 2,
        high=high,
        first=y + 22,
        second=y + 40,
        third=y + 31,
        right=wide - 16,
        title=step.title,
        what=step.what,
        state=_state(step),
    )


def _state(step: Step) -> str:
    """Glyph, then the time where the step is simply done, else the word."""
    said = step.time if step.status == "done" and step.time else step.word
    return f"{GLYPHS[step.status]} {said}".strip()


def _edge(x1: float, y1: float, x2: float, y2: float, before: Step, after: Step) -> Markup:
    style = "passed" if before.status == "done" and after.status != "absent" else "open"
    style = "stopped" if before.status in ("no", "failed") else style
    return Markup('<line class="edge {}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(style, x1, y1, x2, y2)


def _svg(shown: Sequence[Step], parts: Sequence[Markup], width: int, height: int, style: str) -> Markup:
    told = "; ".join(f"{step.title} {step.word}{f' in {step.time}' if step.time else ''}" for step in shown)
    return Markup(
        '<svg class="graph {}" viewBox="0 0 {} {}" role="img" aria-label="Steps of the run. {}"><title>Steps of the run'
        "</title>{}</svg>"
    ).format(style, width, height, told, Markup("").join(parts))
