"""The interval of the calibration error (ECE), which a sample shows too large: noise in a bin's gap never cancels.

A percentile bootstrap adds that noise a second time and leaves out the truth: 0 for a calibrated model. The bias is
described by Kumar, Liang and Ma, Verified Uncertainty Calibration (NeurIPS 2019), and by Ferro and Fricker, A
bias-corrected decomposition of the Brier score (2012). The ends here hold by the triangle inequality instead. Let G be
the true gaps of the bins, g = G + e those seen; the bootstrap shows how e varies.

    sum |G| >= sum |g| - sum |e|                the low end: less the 97.5 % point of sum |e|
    sum |G| <= sum |g| - sum sign(G) e          the high end: the last sum has mean 0; sign(g) stands for sign(G)

So the low end of a calibrated model is 0 in 97.5 % of samples, whatever their size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def deviations(gaps: Floats, own: Floats) -> Floats:
    """How far resampled gaps (B x bins) lie from the sample's (bins,): B x 2, sum |e| and sum sign(g) e."""
    found = gaps - own
    return np.column_stack([np.abs(found).sum(axis=1), (np.where(own < 0, -1.0, 1.0) * found).sum(axis=1)])


def ends(value: float, known: Floats) -> tuple[float, float]:
    """Low and high end of the 95 % interval of a calibration error: `known` deviations (B x 2), all finite."""
    noise, lean = np.percentile(known[:, 0], 97.5), np.percentile(known[:, 1], 2.5)
    return float(np.clip(value - noise, 0.0, value)), float(np.clip(value - lean, value, 1.0))
