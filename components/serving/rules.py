"""The business rule around a score: review band, unknown entities, and what stands in where no arm answers."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from components.core.digest import value_digest
from components.core.recipe import Recipe

MODEL, LAST_KNOWN, BASELINE, NONE = "model", "last_known", "baseline", "none"
MOST_KEPT = 10_000


@dataclass(frozen=True)
class Rules:
    """As the recipe's [serving] says; scores are probabilities of the second label."""

    labels: tuple[str, str] = ("no", "yes")
    threshold: float = 0.5
    review_from: float = 0.0
    review_below: float = 0.0
    fallback: str = "refuse"
    baseline_score: float = 0.0
    last_known_seconds: float = 3600.0
    unknown_entity: str = "score"

    @classmethod
    def of(cls, recipe: Recipe) -> Rules:
        """The rules of a recipe."""
        serving = recipe.serving
        return cls(
            labels=(recipe.model.labels[0], recipe.model.labels[1]),
            threshold=serving.threshold,
            review_from=serving.review_from,
            review_below=serving.review_below,
            fallback=serving.fallback,
            baseline_score=serving.baseline_score,
            last_known_seconds=serving.last_known_seconds,
            unknown_entity=serving.unknown_entity,
        )

    def label(self, score: float) -> str:
        """The label of a score that no version gave."""
        return self.labels[score >= self.threshold]

    def review(self, score: float | None) -> bool:
        """Whether a person should look: review_from <= score < review_below."""
        return score is not None and self.review_from <= score < self.review_below


@dataclass(frozen=True)
class Patience:
    """How long a drawn canary is waited for before stable is asked; what is left then is stable's."""

    SHARE = 0.5  # of the time left, at most

    canary_seconds: float = 0.0  # 0: the share alone

    def seconds(self, left: float) -> float:
        """Of the seconds left, those for the canary."""
        share = left * self.SHARE
        return min(share, self.canary_seconds) if self.canary_seconds else share


def is_unknown(features: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether nothing at all is known of the entities."""
    return bool(features) and all(found.get("value") is None and not found.get("as_of") for found in features.values())


class LastKnown:
    """The last value of each key for a while, of at most `most` keys: the least recently kept goes first."""

    def __init__(self, seconds: float, most: int = MOST_KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def keep(self, key: str, value: Any) -> None:
        """Keep a value in the place of an earlier one."""
        self._kept.pop(key, None)
        self._kept[key] = (self._clock(), value)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def find(self, key: str) -> Any:
        """The value, None where there is none or it is too old."""
        found = self._kept.get(key)
        return found[1] if found is not None and self._clock() - found[0] <= self._seconds else None


def entity_key(entities: Mapping[str, str]) -> str:
    """One key for one row of entities; holds no name."""
    return value_digest(dict(entities))


def question_key(entities: Mapping[str, str], request: Mapping[str, Any]) -> str:
    """One key for the same entities, text and inputs, whenever they are asked about."""
    asked = {name: str(value).encode("utf-8", "replace").decode() for name, value in request.items()}
    return value_digest([dict(entities), {name: value for name, value in asked.items() if name != "event_timestamp"}])


def sticky_number(seed: str, entities: Mapping[str, str]) -> float:
    """Uniform in [0, 1), the same for the same entities and seed: below the weight, the canary answers."""
    return int(value_digest([seed, dict(entities)])[:13], 16) / 16**13
