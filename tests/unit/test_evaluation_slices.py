"""Slices, fairness between them, and what is too small to be called fair."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import (
    MetricFrame,
    equalized_odds_difference,
    false_positive_rate,
    selection_rate,
    true_positive_rate,
)
from sklearn.metrics import roc_auc_score

from components.core.errors import UserError
from components.core.recipe import Recipe
from components.evaluation.slices import attributes, measure_slices
from components.features.rows import typed_rows
from tests.fakes.judged import GROUP, small_recipe

RATES = {"selection_rate": selection_rate, "recall": true_positive_rate, "fpr": false_positive_rate}


def rows(seed: int = 0, count: int = 900) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Rows of two groups and a column of products; the model is worse inside the group."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            f"group:{GROUP}": draw.random(count) < 0.4,
            "group:Other": draw.random(count) < 0.3,
            "slice:product": draw.choice(["loan", "card", "rare\nthing", ""], count, p=[0.5, 0.3, 0.01, 0.19]),
        }
    )
    labels = (draw.random(count) < 0.3).astype(float)
    signal = np.where(frame[f"group:{GROUP}"], 0.3, 2.0)
    return frame, labels, 1 / (1 + np.exp(-(draw.normal(size=count) + signal * labels - 0.7)))


def asked(**evaluation: object) -> Recipe:
    """A recipe with slices by column and an intersection."""
    values = {"bootstrap": 80, "slices": ["product"], "intersections": [[GROUP, "Other"]], "min_slice_rows": 50}
    return small_recipe(evaluation=values | evaluation, serving={"threshold": 0.5})


def test_rates_and_differences_are_fairlearns() -> None:
    """Each slice's rates equal MetricFrame's by group, each difference fairlearn's own, and lies in its interval."""
    frame, labels, scores = rows()
    found = measure_slices(labels, scores, attributes(frame, asked()), asked())
    inside, said = frame[f"group:{GROUP}"], scores >= 0.5
    theirs = MetricFrame(metrics=RATES, y_true=labels, y_pred=said, sensitive_features=inside)
    for name, member in ((GROUP, True), (f"{GROUP}:others", False)):
        for metric in RATES:
            assert found.slices[name][metric].value == pytest.approx(theirs.by_group.loc[member, metric])
        rows_of = (inside == member).to_numpy()
        assert found.slices[name]["auc"].value == pytest.approx(roc_auc_score(labels[rows_of], scores[rows_of]))
    fair = found.fairness[GROUP]
    assert (fair.state, fair.compared, fair.left_out) == ("measured", (GROUP, f"{GROUP}:others"), ())
    for metric in RATES:
        assert fair.differences[f"{metric}_difference"].value == pytest.approx(theirs.difference()[metric])
    odds = equalized_odds_difference(labels, said, sensitive_features=inside)
    assert fair.differences["equalized_odds_difference"].value == pytest.approx(odds)
    for interval in fair.differences.values():
        assert interval.low is not None
        assert interval.low <= interval.value <= interval.high  # type: ignore[operator]
    assert fair.differences["auc_difference"].low > 0.1  # type: ignore[operator]


def test_an_interval_of_a_difference_is_that_of_fairlearn_on_each_resample() -> None:
    """MetricFrame, one resample of the rows after the other, gives the same ends."""
    frame, labels, scores = rows(2, 300)
    recipe = asked(bootstrap=40, slices=[], intersections=[], min_slice_positives=5)
    found = measure_slices(labels, scores, attributes(frame, recipe), recipe)
    draw, values = np.random.default_rng(0), []
    for _ in range(40):
        at = draw.integers(0, 300, size=300)
        theirs = MetricFrame(
            metrics=RATES,
            y_true=labels[at],
            y_pred=scores[at] >= 0.5,
            sensitive_features=frame[f"group:{GROUP}"].iloc[at],
        )
        values.append(theirs.difference()["selection_rate"])
    ours = found.fairness[GROUP].differences["selection_rate_difference"]
    assert (ours.low, ours.high) == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])))


def test_a_slice_that_is_too_small_is_insufficient_and_never_fair() -> None:
    """Few rows or few positives: no difference is given, the reason is, and a column goes on without that value."""
    frame, labels, scores = rows()
    small = frame.assign(**{f"group:{GROUP}": np.arange(len(frame)) < 30})
    found = measure_slices(labels, scores, attributes(small, asked()), asked())
    assert found.states[GROUP] == "insufficient"
    assert found.states[f"{GROUP}:others"] == "measured"
    fair = found.fairness[GROUP]
    assert (fair.state, fair.differences, fair.left_out) == ("insufficient", {}, (GROUP,))
    assert fair.reason.startswith(f"{GROUP} has 30 rows, ")
    column = found.fairness["product"]
    assert column.left_out == ("product=rare thing",)
    assert column.compared == ("product=loan", "product=card", "product=(none)")
    assert found.states["product=rare thing"] == "insufficient"
    none = np.where(frame[f"group:{GROUP}"], 0.0, labels)
    unlucky = measure_slices(none, scores, attributes(frame, asked()), asked())
    assert unlucky.fairness[GROUP].state == "insufficient"
    assert unlucky.slices[GROUP]["auc"].value is None


def test_an_intersection_is_the_rows_of_both_groups() -> None:
    """Beside all other rows, under one name."""
    frame, labels, _ = rows()
    found = {one.name: one for one in attributes(frame, asked())}
    both = frame[f"group:{GROUP}"] & frame["group:Other"]
    name = f"{GROUP} & Other"
    assert (found[name].slices[name] == both.to_numpy()).all()
    assert (found[name].slices[f"{name}:others"] == ~both.to_numpy()).all()
    assert sum(mask.sum() for mask in found["product"].slices.values()) == len(labels)


def test_names_that_do_not_exist_or_are_there_twice_are_refused() -> None:
    """The group and what there is to choose from; a group called like a column's value."""
    frame, _, _ = rows()
    with pytest.raises(UserError, match="'Nobody' is no group; choose from Older, Other"):
        attributes(frame, asked(intersections=[[GROUP, "Nobody"]]))
    with pytest.raises(UserError, match="two slices are called 'product=loan'"):
        attributes(frame.rename(columns={"group:Other": "group:product=loan"}), asked(intersections=[]))


def test_nobody_called_positive_is_not_proof_of_fairness() -> None:
    """No row over the threshold in either group: the difference is 0, and its interval says how little that proves."""
    frame, labels, scores = rows()
    found = measure_slices(labels, scores / 10, attributes(frame, asked()), asked())
    inside = found.slices[GROUP]["recall"]
    positives = int(labels[frame[f"group:{GROUP}"]].sum())
    assert (inside.value, inside.low) == (0.0, 0.0)
    assert inside.high == pytest.approx(1 - 0.025 ** (1 / positives))
    for name in ("recall_difference", "equalized_odds_difference"):
        difference = found.fairness[GROUP].differences[name]
        assert difference.value == 0.0
        assert difference.high == pytest.approx(inside.high)


def test_slice_columns_reach_the_training_set_and_absent_ones_are_named() -> None:
    """The column's values as text beside each row; a column that is not there is named with the nearest."""
    clean = pd.DataFrame({"id": ["1"], "when": ["2023-01-02"], "answer": ["yes"], "story": ["x"], "who": ["w"]})
    clean = clean.assign(tags="", product="loan")
    assert typed_rows(clean, asked())["slice:product"].tolist() == ["loan"]
    with pytest.raises(UserError, match=r"evaluation.slices\[0\]: the clean rows have no column 'produkt'"):
        typed_rows(clean, asked(slices=["produkt"]))


def test_values_beyond_the_most_frequent_are_one_slice() -> None:
    """No row of a column that the recipe cuts by is left unseen."""
    values = [f"v{at % 25:02d}" for at in range(500)]
    frame = pd.DataFrame({"slice:Region": values})
    cut = attributes(frame, small_recipe(evaluation={"slices": ["Region"]}))[0].slices
    assert len(cut) == 21
    assert np.sum(list(cut.values()), axis=0).tolist() == [1] * 500
    assert cut["Region=(all rarer values)"].sum() == 100
