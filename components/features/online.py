"""Features for a decision being made now: the newest known values of an entity. Reads and writes without Feast.

A published training set carries its own store (`online.db`, described by `online.json`); a recipe may name another
(`features.online`), which `pilotline features materialize` keeps up to date.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from components.core.environment import with_environment
from components.core.errors import IntegrityError, PolicyRefusal, UserError
from components.core.publish import verify
from components.core.recipe import Recipe
from components.core.records import TrainingSetRef
from components.features.latest.entries import Entry, LatestStore, key_of, unpack_numbers
from components.features.latest.places import open_latest
from components.features.latest.sqlite import SqliteLatest, settle
from components.features.materialise import Materialised, materialise
from components.features.on_demand import OnDemandCode, same_code, utc
from components.features.repository import EVENT, RequestView, Service, View, locate, nearest
from components.models.feature_source import FeatureSource

HISTORY = "history"
ONLINE, DESCRIPTION = "online.db", "online.json"
EPOCH, MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)
UNKNOWN: dict[str, Any] = {"value": None, "as_of": "", "fresh": False}


class _ViewRead(NamedTuple):
    """What is read of a view: its table, the place of its key, its features, those asked for, and their places.

    places: None where all are asked for, in their order.
    """

    table: str
    key: int
    features: tuple[str, ...]
    asked: tuple[str, ...]
    places: tuple[int, ...] | None


def table_of(project: str, view: str) -> str:
    """The store's table of a feature view."""
    return f"{project}:{view}"


def write_online(folder: Path, project: str, service: Service, as_of: datetime, on_demand: str = "") -> None:
    """Write `online.db` and `online.json` into a folder from its history tables.

    Args:
        as_of: the day on which the last outcome became known; all of that day is taken.
        on_demand: digest of the code of the service's on-demand features, "" where it has none.
    """
    store = SqliteLatest(folder / ONLINE)
    try:
        fill(store, project, service, folder / HISTORY, end_of(as_of), whole=True)
    finally:
        store.close()
    settle(folder / ONLINE)
    about = {"project": project, "service": asdict(service), "on_demand_digest": on_demand}
    (folder / DESCRIPTION).write_text(json.dumps(about, indent=1))


def end_of(as_of: datetime) -> datetime:
    """Up to when a history that ends on a day may be served: the end of that day, or now where it is later."""
    return min(as_of + timedelta(days=1), datetime.now(UTC))


def fill(
    store: LatestStore,
    project: str,
    service: Service,
    history: Path,
    until: datetime,
    *,
    whole: bool = False,
    rebuild: bool = False,
) -> list[Materialised]:
    """Materialise each view of a service from its history table; see materialise()."""
    return [
        materialise(
            store,
            table_of(project, view.name),
            history / f"{view.table}.parquet",
            view.join_keys,
            view.features,
            until,
            whole=whole,
            rebuild=rebuild,
        )
        for view in service.views
    ]


def describe_online(folder: Path) -> tuple[str, Service]:
    """The project and the feature service that a published folder's store holds.

    Raises:
        UserError: the folder was published without one.
    """
    try:
        about = json.loads((folder / DESCRIPTION).read_text())
    except FileNotFoundError as error:
        raise UserError(f"{folder}: holds no {DESCRIPTION}; make the training set again") from error
    views = tuple(
        View(view["name"], view["table"], tuple(view["join_keys"]), tuple(view["features"]))
        for view in about["service"]["views"]
    )
    on_demand = tuple(
        RequestView(view["name"], tuple(view["inputs"]), tuple(view["features"]))
        for view in about["service"].get("on_demand", ())
    )
    return about["project"], Service(about["service"]["name"], tuple(about["service"]["features"]), views, on_demand)


def on_demand_of(folder: Path, repo: str, features: Sequence[str]) -> OnDemandCode | None:
    """The code of a published folder's on-demand features, from the feature project; None where none is asked for.

    Args:
        folder: verified before.
        repo: the feature project, as the recipe names it.
        features: those that are asked for.

    Raises:
        IntegrityError: the project's code is not that which the folder was made with.
        UserError: there is no such project.
    """
    about = json.loads((folder / DESCRIPTION).read_text())
    _, service = describe_online(folder)
    if not service.asked_of_request(features):
        return None
    return same_code(locate(repo), about["on_demand_digest"], f"training set {folder}")


class OnlineReader:
    """Reads features of a service for one entity row from a store of newest values; safe from any thread.

    Attributes:
        features: what is read, in order.
        join_keys: the entity keys that they need.
    """

    def __init__(
        self,
        store: LatestStore,
        project: str,
        service: Service,
        features: Sequence[str],
        ttl: timedelta,
        stale: str,
        code: OnDemandCode | None = None,
    ) -> None:
        """What is read.

        Args:
            store: closed with the reader.
            project: the feature project's name.
            service: holds the features.
            features: names in the order of the answer.
            ttl: how long a value is fresh; 0 = for ever.
            stale: what an old value does: default (missing), refuse, fallback (used and flagged).
            code: computes the on-demand features among them.
        """
        self.features = tuple(features)
        views = [view for view in service.views if set(features) & set(view.features)]
        self._keys = list(dict.fromkeys(tuple(sorted(view.join_keys)) for view in views))
        self._views = []
        for view in views:
            asked = tuple(name for name in features if name in view.features)
            places = None if asked == view.features else tuple(view.features.index(name) for name in asked)
            key = self._keys.index(tuple(sorted(view.join_keys)))
            self._views.append(_ViewRead(table_of(project, view.name), key, view.features, asked, places))
        self._is_in_order = self.features == tuple(name for view in self._views for name in view.asked)
        self.join_keys = service.keys_of(features)
        self._on_demand, self._code = service.asked_of_request(features), code
        self._store, self._ttl, self._stale = store, ttl // MICROSECOND, stale

    def read(
        self, entities: Mapping[str, str], request: Mapping[str, Any] | None = None, *, at: datetime | None = None
    ) -> dict[str, dict[str, Any]]:
        """The newest value of each feature; those of on-demand views are computed of the request.

        Args:
            entities: a text value for each of `join_keys`; others are ignored, an unknown entity has no history.
            request: what else on-demand features are computed of: text, the recipe's request inputs, and
                event_timestamp (the moment of the decision if absent).
            at: the moment of the decision (UTC), now if absent; matters only where the recipe has a time to live.

        Returns:
            name → {"value": number or None where nothing is known, "as_of": when it became known, ISO 8601 UTC or "",
            "fresh": known and within the time to live}. What is known but too old is None, as in training, or with
            `features.stale` = fallback the old value.

        Raises:
            UserError: an entity key or a request input is missing, or an on-demand function fails.
            PolicyRefusal: a value is too old and `features.stale` = refuse.
            TransientError: the store does not answer.
            IntegrityError: the store holds other features of a view.
        """
        for key in self.join_keys:
            if key not in entities:
                raise UserError(f"entities: {key!r} is missing; give {', '.join(self.join_keys)}")
        keys = [key_of([str(entities[name]) for name in names]) for names in self._keys]
        now = time.time_ns() // 1000 if at is None else (at - EPOCH) // MICROSECOND
        found: dict[str, dict[str, Any]] = {}
        entries = self._store.read([(view.table, keys[view.key]) for view in self._views])
        for view, entry in zip(self._views, entries, strict=True):
            if entry is None or entry.event > now:  # only a later value is kept: what was known at the moment is not
                for name in view.asked:
                    found[name] = dict(UNKNOWN)
            else:
                self._answers(view, entry, now, found)
        if self._on_demand:
            moment = at or EPOCH + now * MICROSECOND
            self._compute({EVENT: moment, **entities, **(request or {})}, found)
        return found if self._is_in_order else {name: found[name] for name in self.features}

    def _compute(self, request: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
        """Add the features of the on-demand views: as of the request."""
        if self._code is None:
            raise IntegrityError(f"on-demand view {self._on_demand[0].name}: its code was not given to the reader")
        request[EVENT] = utc(request[EVENT])
        as_of = request[EVENT].isoformat()
        for view in self._on_demand:
            for name, value in zip(view.features, self._code.compute(view, request), strict=True):
                if name in self.features:
                    known = None if math.isnan(value) else value
                    found[name] = {"value": known, "as_of": as_of, "fresh": True}

    def _answers(self, view: _ViewRead, entry: Entry, now: int, found: dict[str, dict[str, Any]]) -> None:
        """Add the view's features that are asked for: all have the entry's time."""
        as_of = _text_of(entry.event)
        is_fresh = not self._ttl or entry.event + self._ttl >= now
        if not is_fresh and self._stale == "refuse":
            raise PolicyRefusal(
                f"feature {view.asked[0]}: is as of {as_of}, older than {timedelta(microseconds=self._ttl).days} "
                "days; materialize newer values or set features.stale"
            )
        if not (is_fresh or self._stale == "fallback"):
            for name in view.asked:
                found[name] = {"value": None, "as_of": as_of, "fresh": False}
            return
        values = unpack_numbers(view.features, entry.body)
        if values is None:
            raise IntegrityError(
                f"online store: {view.table} holds other features than {', '.join(view.features)}; materialize it "
                "from a training set of this feature service, with --whole"
            )
        if view.places is not None:
            values = [values[place] for place in view.places]
        for name, value in zip(view.asked, values, strict=True):
            found[name] = {"value": value, "as_of": as_of, "fresh": is_fresh}

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@lru_cache(maxsize=65536)
def _text_of(microseconds: int) -> str:
    """A moment as ISO 8601; many entities share one."""
    return (EPOCH + microseconds * MICROSECOND).isoformat()


class OnlineFeatures(OnlineReader):
    """The recipe's model inputs, from a published training set's store or the one that the recipe names.

    Attributes:
        record: the training set that the store belongs to.
        source: which features these are; a model has to have been trained on the same.
    """

    def __init__(self, training_set_dir: Path, recipe: Recipe) -> None:
        """Verify the folder, which is never written, and open the store.

        Raises:
            IntegrityError: the folder's bytes differ from its manifest, or its on-demand features were made by other
                code than the feature project's.
            UserError: the recipe's model inputs are not in this training set.
            TransientError: the store that the recipe names does not answer.
        """
        verify(training_set_dir)
        self.record = TrainingSetRef.read(training_set_dir)
        asked = recipe.features
        for feature in asked.model_inputs:
            if feature not in self.record.features:
                raise UserError(
                    f"features.model_inputs: {feature!r} is not in training set {training_set_dir}"
                    f"{nearest(feature, self.record.features)}"
                )
        self.source = FeatureSource.of(self.record, asked.model_inputs)
        project, service = describe_online(training_set_dir)
        code = on_demand_of(training_set_dir, asked.repo, asked.model_inputs)
        store: LatestStore
        if asked.online:
            store = open_latest(with_environment(asked.online, "features.online"))
        else:
            store = SqliteLatest(training_set_dir / ONLINE, read_only=True)
        ttl = timedelta(days=asked.ttl_days)
        super().__init__(store, project, service, asked.model_inputs, ttl, asked.stale, code)
