"""The Feast adapter: the only module that imports feast (about six seconds of CPU).

Offline store DuckDB; online store ours in SQLite, which online.py fills; one file registry a published folder (one
writer), in which the sources' paths are relative to the folder, so that it can be moved.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from components.core.errors import UserError, one_line
from components.features.online import HISTORY, ONLINE
from components.features.repository import DEFINITIONS, Service, View, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feast import FeatureStore

REGISTRY, SETTINGS = "registry.db", "feature_store.yaml"
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


def write_registry(project: FeatureProject, folder: Path) -> None:
    """Leave a registry with relative paths in the folder, for whoever opens it with Feast."""
    with _quiet():
        _apply(project, folder, Path(HISTORY))


def _apply(project: FeatureProject, folder: Path, history: Path) -> FeatureStore:
    from feast import FeatureStore

    (folder / SETTINGS).write_text(
        f"project: {project.project}\nprovider: local\nentity_key_serialization_version: 3\n"
        f"registry:\n  registry_type: file\n  path: {REGISTRY}\n  cache_ttl_seconds: 0\n"
        f"offline_store:\n  type: duckdb\nonline_store:\n"
        f"  type: components.features.online_stores.SqliteNewestOnlineStore\n  path: {ONLINE}\n"
    )
    store = FeatureStore(repo_path=str(folder))
    try:
        store.apply(project.objects(history))
    except Exception as error:  # Feast raises many kinds for definitions that do not fit together
        raise UserError(
            f"{project.path}: Feast refuses it ({type(error).__name__}: {one_line(error)[:300]})"
        ) from error
    return store


@contextmanager
def _quiet() -> Iterator[None]:
    """No usage statistics, no progress bars, no deprecation noise. Not for threads: it redirects standard output."""
    os.environ["FEAST_USAGE"] = "False"
    with warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere:
        warnings.simplefilter("ignore")
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
