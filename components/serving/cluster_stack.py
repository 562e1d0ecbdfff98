"""The serving stack of a cluster: a Deployment a version behind an HTTPRoute, and the scoring service in its pod.

Other than on one machine nothing ends with the controller: what runs goes on answering users, and the next controller
takes it over. The state at the scoring service says what is served; Deployments that it does not name are what a
controller left that died, and are removed. Changes go in the order in which each moment between two of them is safe:
a canary gets draws after its route, and loses them before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from components.core.engine_time import engine_time
from components.core.errors import IntegrityError, UserError
from components.core.protocols import ArrivedLabel, Decision, GoldenRow, Served
from components.core.recipe import Recipe
from components.serving.cluster_arms import ClusterArm, mend_routes, patiently, sweep, taken_over
from components.serving.cluster_client import Control, HeldState, PodShadows, await_answering
from components.serving.control import ARMS, CANARY, STABLE, ServingState
from components.serving.golden import score_rows
from components.serving.replica import ReplicaSpec
from components.serving.replicas.interface import Golden
from components.serving.replicas.kubernetes import KubernetesReplicas
from components.serving.router.gateway import HttpRoute
from components.serving.router.interface import ALL_ON_STABLE
from components.serving.shadows import replay

QUIET_SECONDS = 0.5  # for what was decided on before a change to reach the gateway
LOOK_SECONDS = 1.0  # an answer about a replica's life is that old at most
Row = Mapping[str, object]


class ClusterStack:
    """Implements `core.protocols.ServingStack`; use it as a context manager, under the rollout's lease."""

    def __init__(
        self,
        *,
        recipe: Recipe,
        run_id: str,
        training_set: Path | None,
        replicas: KubernetesReplicas,
        router: HttpRoute,
        control: Control,
        scoring_url: str,
        check: Callable[[Path], None] | None = None,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        """Nothing is asked of the cluster before the context is entered.

        Args:
            training_set: whose online store the features come from; None leaves the scoring service as it is.
            scoring_url: where callers in the cluster reach the scoring service.
            check: refuses a model directory before a server is started on it, for example by its signature.
        """
        self._recipe, self._run_id, self._training_set = recipe, run_id, training_set
        self._replicas, self.router, self._control, self.url = replicas, router, control, scoring_url
        self._check, self._quiet = check, quiet_seconds
        self._exit = ExitStack()
        self._changing = threading.RLock()  # the way back may be asked for from another thread
        self._held = HeldState(control)
        self._decided = 0  # number of the last decision before this controller
        self._arms: dict[str, ClusterArm] = {}
        self._launched: dict[str, ClusterArm] = {}
        self._lives: dict[str, tuple[float, bool]] = {}

    def __enter__(self) -> Self:
        """Give the scoring service this run's settings, and take over what is served.

        UserError where the namespace serves another model, TransientError where something there does not answer.
        """
        with ExitStack() as closing:
            closing.callback(self._control.close)
            closing.callback(self.router.close)
            if self._training_set is not None:
                self._control.serve(self._recipe, self._run_id, self._training_set, self.router.url)
            self._held.read()
            self._decided = self._control.newest()["decisions"]
            self._arms = taken_over(self._state, self._recipe, self._replicas)
            mend_routes(self.router, self._arms)
            sweep(self._replicas, self._arms)
            self._exit = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close connections; replicas, route and scoring service go on serving."""
        self._exit.close()

    def launch(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> None:
        """Make a version's objects without waiting; `start` with the same arguments waits until it is ready.

        What the arm serves goes on; only a canary of another version ends first.

        Raises:
            IntegrityError: the files are not those that the digest names, or no score of the version was registered.
            UserError: no such arm. TransientError: the cluster's API does not take the objects.
        """
        if arm not in ARMS:
            raise UserError(f"arm {arm!r}: use {' or '.join(ARMS)}")
        if self.serves(arm, version, digest):
            return
        if self._check is not None:
            self._check(model_dir)
        if golden is None:
            raise IntegrityError(
                f"version {version}: no score of it was registered for these rows, and a cluster's replica is ready by "
                "that alone; evaluate it again"
            )
        if arm == CANARY:
            self.stop(CANARY)
        model, settings = self._recipe.model, self._recipe.serving
        spec = ReplicaSpec(arm, model.name, model.family, model_dir, version, digest, settings)
        if arm in self._arms and self._arms[arm].serves(version, digest):
            self._arms[arm].replica.stop(lambda: 0)  # it died: its objects are made anew, with today's golden request
        asked = Golden(golden.features, golden.text, golden.score, golden.tolerance)
        self._launched[arm] = ClusterArm.of(self._replicas.launch(spec, asked))

    def start(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> Served:
        """Wait until a version scored the golden request as registered, and route its arm to it.

        A version that runs behind this arm already is asked the golden request through the router, and stays. A stable
        of another version answers until the new one does, and ends then.

        Raises as `launch`, and TransientError: it was not ready in time, or scores otherwise than registered.
        """
        if self.serves(arm, version, digest):
            return self._proved_again(arm, golden)
        if arm not in self._launched or not self._launched[arm].serves(version, digest):
            self.launch(arm, model_dir, version, digest, golden)
        made = self._launched[arm]
        try:
            with engine_time("vllm in the cluster start-up"):
                made.replica.wait_ready()
        finally:
            self._launched.pop(arm, None)
        if arm == STABLE and self.alive(STABLE):
            self._route(CANARY, made.behind(CANARY))
            self.take_over()
        else:
            self._route(arm, made)
        return made.served

    def stop(self, arm: str) -> None:
        """Take the arm out of the draw, then out of the route, then end its replica, whose pods drain themselves.

        What failed half way goes on where it is called again.
        """
        if (launched := self._launched.pop(arm, None)) is not None:
            launched.replica.stop(lambda: 0)
        if (ended := self._arms.get(arm)) is None:
            return
        drawn = arm == STABLE and CANARY in self._state.arms and self._state.weight < 1.0
        with self._changing:
            if arm in self._state.arms:
                left = {name: about for name, about in self._state.arms.items() if name != arm}
                self._held.change(arms=left, **({"weight": 0.0, "shadow": False} if arm == CANARY else {}))
        time.sleep(self._patience if drawn else self._quiet)
        with self._changing:
            self.router.set_arm(arm, None)
        ended.replica.stop(lambda: self.router.active(arm))
        if self._arms.get(arm) is ended:
            del self._arms[arm]
        self._lives.pop(arm, None)

    def settle(self, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> None:
        """Make a version, the champion, the one that answers: as stable, with all traffic, and nothing beside it.

        Raises as `start`, where it does not run yet, and as `set_weight`.
        """
        if self.serves(CANARY, version, digest):
            self.take_over()
        else:
            self.start(STABLE, model_dir, version, digest, golden)
        self.stop(CANARY)

    def take_over(self) -> None:
        """Make the canary the stable arm with all traffic, and end the old stable; no request is lost.

        Draws go to the canary first, and what was drawn for stable is waited for; then stable's arm is the new version.
        """
        old, new = self._arms.get(STABLE), self._arms[CANARY]
        self.set_shadow(False)
        self.set_weight(100)
        time.sleep(self._patience)
        with self._changing:
            self.router.set_arm(STABLE, new.replica.backend)
            self._held.change(arms={STABLE: new.told(self._recipe)}, weight=0.0)
            self._arms = {STABLE: new.behind(STABLE)}
            self._lives.clear()
        time.sleep(self._quiet)
        self.router.set_arm(CANARY, None)
        if old is not None:
            old.replica.stop(lambda: 0)

    def serves(self, arm: str, version: str, digest: str) -> bool:
        """Whether the arm serves this version, and lives."""
        return arm in self._arms and self._arms[arm].serves(version, digest) and self.alive(arm)

    def version(self, arm: str) -> str:
        """The version behind an arm; "" where there is none."""
        return self._arms[arm].spec.version if arm in self._arms else ""

    def alive(self, arm: str) -> bool:
        """Whether its Deployment has a ready pod, or still starts, a second ago at most; TransientError as its API."""
        if arm not in self._arms:
            launched = self._launched.get(arm)
            return launched is not None and patiently(lambda: launched.replica.alive)
        at, found = self._lives.get(arm, (-LOOK_SECONDS, False))
        if time.monotonic() - at >= LOOK_SECONDS:
            replica = self._arms[arm].replica
            found = patiently(lambda: replica.alive)
            self._lives[arm] = (time.monotonic(), found)
        return found

    def set_weight(self, percent: int) -> None:
        """Share of decisions drawn for the canary, and of the requests without an arm at the gateway, in percent.

        In force and read back when this returns. On the way to 0 the draws are first: they need no API of the cluster.

        Raises:
            UserError: not a percentage, or no canary.
            ConflictError, PolicyRefusal: another controller changed the state, or another writer the route.
            TransientError: the scoring service or the gateway did not take it.
        """
        if not 0 <= percent <= 100:
            raise UserError(f"weight {percent}: a percentage between 0 and 100")
        if percent and CANARY not in self._state.arms:
            raise UserError(f"weight {percent}: no canary is being served; start one first")
        with self._changing:
            if not percent:
                self._held.change(weight=0.0)
                self.router.set_weights(ALL_ON_STABLE)
                return
            self.router.set_weights({STABLE: 100 - percent, CANARY: percent})
            self._held.change(weight=percent / 100)

    def set_shadow(self, on: bool) -> None:
        """Whether each decision that stable answers is also asked of the canary; in force when this returns."""
        with self._changing:
            self._held.change(shadow=on)

    def decide(
        self, rows: Sequence[Row], rate: float, stop: object = None, under_way: object = None
    ) -> Sequence[Decision]:
        """Send rows through the scoring service at `rate` a second, open loop; as `ServingStack.decide`."""
        await_answering(self.url)
        shadows = PodShadows(self._control) if self._state.shadow else None
        timeout = self._recipe.serving.request_timeout_seconds
        with engine_time("replay"):
            return replay(self.url, rows, rate, timeout, shadows, stop, under_way)

    def labels(self, after: int) -> Sequence[ArrivedLabel]:
        """Labels that callers gave after this number to decisions since this controller began."""
        return self._control.labels(after, self._decided)

    def score_arm(self, arm: str, rows: Sequence[Row]) -> list[float | None]:
        """Scores of one arm through the gateway for exact features, None where it failed."""
        if arm not in self._arms:
            raise UserError(f"arm {arm!r}: not being served; start it first")
        with engine_time("replay"):
            return score_rows(self._arms[arm], self.router.url, rows, self._recipe.serving.request_timeout_seconds)

    @property
    def _state(self) -> ServingState:
        return self._held.state

    @property
    def _patience(self) -> float:
        """Until what was drawn before is answered."""
        return self._quiet + self._recipe.serving.request_timeout_seconds

    def _proved_again(self, arm: str, golden: GoldenRow | None) -> Served:
        """A replica that was taken over: its own probe knew the golden request of its time, this is today's."""
        found = self._arms[arm]
        if golden is not None:
            found.prove(golden, self.router.url, self._recipe.serving.request_timeout_seconds)
        told = found.told(self._recipe)
        if self._state.arms.get(arm) != told:
            self._held.change(arms={**self._state.arms, arm: told})
        return found.served

    def _route(self, arm: str, made: ClusterArm) -> None:
        """The route first, then the draws; what died behind the arm before is removed."""
        with self._changing:
            before = self._arms.get(arm)
            self.router.set_arm(arm, made.replica.backend)
            self._held.change(arms={**self._state.arms, arm: made.told(self._recipe)})
            self._arms[arm] = made
            self._lives.pop(arm, None)
        if before is not None and before.name != made.name:
            before.replica.stop(lambda: 0)
