"""The states of a rollout, and which may follow which.

golden → shadow → step N % ... → bake → full → done, with aborting → aborted from anywhere before done. A first version,
and one that takes its predecessor's place (`recreate`), go golden → slo → full. States that the recipe does not ask for
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

GOLDEN, SHADOW, BAKE, SLO, FULL, DONE = "golden", "shadow", "bake", "slo", "full", "done"
ABORTING, ABORTED = "aborting", "aborted"
ENDS = (DONE, ABORTED)
BAKE_WEIGHT = 95  # percent


def step(weight: int) -> str:
    """The state of a step."""
    return f"step {weight} %"


def compares(state: str) -> bool:
    """Whether evidence about two versions is gathered in it, which is lost where the controller ends there."""
    return state in (SHADOW, BAKE) or state.startswith("step ")


def may_follow(before: str, after: str, order: Sequence[str]) -> bool:
    """Whether a rollout in state `before` ("" at its beginning) may go to `after`.

    Args:
        order: the states that this rollout goes through, without the aborting ones.
    """
    if before in ENDS:
        return False
    if after == ABORTING:
        return True
    if after == ABORTED or before == ABORTING:
        return before == ABORTING and after in (ABORTING, ABORTED)
    if after not in order:
        return False
    return before in ("", after) or order.index(after) >= order.index(before) or after == order[0]
