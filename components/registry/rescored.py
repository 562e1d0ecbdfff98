"""What the evidence claims, computed once more from the predictions that lie beside it."""

from __future__ import annotations

import math
from pathlib import Path

from components.core.errors import IntegrityError
from components.core.records import Evidence

PREDICTIONS = "predictions.parquet"
TOLERANCE = 1e-4  # of an AUC; a rank more or less among ten thousand pairs


def check_rescored(folder: Path, said: Evidence) -> None:
    """The predictions hold as many rows and positives as the evidence says, and their AUC is the one that it names.

    Raises:
        IntegrityError: there are none, they are no predictions, or they say something else.
    """
    import numpy as np
    import pandas as pd
    from scipy.stats import rankdata

    path = folder / PREDICTIONS
    try:
        frame = pd.read_parquet(path, columns=["row_id", "label", "score"])
        labels, scores = frame["label"].to_numpy(np.float64), frame["score"].to_numpy(np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise IntegrityError(f"{path}: no readable predictions ({type(error).__name__}); evaluate again") from error
    inside = np.isfinite(scores) & (scores >= 0) & (scores <= 1) & np.isin(labels, (0.0, 1.0))
    if not inside.all() or frame["row_id"].duplicated().any():
        raise IntegrityError(f"{path}: holds a score or a label that is none, or a row twice; evaluate again")
    positives = int(labels.sum())
    if (len(labels), positives) != (said.rows, said.positives):
        raise IntegrityError(
            f"{path}: {len(labels)} rows with {positives} positives, the evidence says {said.rows} with "
            f"{said.positives}; evaluate again"
        )
    claimed = said.metrics["auc"].value if "auc" in said.metrics else None
    pairs = positives * (len(labels) - positives)
    if claimed is None or not pairs:
        return  # which the gate does not let pass
    auc = (rankdata(scores)[labels == 1].sum() - positives * (positives + 1) / 2) / pairs
    if not math.isclose(auc, claimed, rel_tol=0.0, abs_tol=TOLERANCE):
        raise IntegrityError(f"{path}: gives an AUC of {auc:.4f}, the evidence says {claimed:.4f}; evaluate again")
