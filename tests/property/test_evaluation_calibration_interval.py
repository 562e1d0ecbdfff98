"""The interval of the calibration error covers the truth: 0 of a calibrated model, and what another one is off by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.records import Interval
from components.evaluation.metrics import measure

SAMPLES = 60


def _eces(rows: int, off: float, beta: tuple[float, float]) -> list[Interval]:
    """Of samples whose labels are drawn with the score plus `off`, so that the true ECE is `off` exactly."""
    rng = np.random.default_rng([rows, int(100 * off)])
    found = []
    for seed in range(SAMPLES):
        scores = rng.beta(*beta, rows) * (1 - off)
        labels = (rng.random(rows) < scores + off).astype(np.float64)
        found.append(measure(labels, scores, 200, seed)["ece"])
    return found


@pytest.mark.parametrize("beta", [(1.0, 1.0), (0.3, 6.0)])
@pytest.mark.parametrize("rows", [100, 1000])
def test_the_interval_of_a_calibrated_model_holds_nought(rows: int, beta: tuple[float, float]) -> None:
    """In at least 90 % of samples of a perfectly calibrated model, whose plain estimate is never 0, the low end is."""
    found = _eces(rows, 0.0, beta)
    assert all(each.value for each in found)
    assert sum(each.low == 0.0 for each in found) >= 0.9 * SAMPLES


@pytest.mark.parametrize("beta", [(1.0, 1.0), (1.0, 5.0)])
@pytest.mark.parametrize("rows", [100, 1000])
def test_the_interval_of_a_miscalibrated_model_holds_its_error(rows: int, beta: tuple[float, float]) -> None:
    """Off by .1: in at least 90 % of samples the interval holds .1; with many rows its low end is above 0."""
    found = _eces(rows, 0.1, beta)
    assert sum(each.low <= 0.1 <= each.high for each in found) >= 0.9 * SAMPLES  # type: ignore[operator]
    assert rows < 1000 or all(each.low for each in found)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), rows=st.integers(2, 60), resamples=st.integers(1, 30))
def test_the_ends_lie_around_the_value_within_nought_and_one(seed: int, rows: int, resamples: int) -> None:
    """Of any sample, however small."""
    rng = np.random.default_rng(seed)
    found = measure((rng.random(rows) < 0.5).astype(np.float64), rng.random(rows), resamples, seed)["ece"]
    if found.low is not None and found.high is not None and found.value is not None:
        assert 0.0 <= found.low <= found.value <= found.high <= 1.0
