"""A few golden rows again, while a canary has traffic: it may be well at first and then wrong."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait

from components.core.records import RuleResult
from components.rollout.stages import Stages
from components.rollout.verdict import FAIL, Judge

ROWS = 4
WAIT_SECONDS = 0.25  # for answers, before the traffic is looked at again


class Sentinel:
    """Asks beside the traffic, so that a canary that hangs does not keep the verdict waiting.

    Answers that do not come are left to the statistics, which compare them with stable's.
    """

    def __init__(self, stages: Stages, judge: Judge) -> None:
        self._stages, self._judge, self._next = stages, judge, 0
        self._asked: Future[tuple[RuleResult, RuleResult]] | None = None

    def ask(self) -> None:
        """Ask the next rows in turn, unless the last ones are still under way; hear what comes at once."""
        if self._asked is not None:
            return
        every = self._stages.golden_rows
        rows = [every[(self._next + step) % len(every)] for step in range(ROWS)]
        self._next += ROWS
        asked: Future[tuple[RuleResult, RuleResult]] = Future()
        stage = self._judge.stage

        def run() -> None:
            try:
                asked.set_result(self._stages.ask_golden("canary", rows, stage))
            except BaseException as error:  # raised where it is heard
                asked.set_exception(error)

        threading.Thread(target=run, name="rollout-sentinel", daemon=True).start()
        self._asked = asked
        self.hear(WAIT_SECONDS)

    def hear(self, seconds: float = 0.0) -> None:
        """Tell the judge of a wrong answer that has come by now, or in so many seconds; raises what asking raised."""
        if self._asked is None or not wait([self._asked], seconds).done:
            return
        asked, self._asked = self._asked, None
        _, parity = asked.result()
        if parity.outcome == "fail":
            self._judge.object(FAIL, parity.rule, parity.reason)
