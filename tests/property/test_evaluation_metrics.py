"""Metrics against scikit-learn and against plain loops, over many small samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    precision_recall_curve,
    roc_auc_score,
)

from components.evaluation.curves import calibration_points, confusion, precision_recall_points, roc_points
from components.evaluation.metrics import (
    EVERY,
    METRICS,
    MOST_GROUPS,
    OPERATING,
    Partition,
    Scored,
    measure,
    measure_each,
    paired_auc_difference,
    resample,
)


@st.composite
def samples(draw: st.DrawFn, distinct: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of both kinds, scores (often tied) and whole-number weights that keep both labels."""
    rows = draw(st.integers(2, 60))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < draw(st.floats(0.05, 0.95))).astype(float)
    labels[:2] = (0.0, 1.0)
    levels = draw(st.integers(1, 12))
    scores = rng.permutation(rows) / rows if distinct else rng.integers(0, levels + 1, rows) / levels
    weights = rng.integers(0, 4, rows).astype(float)
    weights[:2] = np.maximum(weights[:2], 1)
    return labels, scores, weights


@settings(max_examples=150, deadline=None)
@given(samples())
def test_weighted_metrics_equal_scikit_learn(sample: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    """A resample's metrics are what scikit-learn computes with the resample's counts as weights, ties included."""
    labels, scores, weights = sample
    scored = Scored.of(labels, scores)
    ours = dict(zip(EVERY, scored.statistics(scored.counts(weights))[0], strict=True))
    assert ours["auc"] == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    assert ours["average_precision"] == pytest.approx(average_precision_score(labels, scores, sample_weight=weights))
    assert ours["brier"] == pytest.approx(brier_score_loss(labels, scores, sample_weight=weights))
    assert ours["log_loss"] == pytest.approx(log_loss(labels, scores, sample_weight=weights, labels=[0, 1]))


@settings(max_examples=100, deadline=None)
@given(samples(distinct=True))
def test_calibration_error_is_the_mean_gap_of_equal_count_bins(sample: tuple[np.ndarray, ...]) -> None:
    """A plain loop over rows in order of score, ten to the whole, gives the same number."""
    labels, scores, _ = sample
    order, rows, total = np.argsort(scores), len(scores), 0.0
    for bin_ in range(10):
        members = [row for rank, row in enumerate(order) if 10 * rank // rows == bin_]
        if members:
            total += abs(sum(labels[row] - scores[row] for row in members)) / rows
    assert measure(labels, scores, 0, 0)["ece"].value == pytest.approx(total)
    points = calibration_points(labels, scores)
    assert sum(point[2] for point in points) == rows
    assert sum(abs(mean - rate) * count for mean, rate, count in points) / rows == pytest.approx(total)


@settings(max_examples=60, deadline=None)
@given(samples(), st.randoms(use_true_random=False))
def test_value_lies_in_its_interval_and_row_order_does_not_matter(
    sample: tuple[np.ndarray, ...], shuffler: object
) -> None:
    """Point estimates are a function of the set of rows; ends, where given, hold the value; repeats are equal."""
    labels, scores, _ = sample
    found = measure(labels, scores, 40, 3)
    assert found == measure(labels, scores, 40, 3)
    order = list(range(len(labels)))
    shuffler.shuffle(order)  # type: ignore[attr-defined]
    turned = measure(labels[order], scores[order], 40, 3)
    for name in METRICS:
        value, low, high = found[name].value, found[name].low, found[name].high
        assert turned[name].value == pytest.approx(value, abs=1e-12)
        assert (low is None) == (high is None)
        assert low is None or low <= value <= high


@settings(max_examples=100, deadline=None)
@given(samples(), st.floats(0.0, 1.0))
def test_the_operating_point_is_what_the_confusion_matrix_says(
    sample: tuple[np.ndarray, ...], threshold: float
) -> None:
    """Rates at a threshold equal those of scikit-learn's weighted confusion matrix; a rate of nothing is undefined."""
    labels, scores, weights = sample
    (tn, fp), (fn, tp) = confusion_matrix(labels, scores >= threshold, sample_weight=weights, labels=[0, 1])
    scored = Scored.of(labels, scores, threshold)
    ours = dict(zip(EVERY, scored.statistics(scored.counts(weights))[0], strict=True))
    assert ours["precision"] == pytest.approx(tp / (tp + fp) if tp + fp else np.nan, nan_ok=True)
    assert [ours[name] for name in OPERATING[1:]] == pytest.approx(
        [tp / (tp + fn), fp / (fp + tn), (tp + fp) / weights.sum(), (tp + tn) / weights.sum()]
    )
    assert np.isnan(Scored.of(labels, scores).statistics(scored.counts())[0, -len(OPERATING) :]).all()


def test_the_interval_is_the_percentile_of_a_plain_bootstrap() -> None:
    """Scikit-learn on each resample of rows, one after the other, gives the same ends."""
    rng = np.random.default_rng(5)
    labels = (rng.random(200) < 0.3).astype(float)
    scores = np.clip(labels * 0.3 + rng.random(200) * 0.7, 0, 1)
    draw, values = np.random.default_rng(9), []
    for _ in range(80):
        rows = draw.integers(0, 200, size=200)
        values.append(roc_auc_score(labels[rows], scores[rows]))
    found = measure(labels, scores, 80, 9)["auc"]
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])))


def test_grouped_resamples_stay_close_to_those_of_rows() -> None:
    """20,000 distinct scores in about 500 groups: each resample's metrics lie within a tenth of their own spread."""
    rng = np.random.default_rng(6)
    labels = (rng.random(20_000) < 0.1).astype(float)
    scores = 1 / (1 + np.exp(-(rng.normal(size=20_000) + 1.5 * labels - 2.3)))
    partition = Partition.of(labels, scores, [np.ones(20_000, bool)], 0.3)
    assert partition.parts[0].groups < MOST_GROUPS + 20  # type: ignore[union-attr]
    (samples,) = resample([partition], 25, 4)
    draw = np.random.default_rng(4)
    for at in range(25):
        rows = draw.integers(0, 20_000, size=20_000)
        said, truth = scores[rows], labels[rows]
        expected = [roc_auc_score(truth, said), average_precision_score(truth, said), log_loss(truth, said)]
        expected += [brier_score_loss(truth, said)]
        gaps = np.abs(samples[0, at, :4] - expected)
        assert (gaps < 0.1 * samples[0, :, :4].std(axis=0)).all()
        assert samples[0, at, EVERY.index("recall")] == pytest.approx((said >= 0.3)[truth == 1].mean())


@settings(max_examples=40, deadline=None)
@given(samples(), st.integers(0, 2**32 - 1))
def test_slices_are_resampled_with_the_whole(sample: tuple[np.ndarray, ...], seed: int) -> None:
    """Every part of a partition, in every resample, has the metrics of its drawn rows; empty parts have none."""
    labels, scores, _ = sample
    where = np.random.default_rng(seed).integers(0, 3, len(labels))
    masks = [where == 0, where == 1, np.zeros(len(labels), bool)]
    (found,) = resample([Partition.of(labels, scores, masks, 0.5)], 5, seed)
    draw = np.random.default_rng(seed)
    for at in range(5):
        rows = draw.integers(0, len(labels), size=len(labels))
        for part, mask in enumerate(masks):
            drawn = rows[mask[rows]]
            if not len(drawn):
                assert np.isnan(found[part, at]).all() or not mask.any()
                continue
            brier = np.mean((labels[drawn] - scores[drawn]) ** 2)
            assert found[part, at, EVERY.index("brier")] == pytest.approx(brier)
            assert found[part, at, EVERY.index("selection_rate")] == pytest.approx((scores[drawn] >= 0.5).mean())
            if 0 < labels[drawn].sum() < len(drawn):
                assert found[part, at, 0] == pytest.approx(roc_auc_score(labels[drawn], scores[drawn]))
    assert np.isnan(found[2]).all()


def test_several_scorings_are_measured_as_each_alone() -> None:
    """The same resamples for all of them, so that they can be compared in pairs."""
    rng = np.random.default_rng(3)
    labels = (rng.random(150) < 0.4).astype(float)
    scorings = {"one": rng.random(150), "two": rng.random(150)}
    together = measure_each(labels, scorings, 50, 1, 0.5)
    assert together == {name: measure(labels, scores, 50, 1, 0.5) for name, scores in scorings.items()}
    assert set(together["one"]) == set(EVERY)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Two normals a standard deviation apart have AUC .7602; 95 % intervals hold it in 88 to 100 % of samples."""
    rng, held = np.random.default_rng(1), 0
    for seed in range(150):
        labels = (rng.random(300) < 0.3).astype(float)
        scores = 1 / (1 + np.exp(-(rng.normal(size=300) + labels)))
        found = measure(labels, scores, 200, seed)["auc"]
        held += int(found.low <= 0.76025 <= found.high)  # type: ignore[operator]
    assert 132 <= held <= 150


def test_a_paired_difference_is_tighter_than_the_difference_of_two_intervals() -> None:
    """Two alike models resampled together: the same rows, so most of the noise cancels; a model less itself is 0."""
    rng = np.random.default_rng(2)
    labels = (rng.random(400) < 0.3).astype(float)
    first = np.clip(labels * 0.2 + rng.random(400) * 0.8, 0, 1)
    second = np.clip(first + rng.normal(0, 0.02, 400), 0, 1)
    difference = paired_auc_difference(labels, first, second, 200, 0)
    alone = measure(labels, first, 200, 0)["auc"]
    assert difference.high - difference.low < (alone.high - alone.low) / 2  # type: ignore[operator]
    same = paired_auc_difference(labels, first, first, 200, 0)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_blocks_of_any_size_give_the_same_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one resample at a time, or for all: the same intervals."""
    rng = np.random.default_rng(0)
    labels, scores = (rng.random(60) < 0.4).astype(float), rng.random(60)
    found = measure(labels, scores, 30, 2)
    monkeypatch.setattr("components.evaluation.metrics.BLOCK_CELLS", 25)
    again = measure(labels, scores, 30, 2)
    assert [again[name].low for name in METRICS] == pytest.approx([found[name].low for name in METRICS])
    assert [again[name].high for name in METRICS] == pytest.approx([found[name].high for name in METRICS])


@settings(max_examples=60, deadline=None)
@given(samples())
def test_precision_over_recall_is_scikit_learns(sample: tuple[np.ndarray, ...]) -> None:
    """The same points, from the highest score down."""
    labels, scores, _ = sample
    precision, recall, _ = precision_recall_curve(labels, scores)
    expected = np.column_stack([recall, precision])[:-1][::-1]
    assert np.array(precision_recall_points(labels, scores)) == pytest.approx(expected)


@settings(max_examples=80, deadline=None)
@given(samples())
def test_the_curve_is_finite_monotone_and_has_the_auc_under_it(sample: tuple[np.ndarray, ...]) -> None:
    """The curve runs from (0, 0) to (1, 1) with falling thresholds; its area is the AUC."""
    labels, scores, _ = sample
    points = np.array(roc_points(labels, scores))
    assert np.isfinite(points).all()
    assert points[0, :2].tolist() == [0, 0]
    assert points[-1, :2].tolist() == [1, 1]
    assert (np.diff(points[:, :2], axis=0) >= 0).all()
    assert (np.diff(points[:, 2]) < 0).all()
    assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(roc_auc_score(labels, scores))


def test_a_long_curve_is_thinned_to_two_hundred_points() -> None:
    """Ends stay, the count is bounded."""
    rng = np.random.default_rng(0)
    points = roc_points((rng.random(5000) < 0.5).astype(float), rng.random(5000))
    assert len(points) == 200
    assert points[-1][:2] == (1.0, 1.0)


def test_one_label_or_no_rows_give_no_rank_metric() -> None:
    """Nothing is made up where nothing can be measured."""
    only = measure(np.zeros(20), np.linspace(0, 1, 20), 30, 0)
    assert only["auc"].value is None
    assert only["average_precision"].value is None
    assert only["brier"].value is not None
    none = measure(np.zeros(0), np.zeros(0), 30, 0)
    assert all((found.value, found.n) == (None, 0) for found in none.values())
    assert roc_points(np.zeros(20), np.linspace(0, 1, 20)) == []


def test_too_few_positives_give_a_value_without_an_interval() -> None:
    """With one positive row a third of the resamples cannot be measured: no interval is claimed."""
    labels = np.zeros(100)
    labels[50] = 1
    found = measure(labels, np.linspace(0, 1, 100), 100, 0)["auc"]
    assert found.value is not None
    assert (found.low, found.high) == (None, None)


@pytest.mark.parametrize(
    ("labels", "scores"),
    [([0, 1], [0.1]), ([0, 2], [0.1, 0.2]), ([0, 1], [0.1, np.nan]), ([0, 1], [0.1, 1.5]), ([0, 1], [-np.inf, 0.5])],
)
def test_what_is_no_label_or_probability_is_refused(labels: list[float], scores: list[float]) -> None:
    """NaN, infinity, other ranges and other lengths never become a metric."""
    with pytest.raises(ValueError, match=r"labels|scores"):
        measure(np.array(labels, float), np.array(scores, float), 10, 0)


def test_confusion_counts_by_the_threshold() -> None:
    """A score equal to the threshold is positive."""
    labels, scores = np.array([0.0, 0, 1, 1, 1]), np.array([0.2, 0.5, 0.5, 0.7, 0.1])
    assert confusion(labels, scores, 0.5) == [[1, 1], [1, 2]]
