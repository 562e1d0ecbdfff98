"""What the evidence claims, computed once more from the predictions beside it, which have to be of the test rows."""

from __future__ import annotations

import math
from pathlib import Path

from components.core.digest import file_digest
from components.core.errors import IntegrityError
from components.core.records import Evidence, TrainingSetRef

PREDICTIONS = "predictions.parquet"
TOLERANCE = 1e-4  # of an AUC; a rank more or less among ten thousand pairs


def check_test_rows(folder: Path, training_set: Path, rows: TrainingSetRef) -> None:
    """The predictions are of exactly the test split's rows, each with the label that it has there.

    Args:
        folder: published evidence. training_set: published training set. rows: its record, which names the split's
            bytes.

    Raises:
        IntegrityError: the split's file is not the one of the record, or a row or label is another one.
    """
    import pandas as pd

    path, split = folder / PREDICTIONS, training_set / "test.parquet"
    try:
        found, named = file_digest(split), rows.split("test").digest
        scored = pd.read_parquet(path, columns=["row_id", "label"]).set_index("row_id")["label"]
        known = pd.read_parquet(split, columns=["row_id", "label"]).set_index("row_id")["label"]
    except (OSError, ValueError, KeyError, StopIteration) as error:
        raise IntegrityError(f"{path}: cannot be held against {split} ({type(error).__name__})") from error
    if found != named:
        raise IntegrityError(f"{split}: has digest {found[:12]}, its record says {named[:12]}; featurise again")
    if len(foreign := scored.index.difference(known.index)):
        raise IntegrityError(f"{path}: row {foreign[0]!r} is no row of the test split; evaluate again")
    if len(left_out := known.index.difference(scored.index)):
        raise IntegrityError(f"{path}: row {left_out[0]!r} of the test split is not scored; evaluate again")
    if len(scored) != len(known) or not scored.index.is_unique:
        raise IntegrityError(f"{path}: a row is there twice; evaluate again")
    wrong = scored.index[scored.to_numpy() != known.reindex(scored.index).to_numpy()]
    if len(wrong):
        raise IntegrityError(f"{path}: row {wrong[0]!r} has another label than the test split; evaluate again")


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
