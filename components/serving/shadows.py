"""Replayed traffic, and the pairs of a decision and the canary's answer to the same request, which is logged later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from components.core.processes import wait_until
from components.core.protocols import Decision
from components.serving.control import STABLE
from components.serving.decision_log import newest_shadow, shadows_after
from components.serving.load import Drive, Row

LONGER_SECONDS = 1.0  # than the service's own deadline, before its answer is given up


class Pairs(Protocol):
    """Where the canary's answers to mirrored requests are found."""

    def join(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions with what is known of their shadows by now."""
        ...

    def join_prefix(self, decisions: Sequence[Decision]) -> list[Decision]:
        """As `join`, up to the first decision whose shadow is still under way."""
        ...


def replay(
    url: str,
    rows: Sequence[Row],
    rate: float,
    timeout_seconds: float,
    shadows: Pairs | None = None,
    stop: object = None,
    under_way: object = None,
) -> list[Decision]:
    """Send rows as `Drive` does; decisions in order of arrival, with their shadows where requests are mirrored.

    Args:
        timeout_seconds: the service's deadline; mirrored requests still under way are waited for that long at the end.
        shadows: where the canary's answers are found, None where nothing is mirrored.
        stop: sees the decisions, and their shadows, up to the first that is not known; ends the run by returning true.
        under_way: as `Drive`; not asked while requests are mirrored.
    """
    stopping = stop if callable(stop) else None
    looking = under_way if callable(under_way) and shadows is None else None
    wait = timeout_seconds + LONGER_SECONDS
    if shadows is None:
        return Drive(url, rows, rate, wait, stopping, looking).run()
    paired = (lambda seen: stopping(shadows.join_prefix(seen))) if stopping else None
    decisions = Drive(url, rows, rate, wait, paired).run()
    wait_until(lambda: not any(map(pending, shadows.join(decisions))), wait + LONGER_SECONDS, every=0.05)
    return shadows.join(decisions)


class Shadows:
    """Joins decisions with the canary's answers to them, which reach the log later."""

    def __init__(self, path: Path) -> None:
        self._path, self._last, self._found = path, newest_shadow(path), dict[str, Mapping[str, Any]]()

    def join(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions with what is known of their shadows by now."""
        for found in shadows_after(self._path, self._last):
            self._found[found["decision_id"]] = found
            self._last = found["seq"]
        return [self._joined(decision) for decision in decisions]

    def join_prefix(self, decisions: Sequence[Decision]) -> list[Decision]:
        """As `join`, up to the first decision whose shadow is still under way."""
        joined = self.join(decisions)
        return joined[: next((i for i, decision in enumerate(joined) if pending(decision)), len(joined))]

    def _joined(self, decision: Decision) -> Decision:
        if (found := self._found.get(decision.decision_id)) is None:
            return decision
        ok, score, seconds = bool(found["ok"]), found["score"], found["seconds"]
        failure = str(found["failure"])
        return replace(decision, shadow_ok=ok, shadow_score=score, shadow_seconds=seconds, shadow_failure=failure)


def pending(decision: Decision) -> bool:
    """Whether a mirrored request belongs to it and is still under way."""
    return decision.status == "ok" and decision.drawn == STABLE and decision.shadow_ok is None
