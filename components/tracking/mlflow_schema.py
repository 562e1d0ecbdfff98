"""The input signature of a model version as MLflow reads it: the file `MLmodel` at the version's source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

MLMODEL = "MLmodel"
FLAVOR = "pilotline"
EPOCH = "1970-01-01 00:00:00"  # the same model gives the same file


def has_schema(folder: Path) -> bool:
    """Whether there is one."""
    return (folder / MLMODEL).is_file()


def write_schema(folder: Path, schema: Mapping[str, Any], digest: str) -> None:
    """Write it.

    The flavor names no loader: MLflow shows the columns and loads nothing.

    Args:
        folder: holds `model/`.
        schema: {"inputs", "outputs"}, each a list of {"name", "type", "required"}.
        digest: the model's, from which the file's own id is made.
    """
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema

    sides = [
        Schema([ColSpec(type=item["type"], name=item["name"], required=item["required"]) for item in schema[side]])
        for side in ("inputs", "outputs")
    ]
    model = Model(
        signature=ModelSignature(inputs=sides[0], outputs=sides[1]),
        flavors={FLAVOR: {"data": "model", "digest": digest}},
        model_uuid=digest[:32],
        utc_time_created=EPOCH,
    )
    model.save(str(folder / MLMODEL))
