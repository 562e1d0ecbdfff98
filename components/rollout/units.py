"""Sticky draws: the entity is the unit of the statistics, not the request."""

from __future__ import annotations

import hashlib

from components.rollout.observations import Observation


class Units:
    """Which requests open a draw that nobody knew before, and with what probability it goes to the canary.

    A sticky draw is one number a unit, uniform in [0, 1), and the unit has the canary while its number lies below the
    weight. A unit's first request in a stage tells where the number lies and counts; its later ones repeat the draw and
    do not. A unit that had stable at weight v has a number of at least v, so at weight w it goes to the canary with
    probability (w - v) / (1 - v); one that had the canary has it again and tells nothing new.
    """

    def __init__(self, known: dict[str, float] | None = None) -> None:
        """`known`: of an earlier `below`, where the same draws go on."""
        self.below = dict(known or {})  # unit (a digest) → weight at which it had stable; 1 where it had the canary

    def chance(self, seen: Observation) -> float | None:
        """The probability with which this request was drawn for the canary; None where the draw was known before."""
        unit = hashlib.sha256(seen.unit.encode()).hexdigest()[:16]
        known = self.below.get(unit, 0.0)
        if not seen.unit or known >= seen.weight:
            return None
        self.below[unit] = 1.0 if seen.canary else seen.weight
        return (seen.weight - known) / (1 - known)
