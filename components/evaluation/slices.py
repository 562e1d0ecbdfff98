"""Which rows make a slice, how good the model is there, and how far the slices of one attribute lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from components.core.errors import UserError
from components.core.recipe import Recipe
from components.core.records import Fairness, Interval
from components.evaluation.fairness import disparities
from components.evaluation.metrics import EVERY, Flags, Floats, Partition, interval, intervals, resample

GROUP_PREFIX = "group:"
COLUMN_PREFIX = "slice:"
REST = ":others"  # a group's name cannot hold a colon, so no group is called like this
MEASURED, INSUFFICIENT = "measured", "insufficient"
MOST_VALUES = 20  # of a column, the most frequent
LONGEST_VALUE = 64
RARE = "(all rarer values)"  # together: one of them alone may still be served worse
DISPARITIES = {"selection_rate": "selection_rate", "recall": "recall", "fpr": "fpr", "auc": "auc", "ece": "ece"}


@dataclass(frozen=True)
class Attribute:
    """Disjoint slices that are compared with each other: a group and the rest, or a column's values."""

    name: str
    slices: dict[str, Flags]


@dataclass(frozen=True)
class Sliced:
    """Metrics by slice, whether each is large enough to say anything, and the differences by attribute."""

    slices: dict[str, dict[str, Interval]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    fairness: dict[str, Fairness] = field(default_factory=dict)


def attributes(frame: pd.DataFrame, recipe: Recipe) -> list[Attribute]:
    """The attributes of test rows: each group, each asked pair of groups, each asked column.

    Raises:
        UserError: a pair names a group that the recipe does not have, or two slices have one name.
    """
    groups = {name.removeprefix(GROUP_PREFIX): name for name in frame.columns if name.startswith(GROUP_PREFIX)}
    inside = {name: frame[column].to_numpy(bool) for name, column in groups.items()}
    for pair in recipe.evaluation.intersections:
        if unknown := [name for name in pair if name not in groups]:
            raise UserError(
                f"evaluation.intersections: {unknown[0]!r} is no group; choose from {', '.join(groups) or 'none'}"
            )
    both = {" & ".join(pair): inside[pair[0]] & inside[pair[1]] for pair in recipe.evaluation.intersections}
    found = [Attribute(name, {name: rows, f"{name}{REST}": ~rows}) for name, rows in (inside | both).items()]
    found += [_values(frame, column) for column in recipe.evaluation.slices if f"{COLUMN_PREFIX}{column}" in frame]
    names = [name for attribute in found for name in attribute.slices]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UserError(f"evaluation: two slices are called {twice!r}; rename the group")
    return found


def measure_slices(labels: Floats, scores: Floats, found: Sequence[Attribute], recipe: Recipe) -> Sliced:
    """Every metric of every slice with its interval, all of them under the same resamples of the test rows."""
    asked = recipe.evaluation
    masks = [list(attribute.slices.values()) for attribute in found]
    partitions = [Partition.of(labels, scores, mask, recipe.serving.threshold) for mask in masks]
    samples = resample(partitions, asked.bootstrap, asked.seed)
    result = Sliced()
    for attribute, partition, sample in zip(found, partitions, samples, strict=True):
        for at, (name, mask) in enumerate(attribute.slices.items()):
            rows, positives = int(mask.sum()), int(labels[mask].sum())
            result.slices[name] = intervals(partition.values[at], sample[at], rows, positives)
            enough = rows >= asked.min_slice_rows and min(positives, rows - positives) >= asked.min_slice_positives
            result.states[name] = MEASURED if enough else INSUFFICIENT
        said = scores >= recipe.serving.threshold
        result.fairness[attribute.name] = _fairness(attribute, result, partition, sample, labels, said)
    return result


def _fairness(
    attribute: Attribute, result: Sliced, partition: Partition, samples: Floats, labels: Floats, said: Flags
) -> Fairness:
    """Largest less smallest value over the slices that are large enough; none of them left out is called fair."""
    kept = [at for at, name in enumerate(attribute.slices) if result.states[name] == MEASURED]
    names = list(attribute.slices)
    small = tuple(name for name in names if result.states[name] != MEASURED)
    if len(kept) < 2 or (small and f"{attribute.name}{REST}" in names):
        return Fairness(state=INSUFFICIENT, reason=_too_small(attribute, small, labels), left_out=small)
    masks = {names[at]: attribute.slices[names[at]] for at in kept}
    rows = int(np.sum([mask.sum() for mask in masks.values()]))
    positives = int(np.sum([labels[mask].sum() for mask in masks.values()]))
    values = np.stack([partition.values[at] for at in kept])
    spread = {name: np.ptp(samples[kept, :, EVERY.index(metric)], axis=0) for name, metric in DISPARITIES.items()}
    spread["equalized_odds"] = np.maximum(spread["recall"], spread["fpr"])
    seen = {name: float(np.ptp(values[:, EVERY.index(metric)])) for name, metric in DISPARITIES.items()}
    seen |= disparities(labels, said, masks)
    differences = {f"{name}_difference": interval(seen[name], spread[name], rows, positives) for name in spread}
    differences |= _undecided(differences, [result.slices[name] for name in masks])
    return Fairness(state=MEASURED, compared=tuple(masks), left_out=small, differences=differences)


def _undecided(differences: dict[str, Interval], parts: Sequence[dict[str, Interval]]) -> dict[str, Interval]:
    """Wider intervals where resampling shows no difference at all, because nothing, or everything, is called positive.

    The widest that the slices' own intervals allow.
    """
    wider = {}
    for name in ("selection_rate", "recall", "fpr"):
        found = differences[f"{name}_difference"]
        ends = [(part[name].low, part[name].high) for part in parts]
        known = [(low, high) for low, high in ends if low is not None and high is not None]
        if found.high is not None and found.low == found.high and len(known) == len(ends):
            widest = max(high for _, high in known) - min(low for low, _ in known)
            wider[f"{name}_difference"] = replace(found, high=max(widest, found.high))
    odds = differences["equalized_odds_difference"]
    highest = [(wider.get(name) or differences[name]).high for name in ("recall_difference", "fpr_difference")]
    if odds.high is not None and None not in highest:
        wider["equalized_odds_difference"] = replace(odds, high=max(odds.high, *(high or 0.0 for high in highest)))
    return wider


def _too_small(attribute: Attribute, small: Sequence[str], labels: Floats) -> str:
    told = []
    for name in list(small)[:3]:
        mask = attribute.slices[name]
        told.append(f"{name} has {int(mask.sum())} rows, {int(labels[mask].sum())} positive")
    return "; ".join(told) or "fewer than two slices to compare"


def _values(frame: pd.DataFrame, column: str) -> Attribute:
    """The most frequent values of a column, and all others as one slice, so that no row is left unseen.

    A missing value is `(none)`, white space and length are evened out.
    """
    values = frame[f"{COLUMN_PREFIX}{column}"].fillna("").map(_plain)
    frequent = values.value_counts().sort_index().sort_values(ascending=False, kind="stable").index[:MOST_VALUES]
    found = {f"{column}={value}": (values == value).to_numpy(bool) for value in frequent}
    if (rare := ~values.isin(frequent).to_numpy(bool)).any():
        found[f"{column}={RARE}"] = rare
    return Attribute(column, found)


def _plain(value: object) -> str:
    return " ".join(str(value).split())[:LONGEST_VALUE] or "(none)"
