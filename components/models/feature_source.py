"""Where a model's features come from is part of its signature: it is given no others, in training, tests or serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from components.core.errors import IntegrityError
from components.core.records import TrainingSetRef


@dataclass(frozen=True)
class FeatureSource:
    """A feature service, the features that are read of it, in order, and what computes those of the request.

    on_demand: the service's features that are computed of the request; on_demand_digest: of the code that does.
    """

    service: str
    features: tuple[str, ...]
    on_demand: tuple[str, ...] = ()
    on_demand_digest: str = ""

    @classmethod
    def of(cls, record: TrainingSetRef, features: Sequence[str]) -> Self:
        """These features of a training set."""
        return cls(record.feature_service, tuple(features), record.on_demand, record.on_demand_digest)

    def code_of(self, features: Sequence[str]) -> str:
        """Digest of the code that computes these features, "" where none of them is of the request."""
        return self.on_demand_digest if set(features) & set(self.on_demand) else ""

    def signed(self) -> dict[str, Any]:
        """What a model's signature says of its features."""
        features = list(self.features)
        return {"feature_service": self.service, "features": features, "on_demand_digest": self.code_of(features)}


def check_source(signature: Mapping[str, Any], given: FeatureSource, what: str, *, exact: bool = True) -> None:
    """Refuse to give a model other features than it was trained on.

    Args:
        signature: the model's.
        given: what it would be given.
        what: the model, in words.
        exact: the features are the model's, in its order; else it reads some of them, each by its name.

    Raises:
        IntegrityError: another feature service, other features or another order, or other on-demand code.
    """
    features = tuple(signature["features"])
    if signature["feature_service"] != given.service:
        raise IntegrityError(
            f"{what}: was trained on feature service {signature['feature_service']!r} and cannot be given "
            f"{given.service!r}; a model of another service is trained anew, under a model.name of its own"
        )
    if exact and features != given.features:
        raise IntegrityError(
            f"{what}: reads {', '.join(features)} in this order, but is given {', '.join(given.features)}; set "
            "features.model_inputs as it was, or train again"
        )
    if absent := [name for name in features if name not in given.features]:
        raise IntegrityError(
            f"{what}: reads {absent[0]!r}, but is given {', '.join(given.features)} only; add it to "
            "features.model_inputs, or train under a model.name of its own"
        )
    ours, theirs = signature.get("on_demand_digest", ""), given.code_of(features)
    if ours != theirs:
        raise IntegrityError(
            f"{what}: its features of the request were computed by on-demand code {ours[:12] or 'none'}, and would be "
            f"by {theirs[:12] or 'none'}; restore on_demand.py, or train again under a model.name of its own"
        )
