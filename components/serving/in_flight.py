"""Which requests are being decided on, and for which arm they were drawn: what a hang shows before it ends.

Only requests that their caller named with the header `x-request-id` are told, by that name: no entity, no text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_NAME = 64


@dataclass(frozen=True)
class Open:
    """One request: its caller's name for it, the arm drawn, the weight then (0..1), and when it came."""

    request_id: str
    drawn: str
    weight: float
    since: float


class InFlight:
    """Requests by their decision's id, from the draw to the answer."""

    def __init__(self) -> None:
        self._open: dict[str, Open] = {}

    def enter(self, decision_id: str, request_id: str, drawn: str, weight: float, since: float) -> None:
        """It was drawn; one that its caller gave no name is not followed."""
        if request_id:
            self._open[decision_id] = Open(request_id, drawn, weight, since)

    def leave(self, decision_id: str) -> None:
        """It has ended."""
        self._open.pop(decision_id, None)

    def told(self) -> list[dict[str, Any]]:
        """What is open now, oldest first; `seconds` is the age."""
        now = time.perf_counter()
        return [
            {"request_id": one.request_id, "drawn": one.drawn, "weight": one.weight, "seconds": now - one.since}
            for one in self._open.values()
        ]


def name_of(headers: Mapping[str, str]) -> str:
    """The caller's name for its request, "" where it gave none or one that is no plain word."""
    given = headers.get("x-request-id", "")
    return given if len(given) <= LONGEST_NAME and given.isascii() and given.replace("-", "").isalnum() else ""
