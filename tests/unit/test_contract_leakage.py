"""The leakage rules as values: what is refused, what passes, and what is no evidence."""

from __future__ import annotations

import numpy as np
import pytest

from components.contract.leakage.rules import (
    Counts,
    Mark,
    Recurrence,
    Separation,
    Twin,
    cross_fitted,
    none_of,
    recurs,
    separation,
    stands_with_one_outcome,
    tells_outcome,
)
from components.core.recipe import Leakage

LIMITS = Leakage()


def _counts(*groups: tuple[float, int, int]) -> Counts:
    scores, positives, negatives = zip(*groups, strict=True)
    return Counts(np.array(scores), np.array(positives), np.array(negatives))


def _tells(*seen: Separation, required: bool = True) -> str:
    return tells_outcome("rule", "column", seen, LIMITS, "advice", required).outcome


def test_the_direction_of_a_score_does_not_matter() -> None:
    """A score that is low for positives separates as well as one that is high."""
    assert separation(_counts((0.0, 100, 0), (1.0, 0, 100))).auc == 1.0
    assert separation(_counts((0.0, 0, 100), (1.0, 100, 0))).auc == 1.0


def test_a_constant_tells_nothing() -> None:
    """One group has AUC one half, with an interval around it."""
    seen = separation(_counts((7.0, 50, 450)))
    assert seen.auc == 0.5
    assert seen.low < 0.5 < seen.high


def test_the_interval_is_that_of_hanley_and_mcneil() -> None:
    """Their worked example: AUC 0.893 on 51 abnormal and 58 normal images has a standard error of 0.032."""
    ratings = _counts((1, 3, 33), (2, 2, 6), (3, 2, 6), (4, 11, 11), (5, 33, 2))
    seen = separation(ratings)
    assert seen.auc == pytest.approx(0.893, abs=5e-4)
    assert (seen.high - seen.low) / 2 / 1.96 == pytest.approx(0.032, abs=1e-3)


def test_one_outcome_only_is_no_auc() -> None:
    """Without a negative row there is nothing to separate, and that is no pass."""
    assert np.isnan(separation(_counts((1.0, 30, 0))).auc)
    assert _tells(separation(_counts((1.0, 30, 0)))) == "insufficient"


@pytest.mark.parametrize(
    ("auc", "positives", "where", "outcome"),
    [
        (0.94, 500, "", "pass"),
        (0.96, 500, "", "fail"),
        (0.96, 25, "", "fail"),
        (0.96, 25, "test", "pass"),
        (1.0, 25, "test", "fail"),
        (1.0, 19, "", "insufficient"),
    ],
)
def test_an_auc_near_one_is_refused(auc: float, positives: int, where: str, outcome: str) -> None:
    """On all rows by the estimate, on a split by the interval's lower end, on few rows not at all."""
    low = auc if auc == 1.0 else auc - 0.04
    assert _tells(Separation(auc, low, 1.0, positives, 1000, where)) == outcome


def test_few_rows_do_not_stop_a_column_that_no_model_reads() -> None:
    """They are told; the model's inputs have to give evidence."""
    seen = Separation(1.0, 1.0, 1.0, 3, 1000)
    assert (_tells(seen, required=True), _tells(seen, required=False)) == ("insufficient", "info")


def test_categories_are_scored_by_rows_that_are_not_their_own() -> None:
    """A column with another value in every row tells nothing; one that follows the outcome tells all."""
    unique = np.zeros((400, 2, 2), dtype=np.int64)
    for row in range(400):
        unique[row, row % 2, int(row % 10 < 2)] = 1
    assert separation(cross_fitted(unique)).auc == pytest.approx(0.5, abs=0.02)
    telling = np.array([[[90, 0], [90, 0]], [[0, 10], [0, 10]]])
    assert separation(cross_fitted(telling)).auc == 1.0


@pytest.mark.parametrize(
    ("positives", "negatives", "outcome"),
    [
        (60, 0, "fail"),  # on 60 of 200 positives and nowhere else
        (10, 0, "pass"),  # too few to be worth a rule
        (60, 5, "pass"),  # a strong word, no mark
        (0, 600, "fail"),  # on a third of the negatives and on no positive, 0.9^600
        (0, 40, "pass"),  # as often by chance
        (195, 50, "fail"),  # alone an AUC of .97
    ],
)
def test_a_mark_of_one_outcome_is_refused(positives: int, negatives: int, outcome: str) -> None:
    """By its purity and how much of the outcome it covers, or by its AUC; chance is no evidence."""
    marks = [Mark("'refunded'", positives, negatives)]
    result = stands_with_one_outcome("rule", "text", marks, (200, 1800), LIMITS, "advice")
    assert result.outcome == outcome
    assert ("'refunded'" in result.reason) == (outcome == "fail")


def test_marks_of_too_few_rows_are_no_evidence() -> None:
    """With 19 positives no mark can be told from chance."""
    assert stands_with_one_outcome("rule", "text", [], (19, 500), LIMITS, "advice").outcome == "insufficient"


@pytest.mark.parametrize(
    ("rows", "twins", "training", "outcome"),
    [
        (570, 0, (1272, 31), "pass"),
        (570, 30, (1272, 31), "fail"),  # 5 % where 2.4 % recur
        (823, 814, (2300, 2275), "pass"),  # every text is a template
        (570, 13, (1272, 0), "fail"),
        (40, 1, (1272, 0), "pass"),  # 2.5 %, but a single row
        (0, 0, (1272, 31), "insufficient"),
        (570, 0, (0, 0), "insufficient"),
    ],
)
def test_twins_are_held_against_how_texts_recur_in_training(
    rows: int, twins: int, training: tuple[int, int], outcome: str
) -> None:
    """Templates recur on both sides; copies raise the held-out side alone."""
    seen = Recurrence("test", rows, twins, *training, examples=(Twin("9", "1", 0.97),))
    result = recurs("rule", "test", seen, 0.02, masked=False)
    assert result.outcome == outcome
    assert ("9 and 1 (0.97)" in result.reason) == (outcome == "fail")


def test_a_smaller_reach_is_made_up_for() -> None:
    """Rows with one chance in a hundred of a twin a training row: half the rows give half the twins, rare or common."""
    for chances in (3, 300):
        half, whole = 1 - 0.99 ** (chances / 2), 1 - 0.99**chances
        seen = Recurrence("test", 0, 0, 0, 0, reach=0.5)
        assert seen.expected(1000 * half, 1000) == pytest.approx(whole)


def test_a_personal_key_is_not_shown() -> None:
    """The pair is told, its keys are masked."""
    seen = Recurrence("test", 500, 100, 1000, 0, examples=(Twin("anna@x.org", "anna@x.org", 1.0),))
    result = recurs("rule", "test", seen, 0.02, masked=True)
    assert result.outcome == "fail"
    assert "anna" not in result.reason


def test_no_row_is_no_evidence() -> None:
    """A rule that no row may break needs rows."""
    assert [none_of("r", "s", rows, bad, "why").outcome for rows, bad in ((0, 0), (5, 0), (5, 1))] == [
        "insufficient",
        "pass",
        "fail",
    ]
