"""An in-memory double of the tracking adapter; it passes the same test suite as the real one.

It keeps the promises of `components.tracking.mlflow_tracking.Tracking` about runs, versions and aliases: idempotent by
key, plain names only, finite metrics only, sources only inside the models folder.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from components.core.errors import TransientError, UserError
from components.core.home import safe_name

KEY, DIGEST = "pilotline.key", "pilotline.digest"


class FakeTracking:
    """Runs and model versions in dictionaries, safe to use from several threads.

    Attributes:
        down: while True every call fails as an unreachable server does.
        on_call: called with the method's name before each call, for tests that interleave writers.
    """

    def __init__(self, models: Path, on_call: Callable[[str], None] = lambda name: None) -> None:
        self.models = models.absolute()
        self.down = False
        self.on_call = on_call
        self.runs: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, list[dict[str, Any]]] = {}
        self._aliases: dict[str, dict[str, str]] = {}
        self._ids = itertools.count(1)
        self._lock = threading.RLock()

    def start(
        self, experiment: str, run_name: str, key: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> str:
        """Start a run or reopen the one with this key."""
        self._called("start")
        safe_name(key, "tracking key"), safe_name(experiment, "experiment")
        with self._lock:
            for run_id, run in self.runs.items():
                if (run["experiment"], run["key"]) == (experiment, key):
                    run["status"] = "RUNNING"
                    return run_id
            run_id = f"run{next(self._ids)}"
            about = {"experiment": experiment, "key": key, "status": "RUNNING"}
            self.runs[run_id] = about | {"params": dict(params), "tags": dict(tags), "metrics": {}, "files": {}}
            return run_id

    def log_metrics(self, run_id: str, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log metrics of one step."""
        self._called("log_metrics")
        if bad := [name for name, value in metrics.items() if not math.isfinite(value)]:
            raise UserError(f"metric {bad[0]!r} is not finite; only finite numbers are tracked")
        self.runs[run_id]["metrics"] |= metrics

    def metrics(self, run_id: str) -> dict[str, float]:
        """The last value of every metric of a run."""
        self._called("metrics")
        return dict(self.runs[run_id]["metrics"])

    def log_artifacts(self, run_id: str, folder: Path) -> None:
        """Keep a folder's files with a run."""
        self._called("log_artifacts")
        found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        if run_id not in self.runs:
            raise UserError(f"no run {run_id!r}")
        self.runs[run_id]["files"] |= found

    def write_schema(self, folder: Path, schema: Mapping[str, Any], digest: str) -> None:
        """Write the input signature beside a model directory; needs no server."""
        (folder / "MLmodel").write_text(json.dumps({"schema": schema, "digest": digest}))

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run."""
        self._called("finish")
        self.runs[run_id]["status"] = status

    def ensure_version(self, name: str, digest: str, source_dir: Path, run_id: str, tags: Mapping[str, str]) -> str:
        """Register a model directory or return the version with this digest and key."""
        self._called("ensure_version")
        safe_name(name, "model name")
        source = source_dir.resolve()
        if not source.is_dir() or not source.is_relative_to(self.models.resolve()) or "%" in str(source):
            raise UserError(f"model source {str(source_dir)!r}: must be a folder inside {self.models}")
        wanted = {DIGEST: digest, **tags}
        with self._lock:
            known = self._versions.setdefault(name, [])
            for version in known:
                if all(version["tags"].get(tag) == wanted[tag] for tag in (DIGEST, KEY) if tag in wanted):
                    return str(version["version"])
            number = str(len(known) + 1)
            known.append(
                {
                    "version": number,
                    "digest": digest,
                    "tags": wanted,
                    "created": next(self._ids),
                    "run_id": run_id,
                    "source": str(source),
                }
            )
            return number

    def versions(self, name: str) -> list[dict[str, Any]]:
        """All versions, oldest first."""
        self._called("versions")
        safe_name(name, "model name")
        with self._lock:
            aliases = self._aliases.get(name, {})
            return [
                item
                | {"tags": dict(item["tags"])}
                | {"aliases": sorted(alias for alias, version in aliases.items() if version == item["version"])}
                for item in self._versions.get(name, [])
            ]

    def names(self) -> list[str]:
        """The names of all models."""
        self._called("names")
        return sorted(self._versions)

    def alias(self, name: str, alias: str) -> str | None:
        """The version that an alias points to."""
        self._called("alias")
        return self._aliases.get(safe_name(name, "model name"), {}).get(safe_name(alias, "alias"))

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point an alias at a version that exists."""
        self._called("set_alias")
        safe_name(name, "model name"), safe_name(alias, "alias")
        with self._lock:
            if version not in {item["version"] for item in self._versions.get(name, [])}:
                raise UserError(f"model {name}: no version {version!r}")
            self._aliases.setdefault(name, {})[alias] = version

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias where it is there."""
        self._called("delete_alias")
        with self._lock:
            self._aliases.get(name, {}).pop(alias, None)

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        self._called("set_tags")
        for item in self._versions[name]:
            if item["version"] == version:
                item["tags"] |= tags

    def _called(self, name: str) -> None:
        self.on_call(name)
        if self.down:
            raise TransientError("MLflow does not answer; run again")
