"""Services that a step may need and that another room provides; wired in `pipelines.wiring`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Served:
    """One running replica: an OpenAI-compatible server at `url` that answers as `served_name`."""

    arm: str  # stable or canary
    url: str
    served_name: str
    version: str
    digest: str
    model_dir: Path
    engine: str  # "vllm 0.32.0" or "reference"
    pid: int


OPEN = "open"  # status of a request that has not ended


@dataclass(frozen=True)
class Decision:
    """One answer of the scoring service as the caller saw it; `http_status` 0 where no answer came.

    `seconds` is the caller's wall time, `model_version` the version that answered. Of one that is `open` only the draw
    ("" where it is not known yet), the weight and its age in `seconds` are known.
    """

    http_status: int
    status: str  # ok, fallback, refused, open
    label: str | None
    score: float | None
    model_version: str
    drawn: str  # stable or canary
    answered_by: str  # stable, canary, baseline, none
    weight: float  # probability of the canary draw, 0..1
    seconds: float
    decision_id: str = ""
    shadow_score: float | None = None  # the canary's score of a mirrored request
    shadow_ok: bool | None = None
    shadow_seconds: float | None = None
    # What the drawn arm failed with: connect, timeout, http_<status>, invalid, wrong_model, features, absent.
    failure: str = ""
    model_seconds: float | None = None  # time at the answering arm; comparable with shadow_seconds
    shadow_failure: str = ""  # what the canary failed with at a mirrored request

    @property
    def is_open(self) -> bool:
        """Whether the request is still under way."""
        return self.status == OPEN


@dataclass(frozen=True)
class ArrivedLabel:
    """What turned out to be true of a decision; `seq` grows with the order in which labels arrived.

    `score`: of the arm that was drawn, None where it did not answer. `shadow_score`: the canary's, where mirrored.
    """

    seq: int
    decision_id: str
    label: str
    drawn: str
    weight: float
    score: float | None
    shadow_score: float | None = None


@dataclass(frozen=True)
class GoldenRow:
    """A row whose score was registered with a version: exact features, text, score 0..1 and absolute tolerance."""

    features: Mapping[str, float | None]
    text: str
    score: float
    tolerance: float


class ServingStack(Protocol):
    """The local serving stack as the rollout drives it."""

    def launch(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> None:
        """Begin to start a replica without waiting; `start` with the same arguments then waits for it.

        Launching both arms before starting them saves most of the second one's start-up time.
        """
        ...

    def start(self, arm: str, model_dir: Path, version: str, digest: str, golden: GoldenRow | None = None) -> Served:
        """Start a replica and wait until it scored a request, and the golden one as registered where it is given.

        TransientError or UserError where it does not.
        """
        ...

    def stop(self, arm: str) -> None:
        """Drain and stop a replica."""
        ...

    def alive(self, arm: str) -> bool:
        """Whether the replica's process lives."""
        ...

    def set_weight(self, percent: int) -> None:
        """Share of decisions drawn for the canary, in percent; in force and read back when this returns."""
        ...

    def set_shadow(self, on: bool) -> None:
        """Whether each decision is also scored by the canary without being answered from it."""
        ...

    def decide(
        self, rows: Sequence[Mapping[str, object]], rate: float, stop: object = None, under_way: object = None
    ) -> Sequence[Decision]:
        """Send rows as decisions through the scoring service at `rate` a second, open loop.

        Args:
            stop: called several times a second with the decisions so far, in order of arrival, up to the first that is
                still under way; ends the run by returning true.
            under_way: called right after it with all that arrived after those, in the same order: decisions that have
                ended, and `open` ones with their draw and age; ends the run by returning true. Not called while
                requests are mirrored, and a stack that cannot tell never calls it.
        """
        ...

    def score_arm(self, arm: str, rows: Sequence[Mapping[str, object]]) -> list[float | None]:
        """Scores of one arm for these rows through the router, None where it failed."""
        ...

    def labels(self, after: int) -> Sequence[ArrivedLabel]:
        """Labels that callers gave to decisions of this run after the one with this number, in the order of arrival."""
        ...


class ServingFactory(Protocol):
    """Opens a serving stack for a run; leaving the context ends all of it."""

    def __call__(self) -> AbstractContextManager[ServingStack]:
        """Open."""
        ...
