"""The model card: what a version is for, how it was judged and where it comes from, as Markdown and HTML.

Sections follow Mitchell et al., Model Cards for Model Reporting (2019). No time stamps: the same inputs, the same card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from components.core.recipe import Recipe
from components.core.records import Evidence, Interval, ModelRef, ModelVersionRef, RuleResult, TrainingSetRef

COLUMNS = ("auc", "average_precision", "log_loss", "brier", "ece")

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


def write_card(
    folder: Path,
    version: ModelVersionRef,
    recipe: Recipe,
    model: ModelRef,
    rows: TrainingSetRef,
    evidence: Evidence,
    code_version: str,
) -> None:
    """Write card.md and card.html into a folder."""
    title = f"{version.name} version {version.version}"
    parts = card_parts(version, recipe, model, rows, evidence, code_version)
    (folder / "card.md").write_text(as_markdown(title, parts), encoding="utf-8")
    (folder / "card.html").write_text(as_html(title, parts), encoding="utf-8")


def card_parts(
    version: ModelVersionRef,
    recipe: Recipe,
    model: ModelRef,
    rows: TrainingSetRef,
    evidence: Evidence,
    code_version: str,
) -> list[Part]:
    """The card's sections as plain values."""
    return [
        Part("What it is", _about(version, recipe, model)),
        Part("Data", (), ("split", "rows", "positives", "from", "to"), tuple(_split_row(s) for s in rows.splits)),
        Part("Measured on the test rows", (_measured(evidence),), ("model", *COLUMNS), _comparison(evidence)),
        Part("By group", (), ("rows", *COLUMNS, "n", "positives"), _slices(evidence)),
        Part("Gate", (version.reason,), ("rule", "outcome", "observed", "limit"), tuple(map(_rule_row, version.gate))),
        Part("Limits", _limits(recipe, rows)),
        Part("Where it comes from", (), ("what", "digest"), _lineage(version, recipe, model, rows, code_version)),
    ]


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


def _about(version: ModelVersionRef, recipe: Recipe, model: ModelRef) -> tuple[str, ...]:
    text = f" and the first {recipe.model.text_tokens} tokens of the text" if recipe.model.text_tokens else ""
    against = f"champion version {version.champion_version}" if version.champion_version else "no champion: the first"
    return (
        f"Family {model.family}, {model.parameters:,} parameters, trained for {model.steps} steps.",
        f"Says the probability of {model.labels[-1]!r} (else {model.labels[0]!r}) of column "
        f"{recipe.model.label_column!r}, from features {', '.join(recipe.features.model_inputs) or 'none'}{text}.",
        f"A decision is {model.labels[-1]!r} from a probability of {recipe.serving.threshold} on.",
        f"Judged against {against}.",
    )


def _measured(evidence: Evidence) -> str:
    return f"{evidence.rows} rows, {evidence.positives} positive, used once; brackets are 95 % bootstrap intervals."


def _comparison(evidence: Evidence) -> tuple[tuple[str, ...], ...]:
    rows = [("this version", evidence.metrics)]
    if evidence.champion_version:
        rows.append((f"champion {evidence.champion_version}", evidence.champion))
    rows += [(name.replace("_", " "), metrics) for name, metrics in evidence.baselines.items()]
    return tuple((name, *(_number(metrics.get(column)) for column in COLUMNS)) for name, metrics in rows)


def _slices(evidence: Evidence) -> tuple[tuple[str, ...], ...]:
    rows = []
    for name, metrics in evidence.slices.items():
        size = metrics.get("brier")
        counts = (str(size.n), str(size.positives)) if size else ("–", "–")
        rows.append((name, *(_number(metrics.get(column)) for column in COLUMNS), *counts))
    return tuple(rows)


def _split_row(split: object) -> tuple[str, ...]:
    return tuple(str(getattr(split, name)) for name in ("name", "rows", "positives", "time_min", "time_max"))


def _rule_row(rule: RuleResult) -> tuple[str, ...]:
    outcome = f"{rule.outcome}: {rule.reason}" if rule.reason else rule.outcome
    return (f"{rule.rule} {rule.subject}".strip(), outcome, _plain(rule.observed), _plain(rule.limit))


def _limits(recipe: Recipe, rows: TrainingSetRef) -> tuple[str, ...]:
    known = sorted(group.name for group in recipe.evaluation.groups)
    return (
        f"Rows are split by time with {rows.embargo_days} days between what was learnt from and what was tested on; "
        "nothing is known of later changes in the data.",
        "Intervals take rows as independent; rows that share an entity are not, so the truth is less certain.",
        f"Groups looked at: {', '.join(known) or 'none'}. Nothing is known of others.",
    )


def _lineage(
    version: ModelVersionRef, recipe: Recipe, model: ModelRef, rows: TrainingSetRef, code_version: str
) -> tuple[tuple[str, str], ...]:
    return (
        ("model", version.digest),
        ("evidence", version.evidence_digest),
        ("training set", rows.digest),
        ("clean rows", rows.clean_digest),
        ("snapshot", rows.snapshot_digest),
        ("recipe", recipe.digest),
        ("recipe of the training", model.recipe_digest),
        ("code", code_version),
    )


def _number(interval: Interval | None) -> str:
    if interval is None or interval.value is None:
        return "–"
    ends = "" if interval.low is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
    return f"{interval.value:.3f}{ends}"


def _plain(value: float | str | None) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
