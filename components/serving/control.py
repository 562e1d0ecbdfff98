"""The state that the scoring service serves by: arms, weight and shadow, in one small file replaced by rename."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from components.core.errors import IntegrityError
from components.core.publish import write_atomic

STABLE, CANARY = "stable", "canary"
ARMS = (STABLE, CANARY)


@dataclass(frozen=True)
class ArmState:
    """What one arm serves; `threshold` turns its score into a label."""

    name: str
    version: str
    digest: str
    model_dir: str
    family: str
    served_name: str
    threshold: float


@dataclass(frozen=True)
class ServingState:
    """`weight` is the probability (0..1) of a canary draw; `generation` grows by one a change."""

    generation: int = 0
    weight: float = 0.0
    shadow: bool = False
    arms: Mapping[str, ArmState] = field(default_factory=dict)

    @property
    def drawn_weight(self) -> float:
        """The probability in force: 0 without a canary, 1 without a stable."""
        if CANARY not in self.arms:
            return 0.0
        return self.weight if STABLE in self.arms else 1.0


def write_state(path: Path, state: ServingState) -> None:
    """Replace the file; a reader sees the old or the new state."""
    write_atomic(path, json.dumps(asdict(state), sort_keys=True))


def read_state(path: Path) -> ServingState:
    """Read and check the file.

    Raises:
        IntegrityError: absent, not JSON, unknown arm, or a weight outside 0..1.
    """
    try:
        values = json.loads(path.read_text())
        arms = {arm: ArmState(**about) for arm, about in values.pop("arms").items()}
        state = ServingState(**values, arms=arms)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise IntegrityError(f"{path}: not a serving state ({error}); start the serving stack again") from error
    if not set(state.arms) <= set(ARMS) or not 0.0 <= state.weight <= 1.0:
        raise IntegrityError(f"{path}: arms {sorted(state.arms)} or weight {state.weight} out of range")
    return state
