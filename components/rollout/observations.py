"""From decisions, as the scoring service answered them, to observations that the tests can count."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from components.core.protocols import Decision

INVALID, WRONG_MODEL = "invalid", "wrong_model"  # how a drawn arm may fail, by the scoring service's words


@dataclass(frozen=True)
class ArmOutcome:
    """One arm's side of one request.

    `failed`: the arm that was drawn gave no answer of its own in time, whoever answered in its place. `invalid`: it
    answered, but not with a probability. `score` is None unless neither holds. `seconds` is infinite where no time is
    known.
    """

    failed: bool
    invalid: bool
    seconds: float
    score: float | None


@dataclass(frozen=True)
class Observation:
    """One request: the arm drawn ("" where the caller never learnt it), what that arm did, and what the user got.

    `mirrored`: what the canary did with the same request in shadow, None where it was not mirrored.
    `model_seconds`: time at the answering arm alone, which a mirrored twin's time compares with.
    `surprise`: a version other than the one that the answering arm is to serve, as "canary answered as '7', not '2'".
    `user_failed`: the caller got no usable answer. `expected`: the score that evaluation gave to the row.
    `outcome`: the row's known label. `unit`: who the draw was made for, where draws are sticky. `open`: the request has
    not ended; own.seconds is its age so far, and nothing else of `own` is known.
    """

    drawn_arm: str
    weight: float
    own: ArmOutcome
    mirrored: ArmOutcome | None
    user_failed: bool
    model_seconds: float = math.inf
    surprise: str = ""
    expected: float | None = None
    outcome: int | None = None
    unit: str = ""
    open: bool = False

    @property
    def canary(self) -> bool:
        """Whether the request was drawn for the canary."""
        return self.drawn_arm == "canary"


def valid_score(score: float | None) -> bool:
    """A finite probability; None, NaN, infinity, text and numbers outside [0, 1] are not."""
    return isinstance(score, (int, float)) and math.isfinite(score) and 0.0 <= score <= 1.0


def observe(
    decision: Decision,
    versions: Mapping[str, str],
    labels: Collection[str],
    expected: float | None = None,
    outcome: int | None = None,
    unit: str = "",
) -> Observation:
    """Read one decision.

    Args:
        decision: as the caller saw it.
        versions: arm → version that the arm is to serve.
        labels: the closed set of labels.
        expected: score of the row in the evaluation, known before the draw.
        outcome: the row's label, 0 or 1.
        unit: what a sticky draw was made of (the entity), in any form that is the same each time.
    """
    if decision.is_open:
        own = ArmOutcome(failed=False, invalid=False, seconds=_seconds(decision.seconds), score=None)
        return Observation(_arm(decision), decision.weight, own, None, user_failed=False, unit=unit, open=True)
    answered = 200 <= decision.http_status < 300 and decision.status != "refused"
    answers = answered and decision.answered_by == decision.drawn
    usable = answers and valid_score(decision.score) and decision.label in labels
    invalid = not usable and (answers or decision.failure == INVALID)
    return Observation(
        drawn_arm=_arm(decision),
        weight=decision.weight,
        own=ArmOutcome(
            not usable and not invalid, invalid, _seconds(decision.seconds), decision.score if usable else None
        ),
        model_seconds=_seconds(decision.model_seconds if decision.model_seconds is not None else decision.seconds),
        mirrored=_mirrored(decision),
        user_failed=not answered or decision.label not in labels,
        surprise=_surprise(decision, versions, answered),
        expected=expected if valid_score(expected) else None,
        outcome=outcome,
        unit=unit,
    )


def _surprise(decision: Decision, versions: Mapping[str, str], answered: bool) -> str:
    """Who answered as whom, where it is not the version or model that its arm is to serve."""
    expects = versions.get(decision.answered_by)
    if decision.failure == WRONG_MODEL and _arm(decision):
        return f"{decision.drawn} answered as another model"
    if decision.shadow_failure == WRONG_MODEL:
        return "canary answered a mirrored request as another model"
    if answered and expects is not None and decision.model_version != expects:
        return f"{decision.answered_by} answered as {decision.model_version!r}, not {expects!r}"
    return ""


def _arm(decision: Decision) -> str:
    return decision.drawn if decision.drawn in ("stable", "canary") else ""


def _mirrored(decision: Decision) -> ArmOutcome | None:
    if decision.shadow_ok is None:
        return None
    valid = decision.shadow_ok and valid_score(decision.shadow_score)
    invalid = decision.shadow_failure == INVALID or (decision.shadow_ok and not valid)
    return ArmOutcome(
        failed=not decision.shadow_ok and not invalid,
        invalid=invalid,
        seconds=_seconds(decision.shadow_seconds),
        score=decision.shadow_score if valid else None,
    )


def _seconds(seconds: float | None) -> float:
    return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else math.inf
