"""The Feast adapter. Importing feast costs about six seconds of CPU: only this room's adapters do it, when they work.

Both stores are ours: offline on DuckDB (asof_store.py), online in SQLite, which online.py fills; one file registry a
published folder (one writer), in which the sources' paths are relative to the folder, so that it can be moved.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from components.core.errors import UserError, one_line
from components.core.publish import write_atomic
from components.features.on_demand import OnDemandCode, load_on_demand
from components.features.online import HISTORY, ONLINE
from components.features.repository import DEFINITIONS, EVENT, REQUEST, TEXT, RequestView, Service, View, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feast import FeatureStore

OFFLINE = "components.features.asof_store.AsofOfflineStore"
REGISTRY, SETTINGS = "registry.db", "feature_store.yaml"
STORE = "NewestOnlineStore"


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
    return FeatureProject(path, project, definitions, timedelta(days=ttl_days), load_on_demand(folder))


@dataclass(frozen=True)
class FeatureProject:
    """A loaded feature project."""

    path: Path
    project: str
    definitions: Callable[..., Sequence[Any]]
    ttl: timedelta
    code: OnDemandCode | None = None

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

        arguments: list[Any] = [source, self.ttl]
        if self.code is not None:
            from components.features.on_demand_feast import request_view

            arguments.append(partial(request_view, self.code))
        with _quiet():
            try:
                return list(self.definitions(*arguments))
            except Exception as error:  # whatever a project's own file raises
                raise UserError(f"{self.path}: definitions() failed ({one_line(error)})") from error

    def service(self, name: str) -> Service:
        """Describe a feature service; UserError where there is none of this name."""
        from feast import Entity, FeatureService, FeatureView, OnDemandFeatureView

        objects = self.objects(Path(HISTORY))
        services = {found.name: found for found in objects if isinstance(found, FeatureService)}
        if name not in services:
            raise UserError(
                f"features.service: {self.path} has no feature service {name!r}{nearest(name, [*services])}"
            )
        join_keys = {found.name: found.join_key for found in objects if isinstance(found, Entity)}
        views = {found.name: self._view(found, join_keys) for found in objects if isinstance(found, FeatureView)}
        on_demand = {found.name: self._request(found) for found in objects if isinstance(found, OnDemandFeatureView)}
        service = _service(services[name], views, on_demand)
        for features in (service.features, *(view.features for view in service.views)):
            if len(set(features)) != len(features):
                raise UserError(f"{self.path}: feature service {name} has two features of one name; rename one")
        return service

    def _view(self, view: Any, join_keys: Mapping[str, str]) -> View:
        if unknown := [entity for entity in view.entities if entity not in join_keys]:
            raise UserError(
                f"{self.path}: feature view {view.name} is of entity {unknown[0]!r}, which definitions() does not "
                f"return{nearest(unknown[0], [*join_keys])}"
            )
        return View(
            name=view.name,
            table=view.batch_source.name,
            join_keys=tuple(join_keys[entity] for entity in view.entities),
            features=tuple(field.name for field in view.features),
        )

    def _request(self, view: Any) -> RequestView:
        features = tuple(field.name for field in view.features)
        if self.code is None or view.source_feature_view_projections:
            raise UserError(
                f"{self.path}: on-demand view {view.name} is not of the request alone, computed by on_demand.py; make "
                "it with request(name, schema), the third argument of definitions()"
            )
        return RequestView(view.name, self.code.inputs(view.name), features)


def _service(service: Any, views: Mapping[str, View], on_demand: Mapping[str, RequestView]) -> Service:
    parts = service.feature_view_projections
    features = tuple(field.name for part in parts for field in part.features)
    if absent := [part.name for part in parts if part.name not in views and part.name not in on_demand]:
        raise UserError(
            f"feature service {service.name}: has view {absent[0]!r}, which definitions() does not return"
            f"{nearest(absent[0], [*views, *on_demand])}"
        )
    return Service(
        service.name,
        features,
        tuple(views[part.name] for part in parts if part.name in views),
        tuple(on_demand[part.name] for part in parts if part.name in on_demand),
    )


def join_history(project: FeatureProject, service: Service, history: Path, keys: pd.DataFrame) -> pd.DataFrame:
    """The service's features as they were known at each row's event_timestamp.

    Args:
        history: folder with the history tables.
        keys: event_timestamp (UTC), the join keys and what on-demand views take of a request: text, and
            `request:<name>` for each name of the recipe; its order is kept.

    Returns:
        float64 features, NaN where nothing was known, shape (rows, features), indexed like `keys`.

    Raises:
        UserError: Feast refuses the definitions.
    """
    with tempfile.TemporaryDirectory(prefix="pilotline-feast-") as scratch, _quiet():
        store = _apply(project, Path(scratch), history.absolute())
        asked = _asked(service, keys)
        found = store.get_historical_features(
            entity_df=asked,
            features=store.get_feature_service(service.name),
            filter_by_created_timestamp=True,
        ).to_df()
    if not found[list(asked)].equals(asked):
        raise RuntimeError(f"the offline store returned {len(found)} rows for {len(asked)}, or others than were asked")
    return found[list(service.features)].astype("float64")


def _asked(service: Service, keys: pd.DataFrame) -> pd.DataFrame:
    """The entity rows: event time, join keys and the request's values, called as on-demand functions call them."""
    asked = keys[[EVENT, *service.join_keys]]
    for name in service.request_inputs:
        if name not in asked.columns:
            column = name if name == TEXT or name in keys.columns else REQUEST + name
            asked = asked.assign(**{name: keys[column]})
    return asked


def write_registry(project: FeatureProject, folder: Path) -> None:
    """Leave a registry with relative paths in the folder, for whoever opens it with Feast."""
    with _quiet():
        _apply(project, folder, Path(HISTORY))


def apply_shared(project: FeatureProject, folder: Path, history: Path, online: str) -> None:
    """Register the project's definitions in a folder that many processes use: a SQL registry, which loses no write.

    Args:
        project: the definitions.
        folder: holds `registry.db` and `feature_store.yaml`; whoever opens it with Feast sees the same stores.
        history: the folder of history tables that the sources name.
        online: redis://..., or "" for `online.db` in the folder.

    Raises:
        UserError: Feast refuses the definitions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder), _quiet():
        _apply(
            project, folder, history, f"registry_type: sql\n  path: sqlite:///{folder.absolute() / REGISTRY}", online
        )


def _apply(
    project: FeatureProject,
    folder: Path,
    history: Path,
    registry: str = f"registry_type: file\n  path: {REGISTRY}",
    online: str = "",
) -> FeatureStore:
    from feast import FeatureStore

    kind = f"Redis{STORE}\n  url: {online}" if online else f"Sqlite{STORE}\n  path: {ONLINE}"
    settings = (
        f"project: {project.project}\nprovider: local\nentity_key_serialization_version: 3\n"
        f"registry:\n  {registry}\n  cache_ttl_seconds: 0\n"
        f"offline_store:\n  type: {OFFLINE}\nonline_store:\n  type: components.features.online_stores.{kind}\n"
    )
    write_atomic(folder / SETTINGS, settings)
    store = FeatureStore(repo_path=str(folder))
    try:
        store.apply(project.objects(history))
    except Exception as error:  # Feast raises many kinds for definitions that do not fit together
        raise UserError(
            f"{project.path}: Feast refuses it ({type(error).__name__}: {one_line(error)[:300]})"
        ) from error
    return store


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One apply at a time: Feast numbers the versions of a view by reading the last one, so that two collide."""
    with (folder / ".apply.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """No usage statistics, no progress bars, no deprecation noise. Not for threads: it redirects standard output."""
    os.environ["FEAST_USAGE"] = "False"
    with warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere:
        warnings.simplefilter("ignore")
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
