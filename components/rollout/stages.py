"""The stages of a rollout; each gives the verdict that ends the rollout, or None (or a pass) to go on.

They know neither the ledger nor the way back: `controller.py` orders them and returns traffic to stable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from components.core.errors import IntegrityError, TransientError, one_line
from components.core.protocols import GoldenRow, Served
from components.core.recipe import Recipe
from components.core.records import ModelVersionRef, RuleResult
from components.rollout import states
from components.rollout.absolute import Absolute
from components.rollout.golden import golden_row, golden_rules
from components.rollout.observations import Observation
from components.rollout.slo import slo_rules
from components.rollout.steering import Steered
from components.rollout.traffic import Traffic
from components.rollout.verdict import CONTINUE, ENDS, FAIL, INCONCLUSIVE, PASS, Verdict

BASELINE_REQUESTS = 60


class Stages:
    """What happens on one stack; `rules` and `engine` are filled on the way."""

    def __init__(
        self,
        recipe: Recipe,
        ref: ModelVersionRef,
        stack: Steered,
        traffic: Traffic,
        model_dirs: Mapping[str, Path | None],
    ) -> None:
        """Everything was checked to belong together."""
        self.recipe, self.ref, self.stack, self.traffic = recipe, ref, stack, traffic
        self._dirs = {role: directory for role, directory in model_dirs.items() if directory is not None}
        self.golden_rows = traffic.replay.golden(recipe.rollout.golden_requests)
        self.stable_served, self.stable_seconds = False, 0.0
        self.alone = not ref.champion_version or recipe.rollout.strategy == "recreate"
        self.rules: list[RuleResult] = []
        self.engine = ""

    def launch(self) -> None:
        """Both replicas load side by side; `start` waits for each."""
        ref = self.ref
        if not self.stack.alive("stable"):
            directory = self._dirs["stable"]
            self.stack.launch("stable", directory, ref.champion_version, ref.champion_digest, self._golden_of("stable"))
        self.stack.launch("canary", self._dirs["candidate"], ref.version, ref.digest, self._golden_of("canary"))

    def start_stable(self, again: bool = False) -> None:
        """Start the champion; `again`: past what stopped the rollout, on the way back.

        Raises:
            IntegrityError: another digest is served. TransientError: it does not come up.
        """
        ref, stack = self.ref, self.stack.release() if again else self.stack
        began = self.traffic.seconds
        golden = self._golden_of("stable")
        served = stack.start("stable", self._dirs["stable"], ref.champion_version, ref.champion_digest, golden)
        if served.digest != ref.champion_digest:
            raise IntegrityError(f"stable serves digest {served.digest[:12]}, not {ref.champion_digest[:12]}")
        self.stable_served, self.stable_seconds = True, self.traffic.seconds - began
        self.traffic.note("start", f"stable: version {ref.champion_version} is ready ({served.engine})")

    def started(self, arm: str) -> Verdict | None:
        """Start the candidate; one that does not come up, or comes up as another, has failed."""
        golden = self._golden_of("canary")
        try:
            served = self.stack.start(arm, self._dirs["candidate"], self.ref.version, self.ref.digest, golden)
        except TransientError as error:
            self.stack.check()
            return self.fail("ready", "start", f"the candidate did not become ready: {one_line(error)}")
        self.engine = served.engine
        if wrong := _mismatch(served, self.ref):
            return self.fail("digest", "start", wrong)
        self.rules.append(RuleResult(rule="ready", outcome="pass", observed=served.engine, limit=None, subject="start"))
        self.traffic.note("start", f"candidate: version {self.ref.version} is ready as {arm} ({served.engine})")
        return None

    def golden(self, arm: str, stage: str) -> Verdict | None:
        """Ask the whole golden set."""
        rules = self.ask_golden(arm, self.golden_rows, stage)
        self.rules += rules
        for rule in rules:
            if rule.outcome == "fail":
                return self.fail(rule.rule, stage, rule.reason, listed=True)
            if rule.outcome != "pass":
                return self.end(INCONCLUSIVE, rule.rule, stage, rule.reason)
        self.traffic.note(stage, "; ".join(rule.reason for rule in rules), PASS)
        return None

    def ask_golden(self, arm: str, rows: list[dict[str, object]], stage: str) -> tuple[RuleResult, RuleResult]:
        """Score rows on one arm, once more where no answer came, and compare with the evidence."""
        served = list(self.stack.score_arm(arm, rows))
        if silent := [index for index, score in enumerate(served) if score is None]:
            for index, score in zip(silent, self.stack.score_arm(arm, [rows[i] for i in silent]), strict=False):
                served[index] = score
        evaluated = self.traffic.replay.evaluated_scores(rows)
        return golden_rules(served, evaluated, self.recipe.rollout.golden_tolerance, stage)

    def stable_answers(self) -> Verdict | None:
        """The same rows warm stable; a stable that does not answer them proves nothing about a canary."""
        silent = sum(score is None for score in self.stack.score_arm("stable", self.golden_rows))
        if silent * 2 < len(self.golden_rows):
            return None
        reason = f"stable gave no answer to {silent} of {len(self.golden_rows)} golden rows"
        return self.end(INCONCLUSIVE, "stable", "golden set", reason)

    def baseline(self) -> list[Observation]:
        """Stable alone at the rollout's rate, both replicas up and warm on the same cores."""
        seen = self.traffic.drive(BASELINE_REQUESTS, lambda _: self.stack.stopped)
        self.stack.check()
        answered = sum(one.own.score is not None for one in seen)
        self.traffic.note("stable alone", f"{answered} of {len(seen)} requests answered by stable alone")
        return seen

    def service_level(self) -> Verdict:
        """Replay against absolute limits; ends early where the limit of errors is already out of reach."""
        rollout = self.recipe.rollout
        seen, dead = self.observe("stable", rollout.slo_requests, rollout.deadline_seconds)
        if dead:
            return self.fail("alive", "slo", "the candidate's replica died")
        rules = slo_rules(seen, rollout)
        self.rules += rules
        outcomes = {"fail": FAIL, "insufficient": INCONCLUSIVE}
        for asked, outcome in outcomes.items():
            if rule := next((rule for rule in rules if rule.outcome == asked), None):
                return self.end(outcome, rule.rule, "slo", rule.reason)
        shown = "; ".join(rule.reason for rule in rules if rule.rule in ("errors", "invalid", "latency_p95"))
        return self.end(PASS, "all limits", "slo", f"{shown}, p95 limit {rollout.slo_p95_ms:g} ms")

    def warm(self, seconds: float) -> Verdict | None:
        """All traffic on the candidate, the old version still up: only absolute limits are left to judge by."""
        rollout, began, dead = self.recipe.rollout, self.traffic.seconds, False
        watch = Absolute(rollout, self.ref.digest)
        verdict = watch.verdict(0.0, seconds)

        def look(fresh: Sequence[Observation]) -> bool:
            nonlocal dead, verdict
            for seen in fresh:
                watch.add(seen)
            dead = not self.stack.alive("canary")
            verdict = watch.verdict(self.traffic.seconds - began, seconds)
            return dead or self.stack.stopped or verdict.outcome != CONTINUE

        self.traffic.drive(math.ceil(seconds * rollout.requests_per_second), look)
        self.stack.check()
        if dead:
            return self.fail("alive", states.FULL, "the candidate's replica died")
        if verdict.outcome == CONTINUE:  # all was sent, the clock is a moment behind
            verdict = watch.verdict(seconds, seconds)
        self.rules += verdict.rules
        self.traffic.note(states.FULL, verdict.text, verdict.outcome)
        return None if verdict.outcome == PASS else verdict

    def observe(self, arm: str, requests: int, seconds: float) -> tuple[list[Observation], bool]:
        """Send requests to a candidate that has them all, until its limit of errors is out of reach, and whether it
        died."""
        limit, known, dead = self.recipe.rollout.slo_error_rate * requests, list[Observation](), False
        began = self.traffic.seconds

        def look(fresh: Sequence[Observation]) -> bool:
            nonlocal dead
            known.extend(fresh)
            dead = not self.stack.alive(arm)
            hopeless = sum(one.own.failed for one in known) > limit
            return dead or hopeless or self.stack.stopped or self.traffic.seconds - began > seconds

        seen = self.traffic.drive(requests, look)
        self.stack.check()
        return seen, dead

    def fail(self, rule: str, stage: str, reason: str, listed: bool = False) -> Verdict:
        """The candidate is at fault; `listed`: the rule is in the table already."""
        if not listed:
            self.rules.append(
                RuleResult(rule=rule, outcome="fail", observed=None, limit=None, subject=stage, reason=reason)
            )
        return self.end(FAIL, rule, stage, reason)

    def end(self, outcome: str, rule: str, stage: str, reason: str) -> Verdict:
        """The verdict in one line, on the timeline too."""
        ends = ENDS if not self.alone else {PASS: "fit to serve", FAIL: "not served", INCONCLUSIVE: "not served"}
        text = f"{outcome.upper()}, {stage}, {rule}: {reason}; {ends[outcome]}"
        self.traffic.note(stage, text, outcome)
        return Verdict(outcome, rule, text)

    def _golden_of(self, arm: str) -> GoldenRow | None:
        """A row with the score that was registered for the version of this arm, to be ready by."""
        scores = self.traffic.replay.evaluated if arm == "canary" else self.traffic.replay.champion
        return golden_row(self.golden_rows, scores, self.recipe.rollout.golden_tolerance)


def _mismatch(served: Served, ref: ModelVersionRef) -> str:
    if served.digest != ref.digest:
        return f"digest {served.digest[:12]} is served, {ref.digest[:12]} was registered"
    return "" if served.version == ref.version else f"version {served.version!r} is served, not {ref.version!r}"
