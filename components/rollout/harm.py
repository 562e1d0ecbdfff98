"""The evidence of harm over a whole rollout: every metric and stage has its share of one budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.core.errors import IntegrityError
from components.rollout.comparisons import Comparison, ShadowTests, SplitTests
from components.rollout.evalues import weighted_mean
from components.rollout.labels import Labelled
from components.rollout.margins import BUDGET, SHADOW_SHARE, Margins, step_shares
from components.rollout.observations import Observation
from components.rollout.timing import Flags

LEAST_BAD_REQUESTS = 3  # fewer failures of the canary never abort by statistics


@dataclass
class _Begun:
    weight: int  # percent, 0 for the shadow
    share: float
    tests: Comparison


class Harm:
    """One process a stage, each going on to the end of the rollout; parts not begun count as 1.

    A process that began at 10 % goes on at 50 %: its evidence only grows where the canary is worse.
    """

    def __init__(self, margins: Margins, steps: int) -> None:
        """`steps`: how many steps of split traffic share the budget after the shadow."""
        self._margins, self._shares = margins, step_shares(steps)
        self._begun: list[_Begun] = []

    def begin(self, weight: int) -> int:
        """Begin a stage's process, unless it began before the controller was started anew; the step's number."""
        known = [one.weight for one in self._begun]
        if weight not in known:
            step = sum(other > 0 for other in known)
            share = self._shares[step] if weight else SHADOW_SHARE
            tests: Comparison = SplitTests(self._margins, "harm") if weight else ShadowTests(self._margins, "harm")
            self._begun.append(_Begun(weight, share, tests))
        return [one.weight for one in self._begun if one.weight or not weight].index(weight)

    def update(self, seen: Observation, slow: Mapping[str, Flags], shadow: bool) -> None:
        """Add one request to the processes of its kind."""
        for one in self._begun:
            if (one.weight == 0) == shadow:
                one.tests.update(seen, slow)

    def update_slow(self, seen: Observation, slow: Mapping[str, Flags]) -> None:
        """Add how slow a request on split traffic is, which has not ended."""
        for one in self._begun:
            if one.weight:
                one.tests.update_slow(seen, slow)

    def label(self, label: Labelled) -> None:
        """Add a label that arrived later, to the processes that its request belonged to."""
        for one in self._begun:
            if label.weight == 0:
                if one.weight == 0:
                    one.tests.label(label)
            elif 0 < one.weight <= label.weight * 100 + 1e-6:
                one.tests.label(label)

    def total(self) -> tuple[float, str]:
        """The evidence over all metrics and stages so far, and the metric that gives most ("" where nothing began)."""
        parts: dict[str, float] = {}
        weighted: list[tuple[float, float]] = []
        for one in self._begun:
            for name, test in one.tests.tests.items():
                value = test.value
                if one.tests.bad.get(name, LEAST_BAD_REQUESTS) < LEAST_BAD_REQUESTS:
                    value = min(value, 1.0)
                weight = BUDGET[name] * one.share
                weighted.append((weight, value))
                parts[name] = parts.get(name, 0.0) + weight * value
        return weighted_mean(weighted), max(parts, key=lambda name: parts[name]) if parts else ""

    def alone(self, name: str) -> float | None:
        """The largest e-value of one metric in any stage, before it is weighted; None where none watches it."""
        found = [one.tests.tests[name].value for one in self._begun if name in one.tests.tests]
        return max(found) if found else None

    def label_text(self, name: str) -> str:
        """What is known of labels on mirrored requests, for people."""
        shadows = [one.tests for one in self._begun if isinstance(one.tests, ShadowTests)]
        return shadows[0].labels.text(name) if shadows else f"{name.replace('_', ' ')} on split traffic"

    def memory(self) -> list[dict[str, Any]]:
        """The processes as plain JSON."""
        return [
            {
                "weight": one.weight,
                "bad": dict(one.tests.bad),
                "tests": {name: test.value for name, test in one.tests.tests.items()},
            }
            for one in self._begun
        ]

    def recall(self, memory: list[dict[str, Any]]) -> None:
        """Go on from processes as `memory` gave them; IntegrityError where they are not of such a rollout."""
        try:
            for one in memory:
                self.begin(int(one["weight"]))
                tests = self._begun[-1].tests
                tests.bad.update({name: int(one["bad"][name]) for name in tests.bad})
                for name, test in tests.tests.items():
                    test.carry(float(one["tests"][name]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise IntegrityError(f"rollout: the evidence that was kept cannot be read ({error}); abort it") from error
