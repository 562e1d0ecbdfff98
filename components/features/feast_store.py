"""The Feast adapter: the only module that imports feast (about six seconds of CPU).

Offline store DuckDB, online store SQLite, one file registry a published folder (one writer). In the published registry
the sources' paths are relative to the folder, so it can be moved.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sqlite3
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from components.core.errors import UserError, one_line
from components.features.repository import DEFINITIONS, Service, View, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feast import FeatureStore

HISTORY = "history"
REGISTRY, ONLINE, SETTINGS = "registry.db", "online.db", "feature_store.yaml"
POSITION = "pilotline_position"


def load_project(folder: Path, ttl_days: int) -> FeatureProject:
    """Load `features.py` of a feature project from its file.

    Raises:
        UserError: the file does not load, or does not follow the convention of repository.py.
    """
    path = folder / DEFINITIONS
    name = f"pilotline_feature_project_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _quiet():
        try:
            spec.loader.exec_module(module)
            project, definitions = module.project, module.definitions
        except Exception as error:  # whatever a project's own file raises
            raise UserError(f"{path}: does not load ({type(error).__name__}: {one_line(error)})") from error
    if not (isinstance(project, str) and project.isidentifier() and callable(definitions)):
        raise UserError(f"{path}: needs `project` (an identifier) and `definitions(source, ttl)`; see repository.py")
    return FeatureProject(path, project, definitions, timedelta(days=ttl_days))


@dataclass(frozen=True)
class FeatureProject:
    """A loaded feature project."""

    path: Path
    project: str
    definitions: Callable[[Callable[[str], Any], timedelta], Sequence[Any]]
    ttl: timedelta

    def objects(self, history: Path) -> list[Any]:
        """The Feast objects, with their sources' files in `history`."""
        from feast import FileSource

        def source(table: str) -> FileSource:
            return FileSource(
                name=table,
                path=str(history / f"{table}.parquet"),
                timestamp_field="event_timestamp",
                created_timestamp_column="created_timestamp",
            )

        with _quiet():
            try:
                return list(self.definitions(source, self.ttl))
            except Exception as error:  # whatever a project's own file raises
                raise UserError(f"{self.path}: definitions() failed ({one_line(error)})") from error

    def service(self, name: str) -> Service:
        """Describe a feature service; UserError where there is none of this name."""
        from feast import Entity, FeatureService, FeatureView

        objects = self.objects(Path(HISTORY))
        services = {found.name: found for found in objects if isinstance(found, FeatureService)}
        if name not in services:
            raise UserError(
                f"features.service: {self.path} has no feature service {name!r}{nearest(name, [*services])}"
            )
        views = [found for found in objects if isinstance(found, FeatureView)]
        service = _service(services[name], views, [found for found in objects if isinstance(found, Entity)])
        for features in (service.features, *(view.features for view in service.views)):
            if len(set(features)) != len(features):
                raise UserError(f"{self.path}: feature service {name} has two features of one name; rename one")
        return service


def _service(service: Any, views: Sequence[Any], entities: Sequence[Any]) -> Service:
    join_keys = {entity.name: entity.join_key for entity in entities}
    by_name = {view.name: _view(view, join_keys) for view in views}
    parts = service.feature_view_projections
    features = tuple(field.name for part in parts for field in part.features)
    return Service(service.name, features, tuple(by_name[part.name] for part in parts))


def _view(view: Any, join_keys: Mapping[str, str]) -> View:
    return View(
        name=view.name,
        table=view.batch_source.name,
        join_keys=tuple(join_keys[entity] for entity in view.entities),
        features=tuple(field.name for field in view.features),
    )


def join_history(project: FeatureProject, service: Service, history: Path, keys: pd.DataFrame) -> pd.DataFrame:
    """The service's features as they were known at each row's event_timestamp.

    Args:
        history: folder with the history tables.
        keys: event_timestamp (UTC) and the join keys, shape (rows, 1 + keys); its order is kept.

    Returns:
        float64 features, NaN where nothing was known, shape (rows, features), indexed like `keys`.

    Raises:
        UserError: Feast refuses the definitions.
    """
    with tempfile.TemporaryDirectory(prefix="pilotline-feast-") as scratch, _quiet():
        store = _apply(project, Path(scratch), history.absolute())
        asked = keys[["event_timestamp", *service.join_keys]].reset_index(drop=True)
        asked[POSITION] = range(len(asked))  # Feast gives rows back in any order
        found = store.get_historical_features(
            entity_df=asked,
            features=store.get_feature_service(service.name),
            filter_by_created_timestamp=True,
        ).to_df()
    found = found.set_index(POSITION).sort_index()
    if len(found) != len(keys) or not (found.index == range(len(keys))).all():
        raise RuntimeError(f"Feast returned {len(found)} rows for {len(keys)}")
    return found[list(service.features)].astype("float64").set_axis(keys.index)


def write_online(project: FeatureProject, folder: Path, as_of: datetime) -> None:
    """Fill `online.db` in `folder` from its history tables and leave a registry with relative paths.

    Args:
        as_of: the day on which the last outcome became known; the tables hold nothing later.
    """
    with _quiet():
        _keep_utc()
        store = _apply(project, folder, (folder / HISTORY).absolute())
        store.materialize(datetime.fromtimestamp(0, UTC), as_of + timedelta(days=1))  # all of that day
        _close(store)
        (folder / REGISTRY).unlink()
        _close(_apply(project, folder, Path(HISTORY)))


@dataclass(frozen=True)
class OnlineValue:
    """A feature's newest value and when it became known; both None where nothing is known of the entity."""

    value: float | None
    event_time: datetime | None


class OnlineStore:
    """A published folder's online store, read from a private copy: the folder is never written."""

    def __init__(self, folder: Path) -> None:
        """Copy the folder's store and open the copy."""
        self._scratch = tempfile.TemporaryDirectory(prefix="pilotline-online-")
        self._lock = threading.Lock()
        place = Path(self._scratch.name)
        for name in (REGISTRY, ONLINE, SETTINGS):
            shutil.copyfile(folder / name, place / name)
        with _quiet():
            _keep_utc()
            from feast import FeatureStore

            self._store = FeatureStore(repo_path=str(place))

    def service(self, name: str) -> Service:
        """Describe a feature service of the store."""
        return _service(
            self._store.get_feature_service(name), self._store.list_feature_views(), self._store.list_entities()
        )

    def read(self, references: Sequence[str], entities: Mapping[str, str]) -> dict[str, OnlineValue]:
        """The newest values of `view:feature` references for one entity row; safe to call from any thread."""
        with self._lock:
            response = self._store.get_online_features(features=list(references), entity_rows=[dict(entities)])
        proto = response.proto
        vectors = dict(zip(proto.metadata.feature_names.val, proto.results, strict=True))
        return {feature: _online_value(vectors[feature]) for _, feature in (ref.split(":") for ref in references)}

    def close(self) -> None:
        """Close the store and remove the private copy."""
        with self._lock:
            _close(self._store)
            self._scratch.cleanup()


def _online_value(vector: Any) -> OnlineValue:
    value, seconds = vector.values[0], vector.event_timestamps[0].seconds
    kind = value.WhichOneof("val")
    known = kind is not None and kind != "null_val"
    return OnlineValue(
        float(getattr(value, kind)) if known else None, datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    )


def _apply(project: FeatureProject, folder: Path, history: Path) -> FeatureStore:
    from feast import FeatureStore

    (folder / SETTINGS).write_text(
        f"project: {project.project}\nprovider: local\nentity_key_serialization_version: 3\n"
        f"registry:\n  registry_type: file\n  path: {REGISTRY}\n  cache_ttl_seconds: 0\n"
        f"offline_store:\n  type: duckdb\nonline_store:\n  type: sqlite\n  path: {ONLINE}\n"
    )
    store = FeatureStore(repo_path=str(folder))
    try:
        store.apply(project.objects(history))
    except Exception as error:  # Feast raises many kinds for definitions that do not fit together
        raise UserError(
            f"{project.path}: Feast refuses it ({type(error).__name__}: {one_line(error)[:300]})"
        ) from error
    return store


def _close(store: FeatureStore) -> None:
    """Close the SQLite connection that Feast would keep until the process ends."""
    online = store._get_provider().online_store
    connection = getattr(online, "_conn", None)
    if connection is not None:
        connection.close()
        online._conn = None


@contextmanager
def _quiet() -> Iterator[None]:
    """No usage statistics, no progress bars, no deprecation noise. Not for threads: it redirects standard output."""
    os.environ["FEAST_USAGE"] = "False"
    with warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere:
        warnings.simplefilter("ignore")
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def _keep_utc() -> None:
    """Make Feast's SQLite times mean UTC.

    Feast 0.67 converts its naive UTC times with the machine's time zone, so a store written in one zone and read in
    another (or written over a change of the clocks) would shift `event_ts` by the difference.
    """
    import feast.infra.online_stores.sqlite  # noqa: F401 - registers the conversions that these replace

    def seconds(time: datetime) -> int:
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())

    sqlite3.register_adapter(datetime, seconds)
    sqlite3.register_converter("timestamp", lambda text: datetime.fromtimestamp(int(text), UTC))
