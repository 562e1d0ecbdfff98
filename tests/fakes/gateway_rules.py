"""What a gateway does with a request by an HTTPRoute's rules, from the Gateway API's text; no gateway of ours.

Precedence (HTTPRouteRule.matches): exact path, longer prefix, method, more headers, then the first rule.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from tests.fakes.kubernetes_api import KubernetesApi


def answer(
    route: Mapping[str, Any], method: str, path: str, headers: Mapping[str, str], draw: random.Random
) -> tuple[int, str]:
    """(200, Service's name), or the gateway's own status with no name: 404 for no match, 500 for no backend."""
    fitting = []
    for place, rule in enumerate(route["spec"].get("rules") or []):
        for match in rule.get("matches") or [{"path": {"type": "PathPrefix", "value": "/"}}]:
            if _fits(match, method, path, headers):
                said = match.get("path", {"type": "PathPrefix", "value": "/"})
                rank = (said["type"] == "Exact", len(said["value"]), "method" in match, len(match.get("headers", [])))
                fitting.append((rank, -place, rule))
    if not fitting:
        return 404, ""
    rule = max(fitting, key=lambda found: found[:2])[2]
    refs = [(ref["name"], ref.get("weight", 1)) for ref in rule.get("backendRefs") or []]
    if not sum(weight for _, weight in refs):
        return 500, ""
    return 200, draw.choices([name for name, _ in refs], [weight for _, weight in refs])[0]


def _fits(match: Mapping[str, Any], method: str, path: str, headers: Mapping[str, str]) -> bool:
    said = match.get("path", {"type": "PathPrefix", "value": "/"})
    if said["type"] == "Exact" and path != said["value"]:
        return False
    if said["type"] == "PathPrefix" and not f"{path}/".startswith(said["value"].rstrip("/") + "/"):
        return False
    if match.get("method", method) != method:
        return False
    for header in match.get("headers", []):
        value = headers.get(header["name"].lower())
        exact = header.get("type", "Exact") == "Exact"
        if value is None or (value != header["value"] if exact else not re.fullmatch(header["value"], value)):
            return False
    return True


def accepting(api: KubernetesApi) -> Any:
    """A gateway's controller that accepts every route at once; for `KubernetesApi.on_change`."""

    def act(event: str, item: dict[str, Any]) -> None:
        if item["kind"] == "HTTPRoute" and event != "DELETED":
            report(api, item, "True")

    return act


def report(api: KubernetesApi, item: Mapping[str, Any], accepted: str, reason: str = "Accepted") -> None:
    """Report on a route's generation, once."""
    generation = item["metadata"]["generation"]
    told = {"observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}
    conditions = [
        {"type": "Accepted", "status": accepted, "reason": reason} | told,
        {"type": "ResolvedRefs", "status": "True", "reason": "ResolvedRefs"} | told,
    ]
    parent = {"parentRef": {"name": "pilotline"}, "controllerName": "example.test/gateway", "conditions": conditions}
    about = item["metadata"]
    status = {"parents": [parent]}
    if item.get("status") != status:
        api.set_status("gateway.networking.k8s.io/v1", "httproutes", about["name"], status, about["namespace"])


def new_route(name: str = "pilotline-model") -> dict[str, Any]:
    """The route as the manifests make it, without rules, and with what the API server then fills in."""
    spec = {
        "parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "pilotline"}],
        "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]}],
    }
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": name}, "spec": spec}
