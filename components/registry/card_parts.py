"""What a model card says of one version, section by section, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from components.core.recipe import Recipe
from components.core.records import Evidence, Interval, ModelRef, ModelVersionRef, RuleResult, TrainingSetRef
from components.registry.card import APPROVALS, Part
from components.registry.given import Given
from components.registry.owner import Owner

COLUMNS = ("auc", "average_precision", "log_loss", "brier", "ece")
NOT_STATED = "not stated"


@dataclass(frozen=True)
class Story:
    """All that a card is made of. `digests`: what the version comes from, by name."""

    version: ModelVersionRef
    recipe: Recipe
    given: Given
    owner: Owner
    digests: dict[str, str]


def card_title(version: ModelVersionRef) -> str:
    """The card's title."""
    return f"{version.name} version {version.version}"


def card_parts(story: Story) -> list[Part]:
    """The card's sections."""
    version, recipe, given = story.version, story.recipe, story.given
    evidence, rows = given.evidence, given.rows
    gate = tuple(map(_rule_row, version.gate))
    found = [
        Part("Purpose", (recipe.card.purpose or f"{NOT_STATED}; name it in the recipe as card.purpose",)),
        Part("Owner", (), ("what", "who"), _owner(story)),
        Part("What it is", _about(version, recipe, given.model)),
        Part("Data", (), ("split", "rows", "positives", "from", "to"), tuple(_split_row(s) for s in rows.splits)),
        Part("Features", (f"Service {rows.feature_service}.",), ("feature", "computed"), _features(rows, recipe)),
        Part("Measured on the test rows", (_measured(evidence),), ("model", *COLUMNS), _comparison(evidence)),
        Part("At the operating point", (), ("measure", "value"), _operating(evidence)),
        Part("By group", (), ("rows", *COLUMNS, "n", "positives"), _slices(evidence)),
        Part("Differences between groups", (), ("group or column", "measure", "value"), _fairness(evidence)),
        Part("Under changed inputs", (), ("change", "measure", "value"), _robustness(evidence)),
        Part("Behaviour", (), ("what", "value"), _behaviour(evidence)),
        Part("Gate", (version.reason,), ("rule", "outcome", "observed", "limit"), gate),
        Part("Limits", _limits(recipe, rows)),
        Part(APPROVALS, ("None when the version was registered; `pilotline models card` shows those that followed.",)),
        Part("Where it comes from", (), ("what", "digest"), tuple(sorted(story.digests.items()))),
    ]
    return [part for part in found if part.sentences or part.rows]


def _behaviour(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """Invalid answers, time and cost of scoring, what is known by heart, personal data, and what was not measured."""
    rows = [("answers that are no label", _number(evidence.invalid_rate))]
    rows += [
        (f"scoring time, {name.replace('_', ' ')} ms", _plain(value)) for name, value in evidence.latency_ms.items()
    ]
    if evidence.cost_per_thousand is not None:
        rows.append(("cost of 1,000 rows", _plain(evidence.cost_per_thousand)))
    rows += [
        (f"memorisation, {name.replace('_', ' ')}", _number(value)) for name, value in evidence.memorisation.items()
    ]
    rows += [
        (f"{kind.replace('_', ' ')} found in the model's files", str(n)) for kind, n in evidence.personal_data.items()
    ]
    rows += [(part, state) for part, state in evidence.parts.items() if state != "measured"]
    return tuple(rows)


def _owner(story: Story) -> tuple[tuple[str, str], ...]:
    asked, owner = story.recipe.card, story.owner
    return (
        ("model", asked.owner or NOT_STATED),
        ("contact", asked.contact or NOT_STATED),
        ("data contract", owner.team or NOT_STATED),
    )


def _features(rows: TrainingSetRef, recipe: Recipe) -> tuple[tuple[str, str], ...]:
    read = set(recipe.features.model_inputs)
    how = {name: "of the request" if name in rows.on_demand else "from history" for name in rows.features}
    return tuple((name, how[name] if name in read else f"{how[name]}, not read by the model") for name in rows.features)


def _operating(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    if evidence.threshold is None:
        return ()
    values = tuple((name.replace("_", " "), _number(value)) for name, value in evidence.operating.items())
    return (("positive from", f"{evidence.threshold:g}"), *values)


def _fairness(evidence: Evidence) -> tuple[tuple[str, str, str], ...]:
    rows = []
    for name, found in evidence.fairness.items():
        if found.state != "measured":
            rows.append((name, "all", f"{found.state}: {found.reason}"))
        rows += [(name, measure.replace("_", " "), _number(value)) for measure, value in found.differences.items()]
    return tuple(rows)


def _robustness(evidence: Evidence) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (change.replace("_", " "), measure.replace("_", " "), _number(value))
        for change, found in evidence.robustness.items()
        for measure, value in found.items()
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
    uses = evidence.test_window_uses
    used = f"These rows have judged {uses} candidate{'s' if uses != 1 else ''} so far" if uses else "Uses not counted"
    return f"{evidence.rows} rows, {evidence.positives} positive. {used}. Brackets are 95 % bootstrap intervals."


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
        *recipe.card.limits,
        f"Rows are split by time with {rows.embargo_days} days between what was learnt from and what was tested on; "
        "nothing is known of later changes in the data.",
        "Intervals take rows as independent; rows that share an entity are not, so the truth is less certain.",
        f"Groups looked at: {', '.join(known) or 'none'}. Nothing is known of others.",
    )


def _number(interval: Interval | None) -> str:
    if interval is None or interval.value is None:
        return "–"
    ends = "" if interval.low is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
    return f"{interval.value:.3f}{ends}"


def _plain(value: float | str | None) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
