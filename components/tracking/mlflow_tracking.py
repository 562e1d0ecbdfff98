"""The one adapter of MLflow: runs with parameters and curves, model versions with tags, aliases.

MLflow itself accepts NaN metrics, names with newlines and `file:///etc` as a model's source; this adapter does not.
Every write is idempotent by a key, so that a step killed between a write and its answer can be run again.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from components.core.engine_time import engine_time
from components.core.errors import PilotlineError, TransientError, UserError, one_line
from components.core.home import Home, safe_name
from components.tracking.mlflow_schema import has_schema, write_schema
from components.tracking.strict import finite, locked, metric_name, short_text

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY, DIGEST, DIRECTORY = "pilotline.key", "pilotline.digest", "pilotline.model_directory"
ATTEMPTS, READ_ATTEMPTS = 6, 3
_LOCKED = ("locked", "busy", "temporarily_unavailable")
READS = {"search_runs", "get_run", "get_metric_history", "get_experiment_by_name", "search_model_versions"}
READS |= {"search_registered_models"}
REPEATABLE = READS | {"set_registered_model_alias", "set_model_version_tag", "set_terminated"}
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_BOUNDS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Tracking:
    """Runs and the registry behind one tracking URI (SQLite in the home, or a server).

    Args:
        uri: MLflow tracking and registry URI.
        artifact_root: folder of run artifacts.
        models: folder that every version's source must be inside of; default `models` beside the artifact root.
    """

    def __init__(self, uri: str, artifact_root: Path, models: Path | None = None) -> None:
        self.uri = uri
        self.artifact_root = artifact_root.absolute()
        self.models = (models or artifact_root.parent / "models").absolute()
        self._threads, self._depth = RLock(), 0

    @classmethod
    def at(cls, home: Home) -> Tracking:
        """The tracking of a home."""
        return cls(home.mlflow_uri, home.root / "mlartifacts", home.models)

    def start(
        self, experiment: str, run_name: str, key: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> str:
        """Start a run, or reopen the one that already carries this key; returns its run id.

        Args:
            experiment: experiment name, made where absent.
            run_name: name shown in the UI.
            key: idempotency key, made from input digests.
            params: logged once; values are cut to MLflow's length.
            tags: further tags.
        """
        safe_name(key, "tracking key")
        experiment_id = self._experiment(safe_name(experiment, "experiment"))
        with self._lock():
            found = self._call("search_runs", [experiment_id], f"tags.`{KEY}` = '{key}'", max_results=1)
            if found:
                run = found[0]
                self._call("set_terminated", run.info.run_id, "RUNNING")
            else:
                labels = {name: short_text(value) for name, value in tags.items()} | {KEY: key}
                run = self._call("create_run", experiment_id, tags=labels, run_name=run_name[:200])
        logged = run.data.params  # a run killed between the two writes lacks some
        self._log_params(run.info.run_id, {name: value for name, value in params.items() if name not in logged})
        return str(run.info.run_id)

    def log_metrics(self, run_id: str, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log metrics of one step; UserError where a value is no finite number or a name is not plain."""
        self.log_curve(run_id, [{"step": float(step), **metrics}])

    def log_curve(self, run_id: str, points: list[dict[str, float]]) -> None:
        """Log many points at once, each a dictionary with "step" and its metrics."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        rows = [
            Metric(metric_name(name), finite(name, value), now, int(point["step"]))
            for point in points
            for name, value in point.items()
            if name != "step"
        ]
        for start in range(0, len(rows), 1000):
            self._call("log_batch", run_id, metrics=rows[start : start + 1000], synchronous=True)

    def last_step(self, run_id: str, metric: str) -> int:
        """The largest step logged for a metric, -1 where there is none."""
        history = self._call("get_metric_history", run_id, metric)
        return max((int(point.step) for point in history), default=-1)

    def metrics(self, run_id: str) -> dict[str, float]:
        """The last value of every metric of a run."""
        return dict(self._call("get_run", run_id).data.metrics)

    def log_artifacts(self, run_id: str, folder: Path) -> None:
        """Copy a folder's files to the run's artifacts; the same files again change nothing."""
        self._call("log_artifacts", run_id, str(folder))

    def write_schema(self, folder: Path, schema: Mapping[str, Any], digest: str) -> None:
        """Write `MLmodel` with the input signature beside a model directory, where MLflow looks for it."""
        with engine_time("mlflow"):
            write_schema(folder, schema, digest)

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run as FINISHED, FAILED or KILLED."""
        if status not in {"FINISHED", "FAILED", "KILLED"}:
            raise UserError(f"run status {status!r}: use FINISHED, FAILED or KILLED")
        self._call("set_terminated", run_id, status)

    def ensure_version(self, name: str, digest: str, source_dir: Path, run_id: str, tags: Mapping[str, str]) -> str:
        """Register a model directory as a version, or return the version that already carries the same key.

        Two versions are the same where digest and, if `tags` has one, `pilotline.key` are.

        Raises:
            UserError: the source is not a folder inside the home's models folder, or the name is not plain.
        """
        safe_name(name, "model name")
        source = self._source(source_dir)
        wanted = {DIGEST: digest, **{tag: short_text(value) for tag, value in tags.items()}}
        if has_schema(source_dir.parent):  # MLflow reads the schema at a version's source, the model lies one below
            source, wanted[DIRECTORY] = self._source(source_dir.parent), source
        with self._lock():
            if found := self._find(name, wanted):
                return found
            self._registered(name)
            return self._create(name, source, run_id, wanted)

    def versions(self, name: str) -> list[dict[str, Any]]:
        """All versions of a model, oldest first: version, digest, tags, created (ms), run_id, source, aliases."""
        safe_name(name, "model name")
        found, token = [], None
        while True:
            page = self._call("search_model_versions", f"name = '{name}'", max_results=1000, page_token=token)
            found += list(page)
            token = page.token
            if not token:
                break
        aliases = self._aliases(name) if found else {}
        rows = [
            {
                "version": str(item.version),
                "digest": item.tags.get(DIGEST, ""),
                "tags": dict(item.tags),
                "created": int(item.creation_timestamp),
                "run_id": item.run_id or "",
                "source": item.tags.get(DIRECTORY) or str(item.source),
                "aliases": sorted(alias for alias, version in aliases.items() if version == str(item.version)),
            }
            for item in found
        ]
        return sorted(rows, key=lambda row: int(row["version"]))

    def names(self) -> list[str]:
        """The names of all registered models."""
        found, token = [], None
        while True:
            page = self._call("search_registered_models", max_results=100, page_token=token)
            found += [str(model.name) for model in page]
            if not (token := page.token):
                return sorted(found)

    def alias(self, name: str, alias: str) -> str | None:
        """The version that an alias points to, or None."""
        return self._aliases(safe_name(name, "model name")).get(safe_name(alias, "alias"))

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point an alias at a version (MLflow's last writer wins; the ledger decides who may write)."""
        self._call("set_registered_model_alias", safe_name(name, "model name"), safe_name(alias, "alias"), version)

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias; one that is not there is no error."""
        if self.alias(name, alias) is not None:
            self._call("delete_registered_model_alias", name, alias)

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a model version."""
        safe_name(name, "model name")
        for tag, value in tags.items():
            self._call("set_model_version_tag", name, version, tag, short_text(value))

    def _experiment(self, name: str) -> str:
        with self._lock():
            found = self._call("get_experiment_by_name", name)
            if found is None:
                place = (self.artifact_root / name).as_uri() if self._embedded else None
                return str(self._call("create_experiment", name, artifact_location=place))
        if found.lifecycle_stage != "active":
            raise UserError(f"experiment {name!r} was deleted in MLflow; restore it or rename model.name in the recipe")
        return str(found.experiment_id)

    def _log_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        rows = [Param(metric_name(name), short_text(value)) for name, value in params.items()]
        for start in range(0, len(rows), 100):
            self._call("log_batch", run_id, params=rows[start : start + 100], synchronous=True)

    def _create(self, name: str, source: str, run_id: str, tags: Mapping[str, str]) -> str:
        """Create a version; where the answer is lost, it is looked for before anybody tries again."""
        about = {"run_id": run_id or None, "tags": dict(tags), "await_creation_for": 0}
        try:
            return str(self._call("create_model_version", name, source, **about).version)
        except TransientError:
            if found := self._find(name, tags):
                return found
            raise

    def _find(self, name: str, wanted: Mapping[str, str]) -> str | None:
        """The version with this digest and, where it is named, this key."""
        for version in self.versions(name):
            if all(version["tags"].get(tag) == wanted[tag] for tag in (DIGEST, KEY) if tag in wanted):
                return str(version["version"])
        return None

    def _registered(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        for attempt in range(1, READ_ATTEMPTS + 1):
            try:
                self._client.create_registered_model(name)
                return
            except MlflowException as error:
                if error.error_code == "RESOURCE_ALREADY_EXISTS":
                    return
                told = _translated(error, self.uri)
                if not isinstance(told, TransientError) or attempt == READ_ATTEMPTS:
                    raise told from error
            time.sleep(0.2 * attempt)

    def _aliases(self, name: str) -> dict[str, str]:
        found = self._call("search_registered_models", f"name = '{name}'", max_results=1)
        return {alias: str(version) for alias, version in found[0].aliases.items()} if found else {}

    def _source(self, folder: Path) -> str:
        resolved = folder.resolve()
        inside = resolved.is_dir() and resolved.is_relative_to(self.models.resolve())
        if not inside or "%" in str(resolved.relative_to(self.models.resolve())):
            raise UserError(f"model source {str(folder)!r}: must be a folder inside {self.models}")
        return str(resolved)

    @property
    def _embedded(self) -> bool:
        return self.uri.startswith("sqlite")

    def _check_embedded(self) -> None:
        """TransientError at once where SQLite cannot open the store: MLflow would try for minutes, loudly."""
        path = self.uri.removeprefix("sqlite:///")
        if not self._embedded or not Path(path).exists():
            return
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as connection:
                connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            if not any(word in str(error) for word in _LOCKED):
                raise TransientError(
                    f"MLflow at {self.uri} cannot be opened ({error}); restore it or free it"
                ) from error

    @cached_property
    def _client(self) -> MlflowClient:
        self._check_embedded()
        for name, value in _BOUNDS.items():
            os.environ.setdefault(name, value)
        os.environ[RETRIES] = "0"  # MLflow sends a creation again whose answer was lost, and so makes a second version
        for noisy in ("alembic", "mlflow"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlflow import MlflowClient

            client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
            with self._lock():  # two first users would run SQLite's migrations at the same time
                client.search_experiments(max_results=1)
                client.search_registered_models(max_results=1)
        return client

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One writer at a time where the store is embedded: among threads by a lock, among processes by a file."""
        if not self._embedded:
            yield
            return
        with self._threads:
            if self._depth:
                yield
                return
            self._depth += 1
            try:
                with locked(self.artifact_root):
                    yield
            finally:
                self._depth -= 1

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call the client, again after a moment where SQLite was locked or what may be said twice had no answer.

        Other failures become our errors.
        """
        for attempt in range(ATTEMPTS):
            try:
                with engine_time("mlflow"):
                    return getattr(self._client, method)(*args, **options)
            except PilotlineError:
                raise
            except Exception as error:  # MLflow and SQLAlchemy share no base
                told = _translated(error, self.uri)
                locked_out = any(word in str(error).lower() for word in _LOCKED)
                lost = method in REPEATABLE and isinstance(told, TransientError) and attempt + 1 < READ_ATTEMPTS
                if attempt + 1 < ATTEMPTS and (locked_out or lost):
                    time.sleep(0.2 * 2**attempt)
                    continue
                raise told from error
        raise AssertionError("unreachable")


def _translated(error: Exception, uri: str) -> PilotlineError:
    code = getattr(error, "error_code", "")
    where, why = (re.sub(r"//[^/@\s]*@", "//", text) for text in (uri, one_line(error)))  # no user, no password
    if code in {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "BAD_REQUEST"}:
        return UserError(f"MLflow at {where}: {why[:300]}")
    return TransientError(f"MLflow at {where} does not answer as it should ({why[:300]}); run again")
