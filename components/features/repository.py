"""A feature project: a folder with `features.py` (Feast definitions) and one SQL file a history table.

The convention, so that a project needs no code here:

    project = "complaints"                          # letters, digits, underscore
    def definitions(source, ttl):                   # -> list of Feast entities, feature views, feature services
        ...

`source(table)` gives the Feast data source of the history table that `<table>.sql` makes (see history.py), `ttl` is
the recipe's time to live as a timedelta (0 = values live for ever). Everything a model reads is numeric.
This module knows no engine: plain values that the Feast adapter fills in.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import UserError
from components.core.paths import find

DEFINITIONS = "features.py"
RESERVED = ("row_id", "event_timestamp", "known_timestamp", "created_timestamp", "label", "text", "entity_row_id", "rn")


@dataclass(frozen=True)
class View:
    """A feature view as a step sees it: its history table, its join keys and all its features."""

    name: str
    table: str
    join_keys: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """A feature service: the features a model may read, in order, and the views they come from."""

    name: str
    features: tuple[str, ...]
    views: tuple[View, ...]

    @property
    def join_keys(self) -> tuple[str, ...]:
        """All join keys, in order of first use."""
        return tuple(dict.fromkeys(key for view in self.views for key in view.join_keys))

    def keys_of(self, features: Iterable[str]) -> tuple[str, ...]:
        """The join keys that these features need."""
        wanted = set(features)
        views = [view for view in self.views if wanted & set(view.features)]
        return tuple(dict.fromkeys(key for view in views for key in view.join_keys))

    def reference(self, feature: str) -> str:
        """Feast's name of a feature: `view:feature`."""
        return next(f"{view.name}:{feature}" for view in self.views if feature in view.features)


def locate(repo: str) -> Path:
    """The project's folder: below the working folder, else below the project's root.

    Raises:
        UserError: there is no such folder, or it holds no features.py.
    """
    folder = find(repo, "features.repo").resolve()
    if not (folder / DEFINITIONS).is_file():
        raise UserError(
            f"features.repo {repo!r}: {folder} holds no {DEFINITIONS}; give the folder of a feature project"
        )
    return folder


def check_service(service: Service, entities: Mapping[str, str], model_inputs: Sequence[str]) -> None:
    """Refuse a recipe that asks for what the service does not have, and names that Feast would join wrongly.

    Raises:
        UserError: an unknown model input, a join key without a source column, or a name that cannot be used.
    """
    for name in (*service.features, *service.join_keys):
        if name in RESERVED or name.startswith("group:"):
            raise UserError(f"feature service {service.name}: the name {name!r} is reserved; rename it")
    for feature in service.features:
        if feature.endswith("_y") or feature in service.join_keys:
            raise UserError(
                f"feature service {service.name}: feature {feature!r} ends in _y or is named like an entity, "
                "which Feast 0.67 drops or mixes up in a join; rename it"
            )
    for feature in model_inputs:
        if feature not in service.features:
            raise UserError(
                f"features.model_inputs: {feature!r} is not in feature service {service.name}"
                f"{nearest(feature, service.features)}"
            )
    for key in service.join_keys:
        if key not in entities:
            raise UserError(
                f'features.entities: feature service {service.name} joins on {key!r}; add {key} = "its source column"'
            )


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of an error message: the nearest known name, else all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; it has: {', '.join(known) or 'nothing'}"
