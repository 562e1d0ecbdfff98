"""The evidence for people: a self-contained HTML page and a summary in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

from components.core.recipe import Recipe
from components.core.records import Evidence, Fairness, Interval
from components.evaluation import charts

NAMES = {
    "auc": "ROC AUC",
    "average_precision": "Average precision",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "ece": "Calibration error",
}
OPERATING = {
    "precision": "Precision",
    "recall": "Recall",
    "fpr": "False positive rate",
    "selection_rate": "Selection rate",
    "accuracy": "Accuracy",
}
SHIFTS = {"mean_shift": "Mean shift", "p95_shift": "95th percentile", "flip_rate": "Flips", "invalid_rate": "Invalid"}
DIFFERENCES = {
    "selection_rate_difference": "Selection rate",
    "recall_difference": "Recall",
    "fpr_difference": "False positive rate",
    "equalized_odds_difference": "Equalised odds",
    "auc_difference": "ROC AUC",
    "ece_difference": "Calibration error",
}
MEMORY = {
    "membership_auc": "membership test (AUC, 0.5 is a coin)",
    "completion_rate_train": "training texts completed word by word",
    "completion_rate_heldout": "held-out texts completed word by word",
    "completion_difference": "difference of the two",
}

SIZE = ("rows", "positives")
_STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6675;--line:#d5dae1;--paper:#fff;--mark:#2457c5;--other:#b4540a}
@media(prefers-color-scheme:dark){
:root{--ink:#e6eaf0;--soft:#9aa5b4;--line:#38424f;--paper:#141a21;--mark:#7aa5ff;--other:#f0a15e}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:24px auto;padding:0 16px}
body{max-width:1000px}h1{font-size:22px}h2{font-size:17px;margin-top:28px}p{max-width:70ch}.soft{color:var(--soft)}
table{border-collapse:collapse;width:100%}th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line)}
th,td{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}th:first-child,td:first-child{text-align:left}
td:first-child{white-space:normal}.wide{overflow-x:auto;margin:12px 0}.charts{display:flex;gap:24px;flex-wrap:wrap}
figure{margin:0;max-width:100%}figcaption{color:var(--soft);font-size:13px;width:min-content;min-width:100%}
svg{max-width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}svg .grid{stroke:var(--line)}
svg polyline{fill:none;stroke-width:2}svg .own{stroke:var(--mark);stroke-width:2}svg circle.own{fill:var(--mark)}
svg circle.hollow{fill:var(--paper)}svg .other{stroke:var(--other)}svg circle.other{fill:var(--other)}
svg .chance{stroke:var(--soft);stroke-dasharray:4 4}svg .bar{fill:var(--mark)}
svg .mark{fill:none;stroke:var(--other);stroke-width:3}
"""


def page(evidence: Evidence, recipe: Recipe) -> str:
    """One HTML document without outside references; every text from data is escaped."""
    title = f"{recipe.model.name}: evaluation on {evidence.rows} test rows"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(summary(evidence))}</p>",
        _charts(charts.roc(evidence), charts.precision_recall(evidence), charts.reliability(evidence)),
        "<h2>Beside baselines, on the same rows</h2>",
        _table("Model", _comparison(evidence, recipe.model.name), NAMES, sized=True),
        f"<h2>At the operating point: positive from a score of {recipe.serving.threshold} on</h2>",
        _table("Rows", [("all test rows", evidence.operating)], OPERATING),
        *_by_slice(evidence),
        *_changed_inputs(evidence),
        *_drifted(evidence),
        *_memory(evidence),
        *_not_measured(evidence),
        f'<p class="soft">{escape(_origin(evidence, recipe))}</p>',
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


def _by_slice(evidence: Evidence) -> Iterator[str]:
    if not evidence.slices:
        return
    yield "<h2>By slice</h2>"
    yield _charts(
        charts.slices(
            evidence, "auc", "ROC AUC by slice; hollow: too small to say anything; the line is all test rows"
        ),
        charts.slices(evidence, "selection_rate", "Share of rows called positive; the line is all test rows"),
    )
    small = {name for name, state in evidence.slice_states.items() if state != "measured"}
    rows = [(f"{name} (insufficient)" if name in small else name, found) for name, found in evidence.slices.items()]
    yield _table("Slice", rows, NAMES, sized=True)
    yield _table("Slice at the operating point", rows, OPERATING)
    if evidence.fairness:
        yield "<h2>Differences between the slices of an attribute, largest less smallest</h2>"
        yield _table(
            "Attribute", [(_attribute(*item), item[1].differences) for item in evidence.fairness.items()], DIFFERENCES
        )


def _attribute(name: str, found: Fairness) -> str:
    if found.state != "measured":
        return f"{name}: insufficient ({found.reason})"
    return f"{name} (without {', '.join(found.left_out)}: too small)" if found.left_out else name


def _changed_inputs(evidence: Evidence) -> Iterator[str]:
    if not evidence.robustness:
        return
    yield "<h2>When the input changes</h2>"
    yield _charts(
        charts.robustness(evidence, "mean_shift", "Mean change of the score"),
        charts.robustness(evidence, "flip_rate", "Share of rows whose label changes"),
    )
    yield _table("Change", [(key.replace("_", " "), found) for key, found in evidence.robustness.items()], SHIFTS)
    invalid = evidence.invalid_rate
    if invalid:
        yield (
            f"<p>Answers that are no member of the closed set of labels: {invalid.positives} of {invalid.n} "
            f"(rate {text(invalid)}). Injection: hostile texts of our own; personal data: made-up addresses and "
            "numbers put before the text, to be read beside neutral words, as many, in the same place.</p>"
        )


def _drifted(evidence: Evidence) -> Iterator[str]:
    if evidence.drift:
        yield "<h2>Drift and cost</h2>"
        yield _charts(charts.drift(evidence))
        new = [f"{name} {item['new_share']:.1%}" for name, item in evidence.drift.items() if "new_share" in item]
        yield f"<p>Test rows with a value that training never saw: {escape(', '.join(new))}.</p>" if new else ""
    if taken := evidence.latency_ms:
        cpu = f", of CPU time {taken['offline_cpu_p95']:.2f} ms" if "offline_cpu_p95" in taken else ""
        yield (
            f"<p>One row alone in the evaluator: median {taken['offline_p50']:.2f} ms, 95th percentile "
            f"{taken['offline_p95']:.2f} ms over {taken['rows']:.0f} rows{cpu}. This is offline scoring and not the "
            "latency of serving.</p>"
        )
    if evidence.cost_per_thousand is not None:
        yield f"<p>Scoring 1,000 rows in batches: {evidence.cost_per_thousand:.2g} at the recipe's price per hour.</p>"


def _memory(evidence: Evidence) -> Iterator[str]:
    if not evidence.memorisation and not evidence.personal_data:
        return
    yield "<h2>Memorisation and personal data</h2>"
    told = [f"<li>{said}: {text(evidence.memorisation.get(key))}</li>" for key, said in MEMORY.items()]
    yield f"<ul>{''.join(told)}</ul>" if evidence.memorisation else ""
    found = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in evidence.personal_data.items())
    yield (
        f"<p>In the texts of the model's files: {escape(found)}. The tests look at the language-model head, not at "
        "attacks through the label; names and postal addresses are not looked for.</p>"
    )


def _not_measured(evidence: Evidence) -> Iterator[str]:
    open_parts = [(name, said) for name, said in evidence.parts.items() if said != "measured"]
    if open_parts:
        yield "<h2>Not measured</h2><ul>"
        yield "".join(f"<li>{escape(name.replace('_', ' '))}: {escape(said)}</li>" for name, said in open_parts)
        yield "</ul>"


def _origin(evidence: Evidence, recipe: Recipe) -> str:
    used = f"These test rows were used for {evidence.test_window_uses} candidate(s) up to this one. "
    return (
        f"Brackets: 95 % bootstrap interval, {recipe.evaluation.bootstrap} resamples of the test rows. "
        f"{used if evidence.test_window_uses else ''}"
        f"Model {evidence.model_digest[:12]}, training set {evidence.training_set_digest[:12]}, "
        f"test rows {evidence.test_digest[:12]}, hand-over {evidence.handover_digest[:12] or 'none'}."
    )


def _charts(*made: str) -> str:
    return f'<div class="charts">{"".join(made)}</div>'


def _table(
    first: str, rows: Iterable[tuple[str, Mapping[str, Interval]]], names: Mapping[str, str], sized: bool = False
) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in (first, *names.values(), *(SIZE if sized else ())))
    body = ""
    for name, metrics in rows:
        cells = [name, *(text(metrics.get(metric)) for metric in names)]
        if sized:
            size = metrics.get("brier")
            cells += [str(size.n), str(size.positives)] if size else ["–", "–"]
        body += "<tr>" + "".join(f"<td>{escape(cell).replace(' [', '<br>[')}</td>" for cell in cells) + "</tr>"
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
