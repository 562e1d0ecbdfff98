"""The rollout's side of the scoring pod's control port, and of what is mirrored there."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError, PolicyRefusal, TransientError
from components.core.processes import wait_until
from components.core.protocols import ArrivedLabel, Decision
from components.core.recipe import Recipe
from components.serving.cluster import ConflictError
from components.serving.cluster_port import state_of
from components.serving.control import ServingState
from components.serving.shadows import Shadows

CALL_SECONDS = 10.0
TRIES_SECONDS = 6.0  # a pod that is just being replaced comes back, or the rollout says so
SERVICE_START_SECONDS = 120.0
IN_FORCE_SECONDS = 15.0
ANSWERING_SECONDS = 60.0


class Control:
    """Asks one control port."""

    def __init__(self, url: str, key: str) -> None:
        """`url` of the port, `key` of the home's serving folder; nothing is asked before the first call."""
        import httpx

        headers = {"authorization": f"Bearer {key}"}
        self._url = url
        self._client = httpx.Client(base_url=url, headers=headers, timeout=CALL_SECONDS, trust_env=False)

    def state(self) -> ServingState:
        """The state that was set last."""
        return state_of(self._ask("GET", "/state"))

    def put_state(self, state: ServingState) -> None:
        """Set a state that follows the one before.

        Raises:
            ConflictError: another one is in force; nothing was changed.
            TransientError: the pod does not answer.
        """
        try:
            self._ask("PUT", "/state", {"state": asdict(state), "after": state.generation - 1})
        except ConflictError:
            if self.state() != state:  # else it was ours: the answer to the first try was lost
                raise

    def await_in_force(self, state: ServingState) -> None:
        """Wait until decisions are made by it; TransientError where the service does not take it."""
        if not wait_until(lambda: self.health().get("generation", -1) >= state.generation, IN_FORCE_SECONDS, 0.02):
            said = self.health().get("state_error") or "no answer"
            raise TransientError(f"the scoring service did not take the change ({said}); see the logs of its pod")

    def serve(self, recipe: Recipe, run_id: str, training_set: Path, router_url: str) -> None:
        """Give the service its settings and wait until it runs by them; it starts anew only where it has to."""
        body = {"recipe": recipe.to_json(), "run_id": run_id, "router_url": router_url,
                "training_set": str(training_set.absolute())}  # fmt: skip
        instance = self._ask("PUT", "/service", body)["instance"]
        if not wait_until(lambda: self.health().get("instance") == instance, SERVICE_START_SECONDS, every=0.1):
            raise TransientError(
                f"the scoring service did not start within {SERVICE_START_SECONDS:.0f} s; see the logs of its pod"
            )

    def health(self) -> dict[str, Any]:
        """What the service says of itself; empty where it does not answer."""
        try:
            return self._ask("GET", "/service", seconds=0.0)
        except TransientError:
            return {}

    def newest(self) -> dict[str, int]:
        """Numbers of the newest records in the decision log: {"decisions", "shadows"}."""
        return {name: int(number) for name, number in self._ask("GET", "/newest").items()}

    def shadows(self, after: int) -> list[Mapping[str, Any]]:
        """What the canary answered to mirrored requests after this record, oldest first."""
        return list(self._ask("GET", f"/shadows?after={after}")["rows"])

    def labels(self, after: int, decided_after: int) -> list[ArrivedLabel]:
        """Labels that arrived after this record, for decisions made after that one."""
        found = self._ask("GET", f"/labels?after={after}&decided_after={decided_after}")["rows"]
        return [ArrivedLabel(**row) for row in found]

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None,
             seconds: float = TRIES_SECONDS) -> dict[str, Any]:  # fmt: skip
        """Ask again for a while where nobody answers: each request may be repeated."""
        import httpx

        found: list[httpx.Response] = []

        def answered() -> bool:
            try:
                found[:] = [self._client.request(method, path, json=body)]
            except httpx.HTTPError:
                return False
            return found[0].status_code < 500

        wait_until(answered, seconds, every=0.2)
        if not found:
            raise TransientError(
                f"the scoring service's control port {self._url} does not answer; is its pod up "
                "(kubectl get pods -l app.kubernetes.io/name=pilotline-scoring)?"
            )
        return self._taken(found[0])

    def _taken(self, answer: Any) -> dict[str, Any]:
        try:
            value = answer.json()
        except ValueError:
            value = {}
        said = str(value.get("detail", ""))[:300] if isinstance(value, dict) else ""
        if answer.status_code == 200 and isinstance(value, dict):
            return value
        if answer.status_code == 409:
            raise ConflictError(f"the serving state was changed by another controller ({said}); nothing was changed")
        if answer.status_code == 401:
            raise PolicyRefusal(f"control port {self._url}: {said}; mount the same home in both pods")
        if answer.status_code >= 500:
            raise TransientError(f"control port {self._url}: answered {answer.status_code} ({said}); try again")
        raise IntegrityError(f"control port {self._url}: answered {answer.status_code} ({said})")


class HeldState:
    """The state as this controller knows it; each change follows the one before, or is refused."""

    def __init__(self, control: Control) -> None:
        self._control, self._changing = control, threading.RLock()
        self.state = self._sent = ServingState()

    def read(self) -> None:
        """Take over the state that is in force."""
        self.state = self._sent = self._control.state()

    def change(self, **values: Any) -> None:
        """Bring a changed state into force, and read it back.

        Raises:
            ConflictError: another controller changed it; nothing was changed.
            TransientError: the pod does not answer, or the service does not take it.
        """
        with self._changing:
            try:
                self._put(values)
            except ConflictError:
                if self._control.state() != self._sent:
                    raise
                self.state = self._sent  # an earlier change of ours arrived after all, its answer was lost
                self._put(values)
            self._control.await_in_force(self.state)

    def _put(self, values: Mapping[str, Any]) -> None:
        changed = replace(self.state, **values, generation=self.state.generation + 1)
        before, self._sent = self._sent, changed
        try:
            self._control.put_state(changed)
        except ConflictError:
            self._sent = before
            raise
        self.state = changed


class PodShadows(Shadows):
    """As `Shadows`, asked of the pod, whose decision log is a file of its own host."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._last, self._found = control.newest()["shadows"], dict[str, Mapping[str, Any]]()

    def join(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions with what is known of their shadows by now."""
        for row in self._control.shadows(self._last):
            self._found[str(row["decision_id"])] = row
            self._last = int(row["seq"])
        return [self._joined(decision) for decision in decisions]


def await_answering(url: str) -> None:
    """Wait until the scoring service answers its callers: its Service has no pod before the first arm is served.

    Raises:
        TransientError: it is not ready within a minute.
    """
    import httpx

    def ready() -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=CALL_SECONDS, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    if not wait_until(ready, ANSWERING_SECONDS, every=0.2):
        raise TransientError(f"the scoring service at {url} is not ready after {ANSWERING_SECONDS:.0f} s; see /readyz")
