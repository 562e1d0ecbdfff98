"""Replicas as processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from components.core.errors import TransientError, UserError
from components.core.protocols import Served
from components.serving.adapters import AdapterReplica, Servers
from components.serving.engine import Engine
from components.serving.replica import Replica, ReplicaSpec
from components.serving.replicas.interface import Golden
from components.serving.replicas.probes.ready import problem


@dataclass(frozen=True)
class LocalReplicas:
    """Starts them with one engine; logs go to `logs`, appended to where a replica is started again.

    `servers` are those that adapters share, where the recipe serves versions so.
    """

    engine: Engine
    logs: Path
    servers: Servers = field(default_factory=dict)

    def launch(self, spec: ReplicaSpec, golden: Golden | None) -> LocalReplica:
        """Check the files and start the server; call it from a thread that lives as long as the replica.

        Args:
            golden: None where no score was registered: ready is then any finite score, and an adapter is refused.
        """
        log = self.logs / f"{self.engine.name}-{spec.arm}.log"
        if not spec.settings.adapter_base:
            return LocalReplica(Replica.launch(spec, self.engine, log), golden)
        if golden is None:
            raise UserError(f"model {spec.name} version {spec.version}: no registered score to try its adapter with")
        return LocalReplica(AdapterReplica.on(spec, self.engine, log, self.servers), golden)


@dataclass(frozen=True)
class LocalReplica:
    """One process."""

    replica: Replica
    golden: Golden | None

    @property
    def served(self) -> Served:
        """The record of this replica."""
        return self.replica.served

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self.replica.alive

    def wait_ready(self) -> Served:
        """Wait until it scores at all, then ask the golden request."""
        served = self.replica.wait_ready()
        if self.golden is None:
            return served
        if wrong := problem(self.golden.request(self.replica.renderer, served.served_name, served.url)):
            self.stop(lambda: 0)
            raise TransientError(f"{served.engine} for {served.served_name}: {wrong}; see {self.replica.log}")
        return served

    def stop(self, in_flight: Callable[[], int | None], quiet_seconds: float = 0.0) -> None:
        """Drain at the router, then end the process."""
        self.replica.stop(lambda: in_flight() or 0, quiet_seconds)
