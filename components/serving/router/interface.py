"""What a router is: arms by header, weights for callers that name no arm, nothing but the listed paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from components.core.errors import UserError
from components.serving.control import ARMS, CANARY, STABLE
from components.serving.scoring import ARM_HEADER, COMPLETIONS

MODELS = "/v1/models"
CHAT_COMPLETIONS = "/v1/chat/completions"
# All that a caller may ask of a model server; vLLM has much more that no key protects.
ALLOWED = ((COMPLETIONS, "POST"), (CHAT_COMPLETIONS, "POST"), (MODELS, "GET"))
ALL_ON_STABLE: Mapping[str, int] = {STABLE: 100, CANARY: 0}


@dataclass(frozen=True)
class Backend:
    """Where an arm's replica answers: an address and port, or a Service's name and port in a cluster."""

    host: str
    port: int


@dataclass(frozen=True)
class RouterHealth:
    """Whether the router serves what was last set; `reason` says why not, or who says so."""

    ok: bool
    reason: str


class Router(Protocol):
    """Arms by header `x-pilotline-arm`, weights for requests without it.

    Every change is in force, as far as the engine tells, and read back when its call returns. A change that another
    writer made since ours is refused and named; only the way back (`ALL_ON_STABLE`, or taking the canary away)
    overrules it.
    """

    @property
    def url(self) -> str:
        """Where callers reach it."""
        ...

    def set_arm(self, arm: str, backend: Backend | None) -> None:
        """Point an arm at a replica, or at nothing; a canary taken away gives its weight back to stable.

        Raises:
            UserError: no such arm.
            PolicyRefusal: another writer changed the routes.
            TransientError: it is not in force.
        """
        ...

    def arms(self) -> dict[str, Backend | None]:
        """Where each arm points, as the engine says."""
        ...

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Percent of the requests without an arm header, for each arm.

        Raises:
            UserError: not whole percentages of the arms that add up to 100, or a weight for a canary that is not there.
            PolicyRefusal, TransientError: as `set_arm`.
        """
        ...

    def weights(self) -> dict[str, int]:
        """The weights in force, as the engine says; percent."""
        ...

    def active(self, arm: str) -> int | None:
        """Requests of an arm that are in flight; None where the engine does not tell."""
        ...

    def health(self) -> RouterHealth:
        """Whether it serves what was last set; never raises."""
        ...

    def close(self) -> None:
        """Give back what this process holds; may be called twice."""
        ...


def checked_arm(arm: str) -> str:
    """The arm; UserError where there is no such arm."""
    if arm not in ARMS:
        raise UserError(f"arm {arm!r}: use {' or '.join(ARMS)}")
    return arm


def checked_weights(weights: Mapping[str, int], canary: Backend | None) -> dict[str, int]:
    """The weights of both arms; UserError as `Router.set_weights`."""
    given = {checked_arm(arm): weight for arm, weight in weights.items()}
    both = dict.fromkeys(ARMS, 0) | given
    if not all(type(weight) is int and 0 <= weight <= 100 for weight in both.values()) or sum(both.values()) != 100:
        raise UserError(f"weights {given}: whole percentages that add up to 100")
    if both[CANARY] and canary is None:
        raise UserError(f"weight {both[CANARY]}: no canary is behind the router; start one first")
    return both


__all__ = [
    "ALLOWED",
    "ALL_ON_STABLE",
    "ARM_HEADER",
    "Backend",
    "Router",
    "RouterHealth",
    "checked_arm",
    "checked_weights",
]
