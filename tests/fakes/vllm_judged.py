"""What came of a rollout for its users, judged by the decision log and the registered scores."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest

from components.core.processes import wait_until
from components.core.records import RolloutReport
from components.serving.decision_log import read_decisions
from components.serving.stack import LocalStack
from tests.fakes.vllm_pair import SAME, Pair

LATE = {"timeout", "http_503"}  # a machine that is busy with something else, or a router that took the arm out


def logged(stack: LocalStack, since: float, count: int) -> list[dict[str, Any]]:
    """Decisions drawn since then (Unix time), once as many are there: the log is written behind the answer.

    In the order of their answers, without those that were handed on.
    """
    found: list[dict[str, Any]] = []

    def there() -> bool:
        every = read_decisions(stack.decision_log) if stack.decision_log.exists() else []
        found[:] = [row for row in every if drawn_at(row) >= since - 0.001 and not row["kind"]]
        return len(found) >= count

    wait_until(there, 10.0, every=0.1)
    return found


def drawn_at(row: dict[str, Any]) -> float:
    """Unix time of a decision: its id begins with the milliseconds."""
    return int(row["id"][:12], 16) / 1000


@dataclass(frozen=True)
class Ended:
    """A rollout's report and the decisions that were made in it."""

    report: RolloutReport
    log: list[dict[str, Any]]

    @property
    def fell(self) -> list[dict[str, Any]]:
        """Decisions that another arm than the drawn one made."""
        return [row for row in self.log if row["status"] == "fallback"]

    @property
    def seconds_to_abort(self) -> float:
        """From the first draw that went wrong (the first of the canary, where none failed) to the last that could."""
        possible = [drawn_at(row) for row in self.log if row["weight"]]
        wrong = [drawn_at(row) for row in self.log if row["failure"]] or possible
        return max(possible) - min(wrong) if possible else 0.0

    def aborted_by(self, rules: Collection[str]) -> None:
        """Rolled back by one rule, which is of these and stands in the reason."""
        assert self.report.outcome == "rolled_back", self.report.reason
        (rule,) = {rule.rule for rule in self.report.rules if rule.outcome == "fail"} - {"harm"}
        assert rule in rules, self.report.reason
        assert rule in self.report.reason

    def unharmed(self, pair: Pair, failures: Collection[str]) -> None:
        """Each request was answered; where the canary failed, with one of `failures`, by stable as stable scores it."""
        assert self.report.failed_requests == 0
        for row in self.log:
            assert row["status"] == ("ok" if row["answered_by"] == row["drawn"] else "fallback"), row["failure"]
            if row["answered_by"] == "stable":
                assert row["score"] == pytest.approx(pair.scores["1"][row["entities"]["shop"]], abs=SAME)
        seen = {row["failure"] for row in self.fell}
        assert {row["drawn"] for row in self.fell} <= {"canary"}
        assert seen <= set(failures) | LATE
        assert seen & set(failures) or not failures

    def told(self, name: str) -> None:
        """One line of figures for people."""
        canary = sum(row["drawn"] == "canary" for row in self.log)
        figures = (
            f"{len(self.log)} requests, {canary} drawn for the canary, {len(self.fell)} of them answered by stable"
        )
        print(f"{name}: {figures}; {self.seconds_to_abort:.2f} s to abort; {self.report.reason}")
