"""What all sections of a recipe share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
RequestName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
ClusterName = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"  # a Kubernetes label value; empty: none
NodeLabel = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9._-]{0,63}$"  # a Kubernetes label key; empty: none
NamePattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)
