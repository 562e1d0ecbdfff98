"""The leakage guards of a training set: which rules are asked, in which order, of which measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from components.contract.leakage import near_text, rules
from components.contract.leakage.leakage_measures import SPLITS, Measures
from components.contract.leakage.rules import Mark, Recurrence, Twin, cross_fitted, separation
from components.contract.standard.rules import DataContract
from components.core.errors import UserError
from components.core.recipe import Recipe
from components.core.records import RuleResult, TrainingSetRef

DAY = 86_400  # seconds
LEAST_REACH = 0.1  # of the training rows
AVAILABILITY = "availability"
AT_EVENT, AFTER_OUTCOME = "at_event", "after_outcome"
DECLARE = "if it is known only after the outcome, declare availability: after_outcome in the contract"
MEND = "a feature must end before its own row's outcome is known"


@dataclass(frozen=True)
class Case:
    """What the guards look at: `source` is the contract of the clean rows, `handed` that of the training set."""

    recipe: Recipe
    record: TrainingSetRef
    source: DataContract
    handed: DataContract | None
    training_set: Path
    measures: Measures


def guards(case: Case) -> list[RuleResult]:
    """All leakage rules with what they saw."""
    return [
        *_declared(case),
        *_features(case),
        *_text(case),
        *_source_columns(case),
        *_own_values(case),
        _shared_keys(case),
        *_twins(case),
        *_history(case),
    ]


def after_outcome(case: Case) -> list[str]:
    """Columns declared to be known only after the outcome, and the label's column."""
    declared = [
        column.name for column in case.source.columns if _availability(case.source, column.name) == AFTER_OUTCOME
    ]
    return list(dict.fromkeys([*declared, case.recipe.model.label_column]))


def _availability(contract: DataContract, name: str) -> str:
    value = dict(contract.column(name).custom).get(AVAILABILITY, AT_EVENT)
    if value not in (AT_EVENT, AFTER_OUTCOME):
        raise UserError(
            f"contract {contract.name}: {name}: availability {value!r}; write {AT_EVENT} or {AFTER_OUTCOME}"
        )
    return str(value)


def _declared(case: Case) -> Iterator[RuleResult]:
    """What feeds the model by name must be known when the event happens."""
    late = after_outcome(case)
    feeds = {f"entity {key}": column for key, column in case.recipe.features.entities.items()}
    if case.recipe.model.text_column:
        feeds["text"] = case.recipe.model.text_column
    feeds |= {f"request input {name}": column for name, column in case.recipe.features.request.items()}
    for fed, column in feeds.items():
        is_late = column in late
        yield RuleResult(
            rule="known at the event",
            outcome="fail" if is_late else "pass",
            observed=AFTER_OUTCOME if is_late else AT_EVENT,
            limit=AT_EVENT,
            subject=fed,
            reason=f"is made of {column!r}, which is known only after the outcome; take another" if is_late else "",
        )


def _features(case: Case) -> Iterator[RuleResult]:
    """Each feature alone, in all rows and in each split: its value, and whether it has one."""
    limits, measures = case.recipe.leakage, case.measures
    rows = measures.outcomes()
    for name in case.record.features:
        required = name in case.recipe.features.model_inputs
        seen = [separation(measures.by_value(name))]
        seen += [separation(measures.by_value(name, at), split) for at, split in enumerate(SPLITS)]
        yield rules.tells_outcome("feature tells the outcome", name, seen, limits, MEND, required)
        marks = _presence(measures.has_value(name), rows)
        yield rules.stands_with_one_outcome("value with one outcome only", name, marks, rows, limits, MEND)


def _text(case: Case) -> Iterator[RuleResult]:
    """The text's tokens and its length."""
    column, limits, measures = case.recipe.model.text_column, case.recipe.leakage, case.measures
    if not column:
        return
    advice = "take what was added after the outcome out of the text"
    masked, masked_key = case.source.column(column).masked, _key_masked(case)
    marks, rows = measures.tokens(limits.min_mark_share)
    shown = [
        Mark(
            f"a token of {len(mark.name) - 2} characters" if masked else mark.name,
            mark.positives,
            mark.negatives,
            () if masked_key else mark.examples,
        )
        for mark in marks
    ]
    yield rules.stands_with_one_outcome("token with one outcome only", column, shown, rows, limits, advice)
    seen = [separation(measures.text_length())]
    yield rules.tells_outcome("text length tells the outcome", column, seen, limits, advice, required=True)


def _source_columns(case: Case) -> Iterator[RuleResult]:
    """Columns of the clean rows that reveal the outcome have to be declared, whoever reads them."""
    limits, measures, late = case.recipe.leakage, case.measures, after_outcome(case)
    rows = measures.clean_outcomes()
    for name in measures.columns():
        if name in late:
            continue
        missing = _missing(case, name)
        marks = _presence(measures.column_has_value(name, missing), rows)
        yield rules.stands_with_one_outcome("column with one outcome only", name, marks, rows, limits, DECLARE)
        numbers = measures.column_numbers(name, missing)
        seen = [separation(cross_fitted(measures.column_categories(name, missing)))]
        seen += [separation(numbers)] if numbers is not None else []
        yield rules.tells_outcome("column tells the outcome", name, seen, limits, DECLARE, required=False)


def _own_values(case: Case) -> Iterator[RuleResult]:
    """No model input is, or tells, what its own row's outcome columns say. Histories of other rows do not."""
    limits, measures = case.recipe.leakage, case.measures
    columns = [name for name in after_outcome(case) if name in measures.columns()]
    for feature in case.recipe.features.model_inputs:
        for column in columns:
            missing = _missing(case, column)
            told = _tells_own(measures, feature, column, missing, limits.max_auc, limits.min_positives)
            yield RuleResult(
                rule="own row's later value",
                outcome="fail" if told else "pass",
                observed=told or "not told",
                limit="not told",
                subject=feature,
                reason=f"gives away {column!r} of its own row, known only after the outcome: {told}; {MEND}"
                * bool(told),
            )


def _tells_own(measures: Measures, feature: str, column: str, missing: Sequence[str], limit: float, least: int) -> str:
    """How a feature tells a column of its own row, in words; "" where it does not."""
    rows, equal = measures.own_value(feature, column, missing)
    if rows >= least and equal > rows / 2:
        return f"equal in {equal} of {rows} rows"
    for value, counts in measures.own_category(feature, column, missing):
        seen = separation(counts)
        if min(seen.positives, seen.negatives) >= least and seen.auc >= limit:
            return f"AUC {seen.auc:.3f} for {value[:40]!r}"
    return ""


def _shared_keys(case: Case) -> RuleResult:
    shared, rows = case.measures.shared_keys(), sum(case.measures.outcomes())
    told = "" if _key_masked(case) else f", for example {', '.join(shared.examples)}"
    why = f"{shared.between} keys stand in two splits and {shared.within} twice in one{told}; make rows unique by key"
    return rules.none_of("rows shared by key", "row_id", rows, shared.between + shared.within, why)


def _twins(case: Case) -> Iterator[RuleResult]:
    """Held-out texts that nearly stand in training: by text, and by text and entities."""
    if not case.recipe.model.text_column:
        return
    limits, masked = case.recipe.leakage, _key_masked(case)
    asked = (
        ("near-identical text in training", (), limits.max_twin_excess),
        ("near-identical text and entities in training", case.record.entities, limits.max_copy_excess),
    )
    apart, reach = _reach(case.measures.training_moments(), case.record.embargo_days)
    for name, keys, limit in asked:
        among, twins, _ = _twins_of(case.measures, 0, keys, limits.twin_similarity, apart)
        for split in (1, 2):
            rows, found, told = _twins_of(case.measures, split, keys, limits.twin_similarity, 0)
            seen = Recurrence(SPLITS[split], rows, found, among, twins, apart, reach, told)
            yield rules.recurs(name, SPLITS[split], seen, limit, masked)


def _reach(moments: np.ndarray, days: int) -> tuple[int, float]:
    """Days that training rows must lie apart to be like held-out ones, and the share of them that does, on average.

    Where training is too short for that, rows of any distance are compared.
    """
    seconds = days * DAY
    near = np.searchsorted(moments, moments + seconds, "left") - np.searchsorted(moments, moments - seconds, "right")
    reach = float(1 - near.mean() / max(len(moments), 1)) if len(moments) else 0.0
    return (days, reach) if reach >= LEAST_REACH else (0, 1.0)


def _twins_of(
    measures: Measures, split: int, keys: Sequence[str], similarity: float, apart: int
) -> tuple[int, int, tuple[Twin, ...]]:
    """Rows with a text, those with a twin among the training rows, and examples."""
    asked, names = measures.drawn_texts(split, keys)
    found = near_text.nearest(asked, measures.training_texts(keys), similarity, apart * DAY)
    filled = int((np.diff(np.concatenate([[0], asked.ends])) > 0).sum())
    twins = np.flatnonzero(found.similarity >= similarity)
    told = twins[: rules.TOLD]
    others = measures.row_ids([int(found.other[at]) for at in told])
    examples = tuple(Twin(names[at], others.get(int(found.other[at]), "?"), float(found.similarity[at])) for at in told)
    return filled, len(twins), examples


def _history(case: Case) -> Iterator[RuleResult]:
    """Every value of a model input was known of its entity when the row happened, or the contract says so."""
    tables = {path: case.measures.history_columns(path) for path in sorted(case.training_set.glob("history/*.parquet"))}
    name = "known before its row"
    for feature in case.recipe.features.model_inputs:
        table = next((path for path, columns in tables.items() if feature in columns), None)
        if table is None:
            of_request = feature in case.record.on_demand
            yield _of_the_request(name, feature) if of_request else _declared_known(case, name, feature)
            continue
        keys = [key for key in case.record.entities if key in tables[table]]
        rows, later = case.measures.known_later(table, keys, feature)
        why = f"{later} of {rows} rows have a value that was not known of their entity when they happened; {MEND}"
        yield rules.none_of(name, feature, rows, later, why)


def _of_the_request(name: str, feature: str) -> RuleResult:
    """Its inputs are the request's, each of which has to be known at the event: see the rule of that name."""
    return RuleResult(
        rule=name,
        outcome="info",
        observed="of the request",
        limit="0 rows",
        subject=feature,
        reason="computed of the request alone, whose inputs are known at the event",
    )


def _declared_known(case: Case, name: str, feature: str) -> RuleResult:
    declared = case.handed is not None and AVAILABILITY in dict(case.handed.column(feature).custom)
    known = declared and case.handed is not None and _availability(case.handed, feature) == AT_EVENT
    why = (
        "no history table holds it, so nothing shows when it was known; declare availability: at_event in the contract"
    )
    return RuleResult(
        rule=name,
        outcome="info" if known else "insufficient",
        observed="declared" if known else None,
        limit="0 rows",
        subject=feature,
        reason="declared to be known at the event" if known else f"{why} of the training set if it is",
    )


def _presence(mark: Mark, rows: tuple[int, int]) -> list[Mark]:
    """A value, and no value."""
    return [mark, Mark("no value", rows[0] - mark.positives, rows[1] - mark.negatives)]


def _missing(case: Case, column: str) -> tuple[str, ...]:
    return case.source.column(column).missing


def _key_masked(case: Case) -> bool:
    return any(case.source.column(name).masked for name in case.recipe.source.key)
