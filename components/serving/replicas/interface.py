"""What a replica is: one model version, verified, running, and ready once it scored a golden request as registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from components.core.errors import IntegrityError
from components.core.protocols import Served
from components.models.spec import Renderer
from components.serving.replica import ReplicaSpec
from components.serving.scoring import scoring_request


@dataclass(frozen=True)
class Golden:
    """A row whose score was registered with the version: exact features, text, score 0..1 and absolute tolerance."""

    features: Mapping[str, float | None]
    text: str
    score: float
    tolerance: float

    def request(self, renderer: Renderer, served_name: str, url: str) -> dict[str, Any]:
        """What `probes.ready` needs: where to ask, what to ask, and how the answer becomes a score.

        Raises:
            IntegrityError: no score between 0 and 1, or no tolerance: with those nothing could be shown.
        """
        if not (0.0 <= self.score <= 1.0 and 0.0 < self.tolerance < 0.5):
            raise IntegrityError(f"golden request: score {self.score}, tolerance {self.tolerance}; evaluate it again")
        ids = renderer.token_ids(self.features, self.text)
        calibration = renderer.signature["calibration"]
        return {
            "url": url,
            "body": scoring_request(served_name, ids, renderer.label_token_ids),
            "slope": float(calibration["slope"]),
            "intercept": float(calibration["intercept"]),
            "score": self.score,
            "tolerance": self.tolerance,
        }


class RunningReplica(Protocol):
    """A replica that was launched."""

    @property
    def served(self) -> Served:
        """The record of this replica; its served name belongs to this version alone."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it still runs; TransientError where that cannot be known."""
        ...

    def wait_ready(self) -> Served:
        """Wait until it scored the golden request as registered.

        Raises:
            IntegrityError: the files that it was to load are not those that the digest names.
            TransientError: it ended, was not ready in time, or scores otherwise; nothing of it is left running.
        """
        ...

    def stop(self, in_flight: Callable[[], int | None]) -> None:
        """Drain it, then end it; may be called again. `in_flight` is what the router knows, None for nothing."""
        ...


class Replicas(Protocol):
    """Starts replicas."""

    def launch(self, spec: ReplicaSpec, golden: Golden) -> RunningReplica:
        """Begin to start one without waiting; launching a version again takes over what runs already, where it can.

        Raises:
            IntegrityError: the files are not those that the digest names; nothing was started.
            UserError: this model cannot be served here.
        """
        ...
