"""What a rollout whose controller died or hangs left in front of users: all its traffic back to stable.

On Linux model servers, Envoy and the scoring service die with their controller; elsewhere, and where it was killed in a
way that the kernel does not tell its children, they go on with the weight that was in force.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.home import Home
from components.core.processes import owned_by, wait_until
from components.core.publish import write_atomic
from components.rollout.journal import About
from components.serving.control import CANARY, STABLE, ServingState, read_state, write_state
from components.serving.router.envoy_config import ROUTES_FILE
from components.serving.router.interface import ALL_ON_STABLE
from components.serving.scoring_service import ServiceConfig
from pipelines.cluster_serving import cluster_recipe
from pipelines.cluster_serving import to_stable as cluster_to_stable

IN_FORCE_SECONDS = 10.0


def to_stable(home: Home, about: About) -> str:
    """Weight 0 and no mirroring at the scoring service and at Envoy, read back; then the canary's processes end.

    Returns:
        What was done, for people; "" where nothing of the rollout answers any more.

    Raises:
        TransientError: stable does not answer, so no traffic was sent to it; or a weight is not in force.
    """
    if (recipe := cluster_recipe(home, about.run_id)) is not None:
        return cluster_to_stable(home, recipe, first=not about.stable_version)
    left = _Left.find(home.run(about.run_id))
    if left is None:
        return ""
    if not left.answers():
        left.write_weight()  # should it only hang: it goes by this when it wakes
        return ""
    if wrong := left.stable_problem():
        raise TransientError(
            f"rollout of {about.name}: stable does not answer ({wrong}), so no traffic was turned to it; `pilotline "
            "rollout start` starts it and then goes the way back that was asked for"
        )
    left.turn_back()
    ended = _end_canary(home, left.state)
    return f"all traffic on stable, which answers on port {left.config.port}; {ended} canary processes ended"


def hurry(home: Home, about: About) -> None:
    """The weight of a local rollout to 0, where stable answers, while its controller is still being waited for.

    Nothing else is touched: a controller that lives finds what it would have done itself.
    """
    with suppress(TransientError, UserError, IntegrityError, OSError):
        left = None if cluster_recipe(home, about.run_id) else _Left.find(home.run(about.run_id))
        if left is not None and left.state.weight and left.answers() and not left.stable_problem():
            left.turn_back()


class _Left:
    """The scoring service of a dead controller and the Envoy behind it."""

    def __init__(self, folder: Path, config: ServiceConfig, state: ServingState) -> None:
        self._folder, self.config, self.state = folder, config, state

    @classmethod
    def find(cls, run: Path) -> _Left | None:
        """None where the run never had any."""
        folder = run / "serving"
        with suppress(UserError, IntegrityError):
            config = ServiceConfig.read(folder / "service.json")
            return cls(folder, config, read_state(folder / "state.json"))
        return None

    def answers(self) -> bool:
        """Whether it lives; another service may have its port by now."""
        return self._health().get("instance") == self.config.instance

    def stable_problem(self) -> str:
        """ "" where stable scores a request through the router."""
        import httpx

        if STABLE not in self.state.arms:
            return "it is not served"
        try:  # the probe asks stable wherever it has an arm
            answer = httpx.get(f"{self._url}/readyz", timeout=30.0, trust_env=False)
        except httpx.HTTPError as error:
            return type(error).__name__
        return "" if answer.status_code == 200 else str(_object(answer).get("detail", answer.status_code))

    def turn_back(self) -> None:
        """Draws first: decisions go by the service's weight, what is passed through by Envoy's."""
        self.write_weight()
        in_force = lambda: self._health().get("generation", -1) >= self.state.generation  # noqa: E731
        if not wait_until(in_force, IN_FORCE_SECONDS, every=0.02) or self._health().get("weight") != 0:
            raise TransientError("the scoring service did not take weight 0; run the abort again")
        file = self._folder / "envoy" / "watched" / ROUTES_FILE
        routes = json.loads(file.read_text())
        host = routes["resources"][0]["virtual_hosts"][0]
        generation = _generation(host) + 1
        host["name"] = f"{host['name'].rpartition('-')[0]}-{generation}"
        for cluster in _split(host):
            cluster["weight"] = ALL_ON_STABLE[cluster["name"]]
        routes["version_info"] = str(time.time_ns())
        write_atomic(file, json.dumps(routes))
        wanted_routes = {"generation": generation, **ALL_ON_STABLE}
        if not wait_until(lambda: self._routes() == wanted_routes, IN_FORCE_SECONDS, every=0.02):
            raise TransientError("Envoy did not take weight 0; run the abort again")

    def write_weight(self) -> None:
        """What the scoring service goes by: nothing to the canary."""
        self.state = replace(self.state, weight=0.0, shadow=False, generation=self.state.generation + 1)
        write_state(self._folder / "state.json", self.state)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.config.port}"

    def _health(self) -> Mapping[str, Any]:
        return _get(f"{self._url}/healthz")

    def _routes(self) -> Mapping[str, int]:
        """The routes in force, from Envoy's admin port."""
        told = json.loads((self._folder / "envoy" / "envoy.json").read_text())
        port = told["admin"]["address"]["socket_address"]["port_value"]
        found = _get(f"http://127.0.0.1:{port}/config_dump?resource=dynamic_route_configs")
        for config in found.get("configs", []):
            host = config["route_config"]["virtual_hosts"][0]
            weights = {cluster["name"]: int(cluster.get("weight", 0)) for cluster in _split(host)}
            return {"generation": _generation(host), **weights}
        return {}


def _generation(host: Mapping[str, Any]) -> int:
    return int(host["name"].rpartition("-")[2])


def _split(host: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The weighted clusters of every route that has some."""
    split = [route.get("route", {}).get("weighted_clusters", {}) for route in host["routes"]]
    return [cluster for one in split for cluster in one.get("clusters", [])]


def _end_canary(home: Home, state: ServingState) -> int:
    """End the processes that serve the canary's name; how many there were."""
    import psutil

    if CANARY not in state.arms:
        return 0
    name, found = state.arms[CANARY].served_name, []
    for pid in owned_by(home.root):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if name in process.cmdline():
                found += [process, *process.children(recursive=True)]
    for process in found:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=5.0)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    return len(found)


def _get(url: str) -> Mapping[str, Any]:
    """A JSON object from a port of this machine; empty where there is none."""
    import httpx

    with suppress(httpx.HTTPError):
        return _object(httpx.get(url, timeout=5.0, trust_env=False))
    return {}


def _object(answer: Any) -> Mapping[str, Any]:
    with suppress(ValueError):
        found = answer.json()
        return found if isinstance(found, dict) else {}
    return {}
