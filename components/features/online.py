"""Features for a decision being made now, from the online store of a published training set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from components.core.errors import UserError
from components.core.publish import verify
from components.core.recipe import Recipe
from components.core.records import TrainingSetRef
from components.features.repository import nearest


class OnlineFeatures:
    """Reads the recipe's model inputs for one entity row; safe from any thread, never writes the published folder.

    Attributes:
        features: the model inputs in prompt order.
        join_keys: the entity keys that they need.
        record: the training set that the store belongs to.
    """

    def __init__(self, training_set_dir: Path, recipe: Recipe) -> None:
        """Verify the folder and open a private copy of its store (about six seconds: Feast is imported).

        Raises:
            IntegrityError: the folder's bytes differ from its manifest.
            UserError: the recipe's model inputs are not in this training set.
        """
        from components.features.feast_store import OnlineStore

        verify(training_set_dir)
        self.record = TrainingSetRef.read(training_set_dir)
        self.features = recipe.features.model_inputs
        for feature in self.features:
            if feature not in self.record.features:
                raise UserError(
                    f"features.model_inputs: {feature!r} is not in training set {training_set_dir}"
                    f"{nearest(feature, self.record.features)}"
                )
        self._ttl = timedelta(days=recipe.features.ttl_days)
        self._store = OnlineStore(training_set_dir)
        service = self._store.service(self.record.feature_service)
        self.join_keys = service.keys_of(self.features)
        self._references = [service.reference(feature) for feature in self.features]
        self.read(dict.fromkeys(self.join_keys, ""))  # the first read is the slow one

    def read(self, entities: Mapping[str, str], at: datetime | None = None) -> dict[str, dict[str, Any]]:
        """The newest value of each model input.

        Args:
            entities: a text value for each of `join_keys`; others are ignored, an unknown entity has no history.
            at: the moment of the decision (UTC), now if absent; matters only where the recipe has a time to live.

        Returns:
            name → {"value": number, or None where nothing is known or what is known is too old (as in training),
            "as_of": when it became known, ISO 8601 UTC or "", "fresh": known and within the time to live}.

        Raises:
            UserError: an entity key is missing.
        """
        for key in self.join_keys:
            if key not in entities:
                raise UserError(f"entities: {key!r} is missing; give {', '.join(self.join_keys)}")
        row = {key: str(entities[key]) for key in self.join_keys}
        moment = at or datetime.now(UTC)
        answer = {}
        for name, found in self._store.read(self._references, row).items():
            known = found.event_time is not None
            fresh = found.event_time is not None and (not self._ttl or found.event_time + self._ttl >= moment)
            answer[name] = {
                "value": found.value if fresh else None,
                "as_of": found.event_time.isoformat() if known and found.event_time else "",
                "fresh": fresh,
            }
        return answer

    def close(self) -> None:
        """Close the store and remove its private copy."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
