"""A feature project: a folder with `features.py` (Feast definitions) and one SQL file a history table.

The convention, so that a project needs no code here:

    project = "complaints"                          # letters, digits, underscore
    def definitions(source, ttl):                   # -> list of Feast entities, feature views, feature services
        ...

`source(table)` gives the Feast data source of the history table that `<table>.sql` makes (see history.py), `ttl` is
the recipe's time to live as a timedelta (0 = values live for ever). Everything a model reads is numeric.

A project that holds `on_demand.py` too (see on_demand.py) is given a third argument: `request(name, schema, ...)` makes
the Feast on-demand view whose features the function `name` of that file computes of a request.
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
EVENT, TEXT, REQUEST = "event_timestamp", "text", "request:"
RESERVED = ("row_id", "event_timestamp", "known_timestamp", "created_timestamp", "label", "text")
PREFIXES = ("group:", "slice:", REQUEST)


@dataclass(frozen=True)
class View:
    """A feature view as a step sees it: its history table, its join keys and all its features."""

    name: str
    table: str
    join_keys: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class RequestView:
    """An on-demand view: what its function takes of a request, and its features."""

    name: str
    inputs: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """A feature service: the features a model may read, in order, the views they come from, on-demand views apart."""

    name: str
    features: tuple[str, ...]
    views: tuple[View, ...]
    on_demand: tuple[RequestView, ...] = ()

    @property
    def join_keys(self) -> tuple[str, ...]:
        """All join keys, in order of first use."""
        return tuple(dict.fromkeys(key for view in self.views for key in view.join_keys))

    def keys_of(self, features: Iterable[str]) -> tuple[str, ...]:
        """The join keys that these features need."""
        wanted = set(features)
        views = [view for view in self.views if wanted & set(view.features)]
        return tuple(dict.fromkeys(key for view in views for key in view.join_keys))

    @property
    def request_inputs(self) -> tuple[str, ...]:
        """What the on-demand views take of a request, in order of first use."""
        return tuple(dict.fromkeys(name for view in self.on_demand for name in view.inputs))

    def asked_of_request(self, features: Iterable[str]) -> tuple[RequestView, ...]:
        """The on-demand views that hold one of these features."""
        wanted = set(features)
        return tuple(view for view in self.on_demand if wanted & set(view.features))

    def reference(self, feature: str) -> str:
        """Feast's name of a feature: `view:feature`."""
        views: list[View | RequestView] = [*self.views, *self.on_demand]
        return next(f"{view.name}:{feature}" for view in views if feature in view.features)


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


def check_service(
    service: Service,
    entities: Mapping[str, str],
    model_inputs: Sequence[str],
    request: Mapping[str, str] | None = None,
    text_column: str = "",
) -> None:
    """Refuse a recipe that asks for what the service does not have, and names that cannot stand in one table.

    Args:
        service: the feature service.
        entities: the recipe's join keys with their source columns.
        model_inputs: the features that the model reads.
        request: the recipe's request inputs with their source columns.
        text_column: the source column of the model's text, "" where it reads none.

    Raises:
        UserError: an unknown model input, a join key or request input without a source column, or a name that cannot
            be used.
    """
    _check_names(service, [*entities, *(request or {})])
    for feature in model_inputs:
        if feature not in service.features:
            raise UserError(
                f"features.model_inputs: {feature!r} is not in feature service {service.name}"
                f"{nearest(feature, service.features)}"
            )
    if len(set(model_inputs)) != len(model_inputs):
        twice = next(name for name in model_inputs if list(model_inputs).count(name) > 1)
        raise UserError(f"features.model_inputs: {twice!r} stands there twice; leave one out")
    for key in service.join_keys:
        if key not in entities:
            raise UserError(
                f'features.entities: feature service {service.name} joins on {key!r}; add {key} = "its source column"'
                f"{_meant(key, entities)}"
            )
    _check_request(service, [*service.join_keys, *(request or {})], text_column)


def _check_names(service: Service, others: Sequence[str]) -> None:
    """Features and keys are columns of one table, whose names differ in more than case."""
    for name in (*service.features, *service.join_keys):
        if name.lower() in RESERVED or name.lower().startswith(PREFIXES):
            raise UserError(f"feature service {service.name}: the name {name!r} is reserved; rename it")
    taken = {name.lower(): f"entity or request input {name!r}" for name in (*others, *service.join_keys)}
    for feature in service.features:
        if feature.lower() in taken:
            raise UserError(
                f"feature service {service.name}: feature {feature!r} is named like {taken[feature.lower()]}, and "
                "both are columns of the training set; rename one"
            )
        taken[feature.lower()] = f"feature {feature!r}"


def _check_request(service: Service, given: Sequence[str], text_column: str) -> None:
    for view in service.on_demand:
        for name in view.inputs:
            if name == TEXT and not text_column:
                raise UserError(f"on-demand view {view.name} takes the text; name its source column: model.text_column")
            if name not in (*given, TEXT, EVENT):
                raise UserError(
                    f"on-demand view {view.name} takes {name!r}, which no request carries; add it to "
                    f"[features.request] with its source column{nearest(name, [*given, TEXT, EVENT])}"
                )


def _meant(key: str, entities: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key, entities, n=1, cutoff=0.6)
    return f" (there is {near[0]!r})" if near else ""


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of an error message: the nearest known name, else all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; it has: {', '.join(known) or 'nothing'}"
