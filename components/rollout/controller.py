"""The controller: a rollout as a state machine whose state is in the ledger, with a way back from every state.

Next version: stable and canary side by side → golden set → baseline → shadow → steps of weight → golden set → bake →
100 %. First version: the candidate alone → golden set → service level check. Recreate: the champion's server ends, then
as a first version; where it does not pass the champion is started again.
Whatever happens in between, traffic ends on stable unless the verdict is a pass. A controller that died is followed by
another one that goes on in the same state: what was proved stands, what was being gathered is dropped and begun anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from components.core.errors import TransientError
from components.core.recipe import Recipe
from components.core.records import RolloutReport, RuleResult
from components.rollout import states
from components.rollout.comparing import Comparison
from components.rollout.journal import Abort, AbortedError, Journal, said
from components.rollout.margins import MOST_LOST, Margins, split_steps
from components.rollout.retreat import retreat
from components.rollout.stages import Stages
from components.rollout.verdict import FAIL, INCONCLUSIVE, PASS, Judge, Verdict

OUTCOMES = {PASS: "passed", FAIL: "rolled_back", INCONCLUSIVE: "inconclusive"}


def order_of(recipe: Recipe, first: bool) -> tuple[str, ...]:
    """The states that a rollout of this recipe goes through; `first`: there is no champion."""
    if first or recipe.rollout.strategy == "recreate":
        return states.GOLDEN, states.SLO, states.FULL
    shadow = (states.SHADOW,) if recipe.rollout.shadow_requests else ()
    bake = (states.BAKE,) if recipe.rollout.bake_seconds else ()
    return (states.GOLDEN, *shadow, *map(states.step, split_steps(recipe)), *bake, states.FULL)


class Controller:
    """Leads one rollout on one stack from where the journal left it to its end."""

    def __init__(self, stages: Stages, journal: Journal) -> None:
        """The journal's lease is held and watched."""
        self.stages, self.journal = stages, journal
        self._traffic, self._rollout = stages.traffic, stages.recipe.rollout
        self._down_since: float | None = None

    def go(self) -> RolloutReport:
        """Run all stages; the report is in the ledger when this returns.

        Raises:
            TransientError: the stack failed, another controller took over and has not ended it, or after a verdict
                against the canary no way back to stable was found.
        """
        try:
            return self._to_an_end()
        except TransientError:
            if report := self.journal.ended_elsewhere():
                return report
            raise

    def _to_an_end(self) -> RolloutReport:
        try:
            self._begin()
            end = self._earlier_end() or self._lead()
            if end.outcome == PASS:
                report = self._report(end)
                self.journal.end(states.DONE, report)
                return report
        except AbortedError as aborted:
            end = self._asked(aborted.abort)
        except BaseException as error:
            self._retreat(f"stopped by {said(error)}")
            raise
        return self._turn_back(end)

    def _begin(self) -> None:
        """A safe state, whatever a rollout that was killed left behind; the ledger says who leads from now on."""
        stack = self.stages.stack
        stack.set_weight(0)
        stack.set_shadow(False)
        stack.stop("canary")
        self._traffic.note("start", "no canary, no mirroring")
        text = "begins"
        if self.journal.start > 1:
            text = (
                f"controller {self.journal.start} begins; the one before ended in state {self.journal.state or 'none'}"
            )
            self._traffic.note("start", f"{text}: stages proved stand, evidence of others as far as it was kept")
        self.journal.begin(text)

    def _earlier_end(self) -> Verdict | None:
        """Where the controller before was on its way back already, or too many ended: the same verdict."""
        if found := self.journal.stopped():
            self.stages.rules += [RuleResult(**rule) for rule in found.get("rules", [])]
            return Verdict(found["outcome"], found["rule"], found["text"])
        if (lost := len(self.journal.lost_in)) > MOST_LOST:
            reason = f"{lost} controllers ended while they compared; look at what ends them, then run again"
            return self.stages.end(INCONCLUSIVE, "restarts", "start", reason)
        return None

    def _lead(self) -> Verdict:
        self.journal.enter(states.GOLDEN, "replicas start; golden set")
        if not self.stages.ref.champion_version:
            self._traffic.versions = {"stable": self.stages.ref.version}
            return self._alone()
        return self._recreate() if self._rollout.strategy == "recreate" else self._beside()

    def _alone(self) -> Verdict:
        """The candidate serves as stable; nothing to compare with."""
        stages = self.stages
        if ended := stages.started("stable"):
            return ended
        self._answering("the candidate")
        if ended := stages.golden("stable", "golden set"):
            return ended
        self.journal.enter(states.SLO, "service level check")
        end = stages.service_level()
        if end.outcome == PASS:
            self.journal.prove(states.SLO, end.text, stages.rules)
            self.journal.enter(states.FULL, end.text, weight=100)
        return end

    def _recreate(self) -> Verdict:
        """One server at a time: the champion's ends before the candidate's begins."""
        stages = self.stages
        stages.start_stable()
        expected = f"nobody is answered for about {stages.stable_seconds:.0f} s, as long as stable took to start"
        self._traffic.note("recreate", f"stable ends, then the candidate starts: {expected}")
        stages.stack.stop("stable")
        stages.stable_served, self._down_since = False, self._traffic.seconds
        self._traffic.versions = {"stable": stages.ref.version}
        return self._alone()

    def _answering(self, who: str) -> None:
        """Say how long nobody was answered, where that was so."""
        if self._down_since is not None:
            seconds = self._traffic.seconds - self._down_since
            self._traffic.note("recreate", f"{who} answers after {seconds:.1f} s in which nobody was answered")
            self._down_since = None

    def _beside(self) -> Verdict:
        stages, recipe = self.stages, self.stages.recipe
        stages.launch()
        stages.start_stable()
        if ended := stages.started("canary") or stages.golden("canary", "golden set") or stages.stable_answers():
            return ended
        steps = split_steps(recipe)
        judge = self._judge(len(steps))
        judge.baseline(stages.baseline())
        comparison = Comparison(stages, judge, lambda: self.journal.remember(judge.memory()))
        shadow = (0,) if self._rollout.shadow_requests else ()
        passed = Verdict(PASS, "", "")
        for weight in (*shadow, *steps):
            state = states.step(weight) if weight else states.SHADOW
            passed = self._stage(comparison, judge, state, weight)
            if passed.outcome != PASS:
                return passed
        if ended := stages.golden("canary", "golden set again"):
            return ended
        if self._rollout.bake_seconds:
            held = self._stage(comparison, judge, states.BAKE, states.BAKE_WEIGHT)
            if held.outcome != PASS:
                return held
        return self._full(passed)

    def _judge(self, steps: int) -> Judge:
        """A new judge, or one that goes on with the evidence that earlier controllers kept."""
        ref = self.stages.ref
        margins, digests = Margins.of(self.stages.recipe), (ref.digest, ref.champion_digest)
        if memory := self.journal.memory():
            return Judge.resume(margins, steps, digests, memory)
        return Judge(margins, steps, digests)

    def _stage(self, comparison: Comparison, judge: Judge, state: str, weight: int) -> Verdict:
        """One comparing stage; one that an earlier controller proved stands."""
        if kept := self.journal.passed(state):
            text, rules = kept
            self.stages.rules += rules
            self._traffic.note(state, "proved by the controller before; not repeated")
            comparison.skip(state, weight)
            return Verdict(PASS, "evidence", text)
        self.journal.enter(state, f"{weight} % to the canary" if weight else "mirrored requests", weight)
        verdict = comparison.stage(state, weight)
        if verdict.outcome == PASS:
            self.journal.prove(state, verdict.text, verdict.rules, judge.memory())
        return verdict

    def _full(self, last: Verdict) -> Verdict:
        """All traffic to the candidate; nothing is left to compare with, so it has to live and answer."""
        stages = self.stages
        self.journal.enter(states.FULL, f"version {stages.ref.version} gets all traffic", 100)
        stages.stack.set_weight(100)
        self._traffic.weight = 100
        if not stages.stack.alive("canary"):
            return stages.fail("alive", states.FULL, "the candidate's replica died")
        self._traffic.note(states.FULL, f"version {stages.ref.version} has all traffic", PASS)
        if seconds := self._rollout.warm_seconds:
            if ended := stages.warm(seconds):
                return ended
            stages.stack.stop("stable")
            stages.stable_served = False
            self._traffic.note(states.FULL, f"the old version was warm for {seconds:g} s; drained and stopped")
        return last

    def _asked(self, abort: Abort) -> Verdict:
        """A person asked for the way back."""
        stage = self.journal.state or "start"
        return self.stages.fail("aborted", stage, f"asked for by {abort.who}: {abort.reason}")

    def _turn_back(self, end: Verdict) -> RolloutReport:
        rules = [asdict(rule) for rule in self.stages.rules]
        verdict = {"outcome": end.outcome, "rule": end.rule, "text": end.text, "rules": rules}
        try:
            self.journal.enter(states.ABORTING, end.text, verdict=verdict)
        finally:  # the way back is gone also where the ledger cannot be written
            problems = self._retreat(f"{end.outcome}: {end.rule}")
        if problems:
            raise TransientError(f"{end.text}; but {problems}; run again")
        report = self._report(end)
        self.journal.end(states.ABORTED, report)
        return report

    def _retreat(self, why: str) -> str:
        restore: Callable[[], None] = self._restore_stable
        if self.stages.alone:
            restore = self._end_alone if not self.stages.ref.champion_version else self._back_to_champion
        return retreat(self.stages.stack.release(), self._traffic, restore, why)

    def _end_alone(self) -> None:
        """A first version that did not pass serves nobody."""
        self.stages.stack.release().stop("stable")

    def _back_to_champion(self) -> None:
        """After `recreate`: the candidate's server ends, the champion's starts again."""
        if not self.stages.stable_served:
            if self._down_since is None:
                self._down_since = self._traffic.seconds
            self.stages.stack.release().stop("stable")
        self._restore_stable(always=True)
        self._answering("stable")

    def _restore_stable(self, always: bool = False) -> None:
        """Start the champion's replica again where it served and does not live; say whether it answers."""
        stages, stack = self.stages, self.stages.stack.release()
        if (stages.stable_served or always) and not stack.alive("stable"):
            stages.start_stable(again=True)
        if stages.stable_served and stack.alive("stable"):
            answered = stack.score_arm("stable", stages.golden_rows[:1])
            healthy = bool(answered) and answered[0] is not None
            self._traffic.note("retreat", f"stable lives and {'answers' if healthy else 'gave no answer when asked'}")

    def _report(self, end: Verdict) -> RolloutReport:
        ref, traffic = self.stages.ref, self._traffic
        return RolloutReport(
            outcome=OUTCOMES[end.outcome],
            reason=end.text,
            engine=self.stages.engine,
            candidate_version=ref.version,
            candidate_digest=ref.digest,
            stable_version=ref.champion_version,
            stable_digest=ref.champion_digest,
            rules=tuple(self.stages.rules),
            timeline=tuple(traffic.timeline),
            requests=traffic.requests,
            failed_requests=traffic.failed_requests,
            latency_ms=traffic.latency_ms(),
        )
