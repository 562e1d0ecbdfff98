"""The serving stack of one machine: replicas behind Envoy, the scoring service before it, all ended on leaving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from components.core.engine_time import engine_time
from components.core.errors import TransientError, UserError
from components.core.home import Home
from components.core.processes import free_port
from components.core.protocols import ArrivedLabel, Decision, GoldenRow, Served
from components.core.recipe import Recipe
from components.serving.adapters import Servers
from components.serving.control import ARMS, CANARY, STABLE, ArmState
from components.serving.decision_log import DECISION_LOG, labels_after
from components.serving.engines import Choice, choose
from components.serving.golden import score_rows
from components.serving.replica import ReplicaSpec
from components.serving.replicas.interface import Golden
from components.serving.replicas.local import LocalReplica, LocalReplicas
from components.serving.router.envoy import Envoy
from components.serving.router.envoy_config import Limits
from components.serving.router.interface import ALL_ON_STABLE, Backend
from components.serving.scoring_process import ScoringProcess
from components.serving.shadows import Shadows, replay

QUIET_SECONDS = 0.5  # without a request at the router, before a replica is ended

Row = Mapping[str, object]


class LocalStack:
    """Implements `core.protocols.ServingStack`; use it as a context manager.

    Attributes:
        choice: the engine and why it is this one.
        router: Envoy.
        url: where the scoring service answers.
        decision_log: the SQLite file of all decisions.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        home: Home,
        run_id: str,
        training_set: Path,
        engine: str = "auto",
        port: int | None = None,
        service_module: str = "pipelines.scoring_server",
        choice: Choice | None = None,
        check: Callable[[Path], None] | None = None,
        place: Path | None = None,
    ) -> None:
        """Nothing starts before the context is entered.

        Args:
            engine: auto, vllm or reference; `choice` overrides it with an engine object.
            training_set: published folder whose online store the features come from.
            port: of the scoring service; a free one if absent.
            service_module: the module run as the scoring service's process.
            check: refuses a model directory before a server is started on it, for example by its signature.
            place: folder for state and logs; the run's where absent.
        """
        self.choice = choice or choose(engine)
        self._recipe, self._run_id, self._check = recipe, run_id, check
        self._training_set = training_set
        self._place = place or home.run(run_id)
        folder = self._place / "serving"
        self.decision_log = home.root / DECISION_LOG
        limits = Limits(stream_seconds=recipe.serving.stream_seconds)
        self.router = Envoy(folder / "envoy", self._log("envoy"), recipe.serving.request_timeout_seconds, limits=limits)
        self.service = ScoringProcess(service_module, port or free_port(), folder, self._log("scoring-service"))
        self._replicas: dict[str, LocalReplica] = {}
        self._servers: Servers = {}  # that adapters share
        self._exit = ExitStack()

    @property
    def url(self) -> str:
        """Base URL of the scoring service."""
        return self.service.url

    @property
    def router_url(self) -> str:
        """Base URL of Envoy."""
        return self.router.url

    def __enter__(self) -> Self:
        """Start Envoy and the scoring service; the service is waited for when it is first needed.

        Raises:
            UserError: Envoy or a port is not to be had.
        """
        with ExitStack() as stack:
            stack.callback(self.service.end)
            stack.callback(self.router.close)
            self.router.start()
            self._start_service()
            self._exit = stack.pop_all()
        return self

    def _start_service(self) -> None:
        self.service.start(
            run_id=self._run_id,
            router_url=self.router.url,
            log_path=self.decision_log,
            training_set=self._training_set,
            recipe=self._recipe,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End everything: the service first, so that its answers and records are finished, then replicas and Envoy."""
        with self._exit as stack:
            for replica in self._replicas.values():
                stack.callback(replica.stop, lambda: 0)
            stack.callback(self.service.end)
        self._replicas.clear()

    def launch(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> None:
        """Begin to start a replica without waiting; `start` with the same arguments waits for it.

        Raises:
            IntegrityError, UserError: as `start`.
        """
        if arm not in ARMS:
            raise UserError(f"arm {arm!r}: use {' or '.join(ARMS)}")
        if self._check is not None:
            self._check(model_dir)
        if arm in self._replicas:
            self.stop(arm)
        spec = ReplicaSpec(
            arm, self._recipe.model.name, self._recipe.model.family, model_dir, version, digest, self._recipe.serving
        )
        replicas = LocalReplicas(self.choice.engine, self._place / "logs", self._servers)
        self._replicas[arm] = replicas.launch(spec, _golden(golden))

    def start(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> Served:
        """Start a replica, wait until it scored a request (the golden one as registered), and route its arm to it.

        Raises:
            IntegrityError: the files are not those that the digest names.
            UserError: the engine cannot serve this model.
            TransientError: the server ended, was not ready in time, or scores the golden request otherwise than
                registered; nothing of it is left running.
        """
        replica = self._replicas.get(arm)
        asked = (model_dir, version, digest, _golden(golden))
        if replica is None or _died(replica) or (*_identity(replica), replica.golden) != asked:
            self.launch(arm, model_dir, version, digest, golden)
            replica = self._replicas[arm]
        try:
            with engine_time(f"{self.choice.engine.name} start-up"):
                served = replica.wait_ready()
        except BaseException:
            if self._replicas.get(arm) is replica:
                del self._replicas[arm]
            replica.stop(lambda: 0)
            raise
        with self.service.changing:
            self.router.set_arm(arm, Backend("127.0.0.1", replica.replica.port))
            self.service.change(arms={**self.service.state.arms, arm: self._about(served)})
        return served

    def stop(self, arm: str) -> None:
        """Take the arm out of the draw, wait for its requests in flight, then end its server."""
        if arm not in self._replicas:
            return
        with self.service.changing:
            if routed := arm in self.service.state.arms:
                if arm == CANARY:
                    self.router.set_weights(ALL_ON_STABLE)
                    self.service.change(weight=0.0, shadow=False)
                self.service.change(
                    arms={name: about for name, about in self.service.state.arms.items() if name != arm}
                )
        if (replica := self._replicas.pop(arm, None)) is not None:
            replica.stop(lambda: self.router.active(arm), QUIET_SECONDS if routed else 0.0)
            self.router.set_arm(arm, None)

    def health(self) -> dict[str, Any]:
        """The state in force at the scoring service; empty where it does not answer."""
        return self.service.health()

    def take_over(self) -> LocalReplica:
        """Make the canary the stable arm with all traffic; returns the old stable replica, idle and still up.

        No request is lost: draws go to the canary first, the old stable is drained at the router, then its arm points
        to the new version and draws go to it by that arm.

        Raises:
            UserError: there is no stable and canary to change.
            TransientError: the change is not in force; draws still go to the canary.
        """
        stable, canary = self._replica(STABLE), self._replica(CANARY)
        self.set_shadow(False)
        self.set_weight(100)
        stable.replica.drain(lambda: self.router.active(STABLE), QUIET_SECONDS)
        with self.service.changing:
            self.router.set_arm(STABLE, Backend("127.0.0.1", canary.replica.port))
            self.service.change(arms={STABLE: self._about(canary.served)}, weight=0.0)
            self._replicas = {STABLE: canary}
        canary.replica.spec = replace(canary.replica.spec, arm=STABLE)
        canary.replica.drain(lambda: self.router.active(CANARY), QUIET_SECONDS)
        self.router.set_arm(CANARY, None)
        return stable

    def bring_back(self, replica: LocalReplica) -> Served:
        """Put a replica that `take_over` gave back behind the canary's arm again, as it is, without a start.

        Raises:
            TransientError: it does not live any more.
        """
        if not replica.alive:
            raise TransientError(f"{replica.served.served_name} does not live any more; start it")
        replica.replica.spec = replace(replica.replica.spec, arm=CANARY)
        with self.service.changing:
            self._replicas[CANARY] = replica
            self.router.set_arm(CANARY, Backend("127.0.0.1", replica.replica.port))
            self.service.change(arms={**self.service.state.arms, CANARY: self._about(replica.served)})
        return replica.served

    def problem(self) -> str:
        """What of the stack's own processes does not run; "" where both do. Replicas: see `alive`."""
        if not self.router.alive:
            return "Envoy died"
        return "" if self.service.alive else "the scoring service died"

    def mend(self) -> None:
        """Start again what of the stack's own processes died; replicas, arms and the weight stay as they were.

        Raises:
            UserError, TransientError: it does not come up.
        """
        if not self.router.alive:
            self.router.start()
            for arm, replica in self._replicas.items():
                if arm in self.service.state.arms:
                    self.router.set_arm(arm, Backend("127.0.0.1", replica.replica.port))
        if not self.service.alive:
            self._start_service()
            self.service.wait()

    def served(self, arm: str) -> Served:
        """The record of an arm's replica; UserError where there is none."""
        return self._replica(arm).served

    def alive(self, arm: str) -> bool:
        """Whether the replica's process lives."""
        return arm in self._replicas and self._replicas[arm].alive

    def set_weight(self, percent: int) -> None:
        """Share of decisions drawn for the canary, in percent; in force and read back when this returns.

        Raises:
            UserError: not a percentage, or no canary to send traffic to.
            TransientError: the service or Envoy did not take it.
        """
        if not 0 <= percent <= 100:
            raise UserError(f"weight {percent}: a percentage between 0 and 100")
        if percent and CANARY not in self.service.state.arms:
            raise UserError(f"weight {percent}: no canary is being served; start one first")
        with self.service.changing:
            self.router.set_weights({STABLE: 100 - percent, CANARY: percent})
            self.service.change(weight=percent / 100)

    def set_shadow(self, on: bool) -> None:
        """Whether each decision that stable answers is also asked of the canary; in force when this returns."""
        self.service.change(shadow=on)

    def decide(
        self, rows: Sequence[Row], rate: float, stop: object = None, under_way: object = None
    ) -> Sequence[Decision]:
        """Send rows through the scoring service at `rate` a second, open loop; decisions in order of arrival.

        Args:
            rows: mappings with "entities" (join key → text), "text" and, where there is more, "request".
            stop: sees the decisions so far, in order of arrival, and ends the run by returning true.
            under_way: sees what arrived after those, ended or open; see `core.protocols.ServingStack`.
        """
        self.service.wait()
        timeout = self._recipe.serving.request_timeout_seconds
        shadows = Shadows(self.decision_log) if self.service.state.shadow else None
        with engine_time("replay"):
            return replay(self.url, rows, rate, timeout, shadows, stop, under_way)

    def labels(self, after: int) -> Sequence[ArrivedLabel]:
        """Labels that callers gave to this run's decisions after the one with this number, in the order of arrival."""
        return labels_after(self.decision_log, self._run_id, after)

    def score_arm(self, arm: str, rows: Sequence[Row]) -> list[float | None]:
        """Scores of one arm through the router, None where it failed.

        Args:
            rows: mappings with the exact "features" (name → value) to render, and "text".
        """
        timeout = self._recipe.serving.request_timeout_seconds
        with engine_time("replay"):
            return score_rows(self._replica(arm).replica, self.router_url, rows, timeout)

    def _about(self, served: Served) -> ArmState:
        return ArmState(
            name=self._recipe.model.name,
            version=served.version,
            digest=served.digest,
            model_dir=str(served.model_dir.absolute()),
            family=self._recipe.model.family,
            served_name=served.served_name,
            threshold=self._recipe.serving.threshold,
        )

    def _replica(self, arm: str) -> LocalReplica:
        if arm not in self._replicas:
            raise UserError(f"arm {arm!r}: not being served; start it first")
        return self._replicas[arm]

    def _log(self, name: str) -> Path:
        return self._place / "logs" / f"{name}.log"


def _golden(row: GoldenRow | None) -> Golden | None:
    return None if row is None else Golden(row.features, row.text, row.score, row.tolerance)


def _identity(replica: LocalReplica) -> tuple[Path, str, str]:
    spec = replica.replica.spec
    return spec.model_dir, spec.version, spec.digest


def _died(replica: LocalReplica) -> bool:
    """Whether it was ready once and lives no more; one that dies before says so when it is waited for."""
    return replica.replica.seconds_to_ready is not None and not replica.alive
