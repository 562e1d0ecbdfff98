"""Pairs of a decision and the canary's answer to the same request, which reaches the log later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.core.protocols import Decision
from components.serving.control import STABLE
from components.serving.decision_log import newest_shadow, shadows_after


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
        return replace(decision, shadow_ok=ok, shadow_score=score, shadow_seconds=seconds)


def pending(decision: Decision) -> bool:
    """Whether a mirrored request belongs to it and is still under way."""
    return decision.status == "ok" and decision.drawn == STABLE and decision.shadow_ok is None
