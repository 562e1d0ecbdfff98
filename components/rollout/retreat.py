"""The way back, from any state: all traffic to a stable that lives, then the canary ends."""

from __future__ import annotations

from collections.abc import Callable

from components.core.errors import one_line
from components.core.protocols import ServingStack
from components.rollout.traffic import Traffic

TRIES = 3


def retreat(stack: ServingStack, traffic: Traffic, restore_stable: Callable[[], None], why: str) -> str:
    """Set the canary's weight to 0, stop mirroring and end the canary, each also where another of them fails.

    Stable is looked at first, and started again where it died, so that traffic is not sent to nobody. Where the weight
    cannot be set the canary is ended all the same: the scoring service answers its draws from stable.

    Returns:
        What could not be done, in one line; empty where the state is safe.
    """
    problems = [
        _tried("stable could not be started", restore_stable),
        _tried("the weight could not be set to 0", lambda: _to_stable(stack, traffic)),
        _tried("mirroring could not be stopped", lambda: stack.set_shadow(False)),
        _tried("the canary could not be stopped", lambda: stack.stop("canary")),
    ]
    left = "; ".join(problem for problem in problems if problem)
    traffic.note("retreat", f"{left or 'all traffic on stable, canary stopped'} ({why})")
    return left


def _to_stable(stack: ServingStack, traffic: Traffic) -> None:
    stack.set_weight(0)
    traffic.weight = 0


def _tried(problem: str, action: Callable[[], None]) -> str:
    """Try a few times; what failed at last in words, or nothing. Only errors are caught, not a second interrupt."""
    for attempt in range(1, TRIES + 1):
        try:
            action()
            return ""
        except Exception as error:  # whatever the stack raises, the other ways back are still tried
            if attempt == TRIES:
                return f"{problem} ({one_line(error)})"
    return problem
