"""The stages in which two versions answer the same traffic: shadow, steps of weight and the bake."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from components.core.errors import TransientError
from components.rollout import states
from components.rollout.labels import labelled
from components.rollout.observations import Observation
from components.rollout.sentinel import Sentinel
from components.rollout.stages import Stages
from components.rollout.traffic import Look
from components.rollout.verdict import CONTINUE, FAIL, INCONCLUSIVE, Judge, Verdict

SENTINEL_SECONDS = 5.0  # how often a canary under traffic is asked a few golden rows again
MEMORY_SECONDS = 30.0  # how often the evidence is kept within a stage


class Comparison:
    """Drives traffic and feeds the judge, one stage after another."""

    def __init__(self, stages: Stages, judge: Judge, remember: Callable[[], None]) -> None:
        """The judge has its baseline; `remember` keeps its memory, now and then."""
        self._stages, self._judge, self._remember = stages, judge, remember
        self._stack, self._traffic, self._rollout = stages.stack, stages.traffic, stages.recipe.rollout
        self._sentinel, self._kept_at = Sentinel(stages, judge), stages.traffic.seconds
        self._labels = self._newest_label()

    def skip(self, state: str, weight: int) -> None:
        """A stage that an earlier controller proved: its share of the error budget stays spent."""
        if state == states.BAKE:
            self._judge.begin_bake(weight)
        elif weight:
            self._judge.begin_step(weight)
        else:
            self._judge.begin_shadow()

    def stage(self, state: str, weight: int) -> Verdict:
        """Shadow (weight 0), one step, or the bake, which lasts its time whatever is proved before."""
        self.skip(state, weight)
        self._stack.set_shadow(weight == 0)
        self._stack.set_weight(weight)
        self._traffic.weight = weight
        begins = f"{weight} % of draws to the canary" if weight else "stable answers, the canary is asked the same"
        self._traffic.note(self._judge.stage, begins)
        verdict = self._watch(self._rollout.bake_seconds if state == states.BAKE else self._rollout.deadline_seconds)
        self._traffic.note(self._judge.stage, verdict.text, verdict.outcome)
        self._stages.rules += verdict.rules
        return verdict

    def _watch(self, deadline: float) -> Verdict:
        """Send traffic and look at all that is new, until the judge decides or the deadline comes."""
        traffic, judge, began = self._traffic, self._judge, self._traffic.seconds
        asked, verdict = began, judge.verdict(0.0, deadline)

        def look(fresh: Sequence[Observation]) -> bool:
            nonlocal asked
            for seen in fresh:
                judge.add(seen)
            self._check_alive()
            self._sentinel.hear()
            elapsed = traffic.seconds - began
            ends = decide(elapsed)
            if not ends and began + elapsed - asked >= SENTINEL_SECONDS:
                asked = began + elapsed
                traffic.note(judge.stage, verdict.why)
                self._sentinel.ask()
                self._hear_labels()
                self._keep()
            return ends

        def look_ahead(waiting: Sequence[Observation]) -> bool:
            judge.open(waiting)
            return decide(traffic.seconds - began)

        def decide(elapsed: float) -> bool:
            nonlocal verdict
            verdict = judge.verdict(elapsed, deadline)
            if verdict.outcome == FAIL:
                self._weight_off()
            return verdict.outcome != CONTINUE or self._stack.stopped

        seconds = deadline + self._rollout.extend_seconds
        self._drive(math.ceil(seconds * self._rollout.requests_per_second), look, look_ahead)
        self._stack.check()
        if verdict.outcome == CONTINUE:
            verdict = judge.verdict(traffic.seconds - began, deadline, last=True)
        return verdict

    def _keep(self) -> None:
        """The evidence outlives this controller, but for the last half minute of it."""
        if self._traffic.seconds - self._kept_at >= MEMORY_SECONDS:
            self._kept_at = self._traffic.seconds
            self._remember()

    def _drive(self, requests: int, look: Look, look_ahead: Look) -> None:
        """All requests until the time is over; where the stack raises and the canary is dead, the canary did it."""
        try:
            self._traffic.drive(requests, look, look_ahead)
        except TransientError:
            self._stack.check()
            self._check_alive()
            if self._judge.objection is None:
                raise

    def _weight_off(self) -> None:
        """At once, while requests are still under way; the way back makes sure of it."""
        with suppress(Exception):
            self._stack.set_weight(0)

    def _newest_label(self) -> int:
        """Labels that came before are evidence that an earlier controller kept, or of no stage of this rollout."""
        return max((label.seq for label in self._stack.labels(0)), default=0)

    def _hear_labels(self) -> None:
        """Labels that callers gave to their decisions meanwhile; those of replayed rows were known at once.

        With sticky draws the entity is the unit, and which request of it a label belongs to is chosen by whoever gives
        it: such labels are for the monitor alone.
        """
        arrived = self._stack.labels(self._labels)
        self._labels = max([self._labels, *(label.seq for label in arrived)])
        if not self._rollout.sticky:
            names, sent = self._stages.recipe.model.labels, self._traffic.sent
            for label in arrived:
                if label.decision_id not in sent and (told := labelled(label, names)):
                    self._judge.label(told)

    def _check_alive(self) -> None:
        """Do both replicas live?"""
        if not self._stack.alive("canary"):
            self._judge.object(FAIL, "alive", "the canary's replica died")
        elif not self._stack.alive("stable"):
            self._judge.object(INCONCLUSIVE, "stable", "stable's replica died")
