"""The two routers with two replicas behind each, so that one suite can ask both the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from components.serving.router.envoy import Envoy
from components.serving.router.gateway import HttpRoute
from components.serving.router.interface import ARM_HEADER, Backend, Router
from tests.fakes.gateway_rules import accepting, answer, new_route
from tests.fakes.kubernetes_api import KubernetesApi
from tests.fakes.recording_server import RecordingServer

ROUTE = ("gateway.networking.k8s.io/v1", "httproutes", "pilotline-model")


class Place(Protocol):
    """A router and the world around it."""

    @property
    def router(self) -> Router:
        """The router."""
        ...

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Where each arm's replica is."""
        ...

    def ask(self, method: str, path: str, arm: str | None) -> tuple[int, str]:
        """Status, and the arm whose replica answered ("" where none did)."""
        ...

    def meddle(self) -> str:
        """Another writer sends 70 % to the canary; returns what has to name it."""
        ...

    def fail(self) -> None:
        """The engine is gone."""
        ...


@dataclass
class EnvoyPlace:
    """Envoy is real; the replicas are recording servers."""

    router: Envoy
    servers: Mapping[str, RecordingServer]
    folder: Path
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=10, trust_env=False))

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Where the servers listen."""
        return {arm: Backend("127.0.0.1", server.port) for arm, server in self.servers.items()}

    def ask(self, method: str, path: str, arm: str | None) -> tuple[int, str]:
        """Over HTTP."""
        headers = {} if arm is None else {ARM_HEADER: arm}
        found = self.client.request(method, f"{self.router.url}{path}", headers=headers)
        served = found.status_code == 200
        return found.status_code, str(found.json()["served_by"]) if served else ""

    def meddle(self) -> str:
        """A rename over the watched file."""
        path = self.folder / "watched" / "routes.json"
        other = self.folder / "other.json"
        other.write_text(
            path.read_text().replace('"weight": 100', '"weight": 30').replace('"weight": 0', '"weight": 70')
        )
        other.rename(path)
        return "routes.json"

    def fail(self) -> None:
        """The process ends."""
        self.router.close()


@dataclass
class RoutePlace:
    """The HTTPRoute is an object of the API double; requests are matched as the Gateway API says."""

    router: HttpRoute
    api: KubernetesApi
    backends: Mapping[str, Backend]
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def route(self) -> dict[str, Any]:
        """The route as it is."""
        return self.api.get(*ROUTE, "serving")

    def ask(self, method: str, path: str, arm: str | None) -> tuple[int, str]:
        """By the rules in the API."""
        status, name = answer(self.route, method, path, {} if arm is None else {ARM_HEADER: arm}, self.draw)
        return status, {backend.host: arm for arm, backend in self.backends.items()}.get(name, "")

    def meddle(self) -> str:
        """Somebody edits the weights."""
        found = self.route
        refs = found["spec"]["rules"][-1]["backendRefs"]
        for ref, weight in zip(refs, (30, 70), strict=False):
            ref["weight"] = weight
        self.api.replace(found, "serving", writer="kubectl-edit")
        return "kubectl-edit"

    def fail(self) -> None:
        """The API server answers nothing but 503."""
        self.api.fail("GET PATCH", "/httproutes/", 503, times=10_000)


@contextmanager
def open_place(kind: str, folder: Path) -> Iterator[Place]:
    """`envoy` or `httproute`, started, without an arm."""
    with ExitStack() as stack:
        if kind == "envoy":
            servers = {arm: stack.enter_context(RecordingServer(arm)) for arm in ("stable", "canary")}
            envoy = Envoy(folder / "envoy", folder / "envoy.log", 5.0)
            stack.callback(envoy.close)
            envoy.start()
            place = EnvoyPlace(envoy, servers, folder / "envoy")
            stack.callback(place.client.close)
            yield place
            return
        api = stack.enter_context(KubernetesApi(namespaces=("serving",)))
        api.on_change = accepting(api)
        api.create(new_route(), "serving")
        backends = {arm: Backend(f"triage-{arm}", 8000) for arm in ("stable", "canary")}
        route = HttpRoute(api.client(), "serving", "pilotline-model", "http://gateway.test", 5.0, accept_seconds=0.5)
        stack.callback(route.close)
        yield RoutePlace(route, api, backends)
