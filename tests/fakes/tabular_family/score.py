"""The scorer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors.numpy import load_file

from components.models.calibration import Calibration
from components.models.files import check_files, read_signature
from tests.fakes.tabular_family.prepare import numbers


class Scorer:
    """Scores frames."""

    def __init__(self, model_dir: Path) -> None:
        check_files(model_dir)
        self._signature = read_signature(model_dir)
        self._weights = load_file(model_dir / "model.safetensors")
        self._calibration = Calibration(**self._signature["calibration"])

    def score(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Calibrated probabilities, shape (rows,)."""
        odds = numbers(self._signature, frame) @ self._weights["weight"][0] + self._weights["bias"][0]
        return self._calibration.probability(odds)
