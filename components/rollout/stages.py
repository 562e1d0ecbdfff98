"""The stages of a rollout, in order; each gives the verdict that ends the rollout, or None to go on.

Next version: stable and canary side by side → golden set → baseline → shadow → steps of weight → golden set → 100 %.
First version: the candidate alone → golden set → service level check.
Whatever happens in between, traffic ends on stable unless the verdict is a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from components.core.errors import IntegrityError, TransientError, one_line
from components.core.protocols import Served, ServingStack
from components.core.recipe import Recipe
from components.core.records import ModelVersionRef, RuleResult
from components.rollout.golden import golden_rules
from components.rollout.margins import Margins, split_steps
from components.rollout.observations import Observation
from components.rollout.retreat import retreat
from components.rollout.slo import slo_rules
from components.rollout.traffic import Look, Traffic
from components.rollout.verdict import CONTINUE, ENDS, FAIL, INCONCLUSIVE, PASS, Judge, Verdict

SENTINEL_SECONDS = 5.0  # how often a canary under traffic is asked a few golden rows again
SENTINEL_ROWS = 4
BASELINE_REQUESTS = 60


class Stages:
    """One rollout on one stack; `rules` and `engine` are filled on the way."""

    def __init__(
        self,
        recipe: Recipe,
        ref: ModelVersionRef,
        stack: ServingStack,
        traffic: Traffic,
        model_dirs: Mapping[str, Path | None],
    ) -> None:
        """Everything was checked to belong together."""
        self.recipe, self.ref, self.stack, self.traffic = recipe, ref, stack, traffic
        self._dirs = {role: directory for role, directory in model_dirs.items() if directory is not None}
        self._golden_rows = traffic.replay.golden(recipe.rollout.golden_requests)
        self._sentinel_at, self._stable_served = 0, False
        self.rules: list[RuleResult] = []
        self.engine = ""

    @property
    def _first(self) -> bool:
        """No champion to compare with: the candidate is served as stable, alone."""
        return not self.ref.champion_version

    def go(self) -> Verdict:
        """Run all stages.

        Raises:
            TransientError: the stack failed, or after a verdict against the canary no way back to stable was found.
        """
        try:
            self._reset()
            end = self._first_version() if self._first else self._next_version()
        except BaseException as error:
            self._retreat(f"stopped by {type(error).__name__}: {one_line(error)}")
            raise
        if end.outcome != PASS and (problems := self._retreat(f"{end.outcome}: {end.rule}")):
            raise TransientError(f"{end.text}; but {problems}; run again")
        return end

    def _reset(self) -> None:
        """A safe state, whatever a rollout that was killed left behind."""
        self.stack.set_weight(0)
        self.stack.set_shadow(False)
        self.stack.stop("canary")
        self.traffic.note("start", "no canary, no mirroring")

    def _retreat(self, why: str) -> str:
        return retreat(self.stack, self.traffic, self._end_first if self._first else self._restore_stable, why)

    def _end_first(self) -> None:
        """A first version that did not pass serves nobody."""
        self.stack.stop("stable")

    def _restore_stable(self) -> None:
        """Start the champion's replica again where it served and does not live."""
        if self._stable_served and not self.stack.alive("stable"):
            self._start_stable()

    def _start_stable(self) -> None:
        ref = self.ref
        served = self.stack.start("stable", self._dirs["stable"], ref.champion_version, ref.champion_digest)
        if served.digest != ref.champion_digest:
            raise IntegrityError(f"stable serves digest {served.digest[:12]}, not {ref.champion_digest[:12]}")
        self._stable_served = True
        self.traffic.note("start", f"stable: version {ref.champion_version} is ready ({served.engine})")

    def _first_version(self) -> Verdict:
        self.traffic.versions = {"stable": self.ref.version}
        return self._started("stable") or self._golden("stable", "golden set") or self._service_level()

    def _next_version(self) -> Verdict:
        self._launch()
        self._start_stable()
        if ended := self._started("canary") or self._golden("canary", "golden set") or self._stable_answers():
            return ended
        judge = Judge(Margins.of(self.recipe), len(split_steps(self.recipe)))
        judge.baseline(self._baseline())
        shadow = (0,) if self.recipe.rollout.shadow_requests else ()
        for weight in (*shadow, *split_steps(self.recipe)):
            passed = self._stage(judge, weight)
            if passed.outcome != PASS:
                return passed
        return self._golden("canary", "golden set again") or self._full(passed)

    def _launch(self) -> None:
        """Both replicas load side by side; `start` waits for each."""
        ref = self.ref
        if not self.stack.alive("stable"):
            self.stack.launch("stable", self._dirs["stable"], ref.champion_version, ref.champion_digest)
        self.stack.launch("canary", self._dirs["candidate"], ref.version, ref.digest)

    def _started(self, arm: str) -> Verdict | None:
        """Start the candidate; one that does not come up, or comes up as another, has failed."""
        try:
            served = self.stack.start(arm, self._dirs["candidate"], self.ref.version, self.ref.digest)
        except TransientError as error:
            return self._fail("ready", "start", f"the candidate did not become ready: {one_line(error)}")
        self.engine = served.engine
        if wrong := _mismatch(served, self.ref):
            return self._fail("digest", "start", wrong)
        self.rules.append(RuleResult(rule="ready", outcome="pass", observed=served.engine, limit=None, subject="start"))
        self.traffic.note("start", f"candidate: version {self.ref.version} is ready as {arm} ({served.engine})")
        return None

    def _golden(self, arm: str, stage: str) -> Verdict | None:
        """Ask the whole golden set."""
        rules = self._ask_golden(arm, self._golden_rows, stage)
        self.rules += rules
        for rule in rules:
            if rule.outcome == "fail":
                return self._fail(rule.rule, stage, rule.reason, listed=True)
            if rule.outcome != "pass":
                return self._end(INCONCLUSIVE, rule.rule, stage, rule.reason)
        self.traffic.note(stage, "; ".join(rule.reason for rule in rules), PASS)
        return None

    def _ask_golden(self, arm: str, rows: list[dict[str, object]], stage: str) -> tuple[RuleResult, RuleResult]:
        """Score rows on one arm, once more where no answer came, and compare with the evidence."""
        served = list(self.stack.score_arm(arm, rows))
        if silent := [index for index, score in enumerate(served) if score is None]:
            for index, score in zip(silent, self.stack.score_arm(arm, [rows[i] for i in silent]), strict=False):
                served[index] = score
        evaluated = self.traffic.replay.evaluated_scores(rows)
        return golden_rules(served, evaluated, self.recipe.rollout.golden_tolerance, stage)

    def _stable_answers(self) -> Verdict | None:
        """The same rows warm stable; a stable that does not answer them proves nothing about a canary."""
        silent = sum(score is None for score in self.stack.score_arm("stable", self._golden_rows))
        if silent * 2 < len(self._golden_rows):
            return None
        reason = f"stable gave no answer to {silent} of {len(self._golden_rows)} golden rows"
        return self._end(INCONCLUSIVE, "stable", "golden set", reason)

    def _baseline(self) -> list[Observation]:
        """Stable alone at the rollout's rate, both replicas up and warm on the same cores."""
        seen = self.traffic.drive(BASELINE_REQUESTS, lambda _: False)
        answered = sum(one.own.score is not None for one in seen)
        self.traffic.note("stable alone", f"{answered} of {len(seen)} requests answered by stable alone")
        return seen

    def _stage(self, judge: Judge, weight: int) -> Verdict:
        """Shadow (weight 0) or one step."""
        self.stack.set_shadow(weight == 0)
        self.stack.set_weight(weight)
        self.traffic.weight = weight
        if weight:
            judge.begin_step(weight)
        else:
            judge.begin_shadow()
        begins = f"{weight} % of draws to the canary" if weight else "stable answers, the canary is asked the same"
        self.traffic.note(judge.stage, begins)
        verdict = self._watch(judge)
        self.rules += verdict.rules
        return verdict

    def _watch(self, judge: Judge) -> Verdict:
        """Send traffic and look at all that is new, until the judge decides or the deadline comes."""
        rollout, began = self.recipe.rollout, self.traffic.seconds
        asked, verdict = began, judge.verdict(0.0, rollout.deadline_seconds)

        def look(fresh: Sequence[Observation]) -> bool:
            nonlocal asked, verdict
            for seen in fresh:
                judge.add(seen)
            self._check_alive(judge)
            elapsed = self.traffic.seconds - began
            verdict = judge.verdict(elapsed, rollout.deadline_seconds)
            if verdict.outcome == CONTINUE and began + elapsed - asked >= SENTINEL_SECONDS:
                asked = began + elapsed
                self.traffic.note(judge.stage, verdict.why)
                self._sentinel(judge)
            if verdict.outcome == FAIL:
                self._weight_off()
            return verdict.outcome != CONTINUE

        self._drive(judge, look)
        if verdict.outcome == CONTINUE:
            verdict = judge.verdict(self.traffic.seconds - began, rollout.deadline_seconds, last=True)
        self.traffic.note(judge.stage, verdict.text, verdict.outcome)
        return verdict

    def _drive(self, judge: Judge, look: Look) -> None:
        """All requests until the deadline; where the stack raises and the canary is dead, the canary did it."""
        rollout = self.recipe.rollout
        try:
            self.traffic.drive(math.ceil(rollout.deadline_seconds * rollout.requests_per_second), look)
        except TransientError:
            self._check_alive(judge)
            if judge.objection is None:
                raise

    def _weight_off(self) -> None:
        """At once, while requests are still under way; `retreat` makes sure of it."""
        with suppress(Exception):
            self.stack.set_weight(0)

    def _check_alive(self, judge: Judge) -> None:
        """Do both replicas live?"""
        if not self.stack.alive("canary"):
            judge.object(FAIL, "alive", "the canary's replica died")
        elif not self.stack.alive("stable"):
            judge.object(INCONCLUSIVE, "stable", "stable's replica died")

    def _sentinel(self, judge: Judge) -> None:
        """A few golden rows again, in turn: a canary may be well at first and then wrong.

        Answers that do not come are left to the statistics, which compare them with stable's.
        """
        rows = [self._golden_rows[(self._sentinel_at + step) % len(self._golden_rows)] for step in range(SENTINEL_ROWS)]
        self._sentinel_at += SENTINEL_ROWS
        _, parity = self._ask_golden("canary", rows, judge.stage)
        if parity.outcome == "fail":
            judge.object(FAIL, parity.rule, parity.reason)

    def _full(self, last: Verdict) -> Verdict:
        """All traffic to the candidate; nothing is left to compare with, so it only has to live."""
        self.stack.set_weight(100)
        self.traffic.weight = 100
        if not self.stack.alive("canary"):
            return self._fail("alive", "full", "the candidate's replica died")
        self.traffic.note("full", f"version {self.ref.version} has all traffic", PASS)
        return last

    def _service_level(self) -> Verdict:
        """Replay against absolute limits; ends early where the limit of errors is already out of reach."""
        rollout, known, dead = self.recipe.rollout, list[Observation](), False
        began = self.traffic.seconds

        def look(fresh: Sequence[Observation]) -> bool:
            nonlocal dead
            known.extend(fresh)
            dead = not self.stack.alive("stable")
            hopeless = sum(one.own.failed for one in known) > rollout.slo_error_rate * rollout.slo_requests
            return dead or hopeless or self.traffic.seconds - began > rollout.deadline_seconds

        seen = self.traffic.drive(rollout.slo_requests, look)
        if dead:
            return self._fail("alive", "slo", "the candidate's replica died")
        rules = slo_rules(seen, rollout)
        self.rules += rules
        outcomes = {"fail": FAIL, "insufficient": INCONCLUSIVE}
        for asked, outcome in outcomes.items():
            if rule := next((rule for rule in rules if rule.outcome == asked), None):
                return self._end(outcome, rule.rule, "slo", rule.reason)
        shown = "; ".join(rule.reason for rule in rules if rule.rule in ("errors", "invalid", "latency_p95"))
        return self._end(PASS, "all limits", "slo", f"{shown}, p95 limit {rollout.slo_p95_ms:g} ms")

    def _fail(self, rule: str, stage: str, reason: str, listed: bool = False) -> Verdict:
        if not listed:
            self.rules.append(
                RuleResult(rule=rule, outcome="fail", observed=None, limit=None, subject=stage, reason=reason)
            )
        return self._end(FAIL, rule, stage, reason)

    def _end(self, outcome: str, rule: str, stage: str, reason: str) -> Verdict:
        ends = ENDS if not self._first else {PASS: "fit to serve", FAIL: "not served", INCONCLUSIVE: "not served"}
        text = f"{outcome.upper()}, {stage}, {rule}: {reason}; {ends[outcome]}"
        self.traffic.note(stage, text, outcome)
        return Verdict(outcome, rule, text)


def _mismatch(served: Served, ref: ModelVersionRef) -> str:
    if served.digest != ref.digest:
        return f"digest {served.digest[:12]} is served, {ref.digest[:12]} was registered"
    return "" if served.version == ref.version else f"version {served.version!r} is served, not {ref.version!r}"
