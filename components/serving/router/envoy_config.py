"""What Envoy is told: its bootstrap, its routes and its endpoints, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.serving.control import ARMS
from components.serving.router.interface import ALLOWED, ARM_HEADER, Backend

TYPES = "type.googleapis.com/envoy"
ROUTES_FILE = "routes.json"
LOOPBACK = "127.0.0.1"
NOBODY = "192.0.2.1"  # set aside for documentation (RFC 5737)
RETRY_ON = "connect-failure,refused-stream,reset-before-request"  # only what never reached a model server
RETRIES = 2
HEADERS_SECONDS = 10
ADMIN = r"/(server_info|stats|clusters|config_dump)([?].*)?"


@dataclass(frozen=True)
class Limits:
    """What one caller, or one arm, may cost.

    An arm is ejected for `eject_seconds` after so many failures in a row to connect, to answer in time or with 502,
    503 or 504. A 500 ejects nobody: a request that breaks the model must not take the arm from all others.
    `stream_seconds` is for a whole answer, however alive.
    """

    stream_seconds: float = 600.0
    body_bytes: int = 1 << 20
    idle_seconds: int = 30  # under the servers' keep-alive, so that no request meets a connection being closed
    requests: int = 256  # in flight to one arm; more are answered 503 at once
    waiting: int = 256  # for a connection to one arm
    eject_after: int = 5
    eject_seconds: int = 1


def endpoints_file(arm: str) -> str:
    """The watched file of an arm's endpoints."""
    return f"{arm}.endpoints.json"


def endpoints(arm: str, backend: Backend | None) -> dict[str, Any]:
    """Where an arm answers: one endpoint or none."""
    found = [] if backend is None else [{"endpoint": {"address": _address(backend.host, backend.port)}}]
    kind = f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment"
    return {"@type": kind, "cluster_name": arm, "endpoints": [{"lb_endpoints": found}]}


def route_configuration(
    weights: Mapping[str, int], generation: int, timeout_seconds: float, stream_seconds: float
) -> dict[str, Any]:
    """The routes; `generation` is told in the virtual host's name, which the admin port repeats."""
    routes = _routes(weights, timeout_seconds, stream_seconds)
    host = {"name": f"model-{generation}", "domains": ["*"], "routes": routes}
    return {"@type": f"{TYPES}.config.route.v3.RouteConfiguration", "name": "model", "virtual_hosts": [host]}


def bootstrap(watched: Path, port: int, admin_port: int, timeout_seconds: float, limits: Limits) -> dict[str, Any]:
    """Listener, clusters and admin port, all on loopback; routes and endpoints are files in `watched`."""
    clusters = [_cluster(watched, arm, limits) for arm in ARMS]
    return {
        "node": {"id": "pilotline", "cluster": "pilotline"},
        # Whoever is on this machine reaches the port: what is read here may be read, and nothing can be told to Envoy.
        "admin": {"address": _address(LOOPBACK, admin_port), "allow_paths": [{"safe_regex": {"regex": ADMIN}}]},
        "static_resources": {
            "listeners": [_listener(watched, port, timeout_seconds, limits)],
            "clusters": clusters,
        },
    }


def _routes(weights: Mapping[str, int], timeout_seconds: float, stream_seconds: float) -> list[dict[str, Any]]:
    """First match wins: named arm, unknown arm, weights, and everything else is not there.

    The timeout is for the first byte and between two: a stream that is slow but alive goes on for `stream_seconds`,
    and a little longer here, so that the scoring service, which knows how to say so, ends it.
    """
    retry = {"retry_on": RETRY_ON, "num_retries": RETRIES, "per_try_idle_timeout": f"{timeout_seconds:.3f}s"}
    longest = {"max_stream_duration": f"{stream_seconds + timeout_seconds:.3f}s"}
    how = {"timeout": "0s", "max_stream_duration": longest, "retry_policy": retry}
    split = {"clusters": [{"name": arm, "weight": weights[arm]} for arm in ARMS]}
    routes: list[dict[str, Any]] = []
    for path, method in ALLOWED:
        asked = [_header(":method", method)]
        for arm in ARMS:
            headers = [*asked, _header(ARM_HEADER, arm)]
            routes.append({"match": {"path": path, "headers": headers}, "route": {"cluster": arm} | how})
        unknown = [{"name": ARM_HEADER, "present_match": True}]
        routes.append({"match": {"path": path, "headers": unknown}, "direct_response": _says(400, "unknown arm")})
        routes.append({"match": {"path": path, "headers": asked}, "route": {"weighted_clusters": split} | how})
    routes.append({"match": {"prefix": "/"}, "direct_response": _says(404, "not served here")})
    return routes


def _listener(watched: Path, port: int, timeout_seconds: float, limits: Limits) -> dict[str, Any]:
    filters = "extensions.filters.http"
    limit = {"@type": f"{TYPES}.{filters}.buffer.v3.Buffer", "max_request_bytes": limits.body_bytes}
    connection = {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "model",
        "rds": {"route_config_name": "model", "config_source": _watched(watched, ROUTES_FILE)},
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "preserve_external_request_id": True,  # the decision's id reaches the model server's log
        # No caller is trusted, nor one on loopback: x-envoy-retry-on and the like are taken off its requests. An empty
        # list of internal addresses would leave Envoy's own, so it names one that nobody has.
        "use_remote_address": True,
        "internal_address_config": {"cidr_ranges": [{"address_prefix": NOBODY, "prefix_len": 32}]},
        "request_headers_timeout": f"{HEADERS_SECONDS}s",
        "request_timeout": f"{timeout_seconds + HEADERS_SECONDS:.3f}s",  # to send the request, headers and body
        "stream_idle_timeout": f"{2 * timeout_seconds:.3f}s",
        "http_filters": [
            {"name": "envoy.filters.http.buffer", "typed_config": limit},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{TYPES}.{filters}.router.v3.Router"}},
        ],
    }
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": connection}
    return {"name": "model", "address": _address(LOOPBACK, port), "filter_chains": [{"filters": [manager]}]}


def _cluster(watched: Path, arm: str, limits: Limits) -> dict[str, Any]:
    options = {
        "@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http_protocol_options": {}},
        "common_http_protocol_options": {"idle_timeout": f"{limits.idle_seconds}s"},
    }
    breaker = {"max_connections": limits.requests, "max_pending_requests": limits.waiting}
    breaker |= {"max_requests": limits.requests, "max_retries": RETRIES}
    return {
        "name": arm,
        "type": "EDS",
        "connect_timeout": "1s",
        "eds_cluster_config": {"eds_config": _watched(watched, endpoints_file(arm))},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "circuit_breakers": {"thresholds": [breaker]},
        "outlier_detection": _outliers(limits),
        # One endpoint an arm: without this Envoy goes on sending to a host that it has ejected.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0.0}},
    }


def _outliers(limits: Limits) -> dict[str, Any]:
    seconds = f"{limits.eject_seconds}s"
    return {
        "interval": "0.5s",
        "base_ejection_time": seconds,
        "max_ejection_time": seconds,
        "max_ejection_percent": 100,
        # Not told apart from the server's own 502 to 504: told apart, each connection made clears the timeouts before.
        "split_external_local_origin_errors": False,
        "consecutive_gateway_failure": limits.eject_after,
        "enforcing_consecutive_gateway_failure": 100,
        "enforcing_consecutive_5xx": 0,
        "enforcing_success_rate": 0,
    }


def _watched(folder: Path, name: str) -> dict[str, Any]:
    source = {"path": str(folder / name), "watched_directory": {"path": str(folder)}}
    return {"path_config_source": source, "resource_api_version": "V3"}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _header(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "string_match": {"exact": value}}


def _says(status: int, text: str) -> dict[str, Any]:
    body = json.dumps({"error": {"message": text, "type": "router", "code": status}})
    return {"status": status, "body": {"inline_string": body}}
