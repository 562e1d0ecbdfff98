"""The canary's verdict: from observations to pass, fail or inconclusive, valid however often one looks.

Pure: no clock, no network, no files. Fed the same observations it gives the same verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from components.core.records import RuleResult
from components.rollout.comparisons import Comparison, ShadowTests, SplitTests
from components.rollout.evalues import ArmShare, RunningQuantile, weighted_mean
from components.rollout.margins import BUDGET, LATENCY_LEVELS, SHADOW_SHARE, Margins, step_shares
from components.rollout.observations import Observation
from components.rollout.tallies import Tallies

PASS, FAIL, INCONCLUSIVE, CONTINUE = "pass", "fail", "inconclusive", "continue"
ENDS = {
    PASS: "no worse within the margins",
    FAIL: "traffic back on stable",
    INCONCLUSIVE: "not proven bad; traffic back on stable",
    CONTINUE: "going on",
}
LEAST_BAD_REQUESTS = 3  # fewer failures of the canary never abort by statistics


@dataclass(frozen=True)
class Verdict:
    """What is decided now: `rule` names what decided, `why` the reason, `text` is one line for people.

    `rules` is the table of the stage, empty while it goes on.
    """

    outcome: str
    rule: str
    text: str
    rules: tuple[RuleResult, ...] = ()
    why: str = ""


class Judge:
    """Collects the evidence of one rollout; a new candidate gets a new judge."""

    def __init__(self, margins: Margins, steps: int) -> None:
        """`steps`: how many steps of split traffic will share the budget after the shadow."""
        self.margins = margins
        self._shares = [SHADOW_SHARE, *step_shares(steps)]
        self._harm: list[tuple[float, Comparison]] = []
        self._split_begun = 0
        self._baseline: dict[bool, list[float]] = {True: [], False: []}
        self.stage, self.weight = "", 0
        self.objection: tuple[str, str, str] | None = None

    def baseline(self, seen: Sequence[Observation]) -> None:
        """Requests that stable alone answered, both versions being up and warm: how fast it usually is."""
        answered = [one for one in seen if one.own.score is not None]
        self._baseline = {shadow: [_seconds(one, shadow) for one in answered] for shadow in (True, False)}

    def begin_shadow(self) -> None:
        """Start the mirrored stage."""
        proof = ShadowTests(self.margins, "proof")
        self._begin("shadow", 0, self._shares[0], ShadowTests(self.margins, "harm"), proof)

    def begin_step(self, weight: int) -> None:
        """Start a step of split traffic at a weight in percent; evidence for a pass starts afresh."""
        self._split_begun += 1
        proof = SplitTests(self.margins, "proof")
        harm = SplitTests(self.margins, "harm")
        self._begin(f"step {weight} %", weight, self._shares[self._split_begun], harm, proof)

    def _begin(self, stage: str, weight: int, share: float, harm: Comparison, proof: Comparison) -> None:
        self.stage, self.weight, self._proof = stage, weight, proof
        self._harm.append((share, harm))
        self._routing = ArmShare()
        self._latency = {
            name: RunningQuantile(level, self._baseline[weight == 0]) for name, level in LATENCY_LEVELS.items()
        }
        self.tallies = Tallies(self.margins)

    def add(self, seen: Observation) -> None:
        """Take in one request, in order of arrival."""
        self.tallies.add(seen, self.weight)
        if not (seen.drawn_arm and abs(seen.weight * 100 - self.weight) <= 1e-6):
            return  # the caller never learnt the draw, or the weight was just being changed
        self._routing.update(seen.canary, seen.weight)
        if self.weight == 0 and seen.canary:
            return  # a draw that cannot be: the routing check has it
        slow = {name: flags for name in LATENCY_LEVELS if (flags := self._slow(name, seen)) is not None}
        shadow = self.weight == 0
        for _, harm in self._harm:
            if isinstance(harm, ShadowTests) == shadow:
                harm.update(seen, slow)
        self._proof.update(seen, slow)
        self.tallies.add_slow(seen, slow)
        if not seen.canary:
            for tracker in self._latency.values():
                tracker.update(_seconds(seen, shadow))

    def _slow(self, name: str, seen: Observation) -> tuple[bool, bool | None] | None:
        """Whether each side was slower than it may be at this moment; None while the quantile warms up."""
        usual = self._latency[name].seconds
        if usual is None:
            return None
        limit = max(usual * self.margins.latency_ratio, usual + self.margins.latency_slack_seconds)
        own = _seconds(seen, self.weight == 0) > (limit if seen.canary else usual)
        return own, None if seen.mirrored is None else seen.mirrored.seconds > limit

    def object(self, outcome: str, rule: str, reason: str) -> None:
        """What was seen outside the traffic ends the stage: a dead replica, a wrong golden answer. The first counts."""
        if self.objection is None:
            self.objection = (outcome, rule, reason)

    def verdict(self, elapsed_seconds: float, deadline_seconds: float, last: bool = False) -> Verdict:
        """Decide on what was seen so far in this stage; look as often as you like.

        Args:
            elapsed_seconds: since the stage began.
            deadline_seconds: of the stage.
            last: no more traffic will come, whatever the time.
        """
        for decide in (self._hard, self._unroutable, self._harmful, self._unwell, self._proved):
            if decided := decide():
                break
        else:
            decided = self._late(last or not elapsed_seconds < deadline_seconds)
        outcome, rule, why = decided
        text = self._line(outcome, rule, why, elapsed_seconds, deadline_seconds)
        rules = () if outcome == CONTINUE else self.rules(decided)
        return Verdict(outcome, rule, text, rules, why)

    def _hard(self) -> tuple[str, str, str] | None:
        if self.objection is not None:
            return self.objection
        found = self.tallies.hard_failure()
        return (FAIL, *found) if found else None

    def _unroutable(self) -> tuple[str, str, str] | None:
        if self._routing.value >= 1 / self.margins.routing_alpha:
            return INCONCLUSIVE, "routing", self.tallies.text("routing", self.weight)
        if self.tallies.stable_surprise:
            return INCONCLUSIVE, "routing", self.tallies.stable_surprise
        return None

    def _harmful(self) -> tuple[str, str, str] | None:
        total, worst = self.total_evidence()
        if total < self.margins.evidence:
            return None
        own = self._harm[-1][1].tests.get(worst)
        alone = f" ({worst} alone {own.value:.3g})" if own else ""
        evidence = f"evidence {total:.3g} ≥ {self.margins.evidence:.3g}{alone}"
        return FAIL, worst, f"{self.tallies.text(worst, self.weight)}, {evidence}"

    def _unwell(self) -> tuple[str, str, str] | None:
        reason = self.tallies.stable_unwell()
        return (INCONCLUSIVE, "stable", reason) if reason else None

    def _proved(self) -> tuple[str, str, str] | None:
        if self._missing():
            return None
        weakest = min(self._proof.tests, key=lambda name: self._proof.tests[name].value)
        evidence = f"weakest {weakest} {self._proof.tests[weakest].value:.3g} ≥ {self.margins.evidence:.3g}"
        return PASS, "evidence", f"{self.tallies.text('errors', self.weight)}, {evidence}"

    def _late(self, over: bool) -> tuple[str, str, str]:
        lacking = "; ".join(self._missing())
        return (INCONCLUSIVE, "deadline", lacking) if over else (CONTINUE, "evidence", f"still needed: {lacking}")

    def _missing(self) -> list[str]:
        """What a pass still lacks; empty where nothing does."""
        lacking = [text for text in (self._samples_lack(), self._slowed(), self.tallies.undrawn_lack()) if text]
        for name, test in self._proof.tests.items():
            if not test.value >= self.margins.evidence:  # written so that NaN lacks
                lacking.append(f"{name} {test.value:.3g} of {self.margins.evidence:.3g}")
        return lacking

    @property
    def _needed(self) -> int:
        """Mirrored pairs in shadow, canary requests in a step; never none."""
        return max(1, self.margins.pairs if self.weight == 0 else self.margins.canary_requests)

    def _samples_lack(self) -> str:
        samples, what = self.tallies.samples(self.weight), "mirrored pairs" if self.weight == 0 else "canary requests"
        return "" if samples >= self._needed else f"{samples} of {self._needed} {what}"

    def _slowed(self) -> str:
        """Stable itself became slow since the canary came: then "no slower than stable" says little."""
        usual = self._latency["latency_p50"].seconds
        baseline = self._baseline[False]
        if self.weight == 0 or usual is None or len(baseline) < RunningQuantile.WARM_UP:
            return ""
        before = sorted(baseline)[len(baseline) // 2]
        if usual <= before * self.margins.stable_slowdown + self.margins.latency_slack_seconds:
            return ""
        return f"stable slowed from {before * 1000:.0f} to {usual * 1000:.0f} ms (p50) since the canary came"

    def total_evidence(self) -> tuple[float, str]:
        """The rollout's evidence of harm, over all metrics and stages so far, and the metric that gives most."""
        parts: dict[str, float] = {}
        weighted: list[tuple[float, float]] = []
        for share, harm in self._harm:
            for name, test in harm.tests.items():
                value = test.value
                if name in ("errors", "invalid") and self.tallies.bad(name) < LEAST_BAD_REQUESTS:
                    value = min(value, 1.0)
                weighted.append((BUDGET[name] * share, value))
                parts[name] = parts.get(name, 0.0) + BUDGET[name] * share * value
        return weighted_mean(weighted), max(parts, key=lambda name: parts[name]) if parts else ""

    def rules(self, decided: tuple[str, str, str]) -> tuple[RuleResult, ...]:
        """Every metric of this stage with its evidence, the samples, the routing, and what decided against a pass."""
        table = [self._proof_rule(name, test.value) for name, test in self._proof.tests.items()]
        samples, needed = self.tallies.samples(self.weight), self._needed
        table.append(
            self._rule("samples", _shown(samples >= needed), samples, needed, "requests that tell of the canary")
        )
        surprise, limit = self._routing.value, 1 / self.margins.routing_alpha
        text = self.tallies.text("routing", self.weight)
        table.append(self._rule("routing", _shown(surprise < limit), surprise, limit, text))
        total, worst = self.total_evidence()
        reason = f"evidence of harm, weighted over all metrics and stages; most from {worst}"
        harmed = "fail" if total >= self.margins.evidence else "pass"
        table.append(self._rule("harm", harmed, total, self.margins.evidence, reason))
        outcome, rule, why = decided
        if outcome in (FAIL, INCONCLUSIVE):
            kind = "fail" if outcome == FAIL else "insufficient"
            table = [row for row in table if row.rule != rule]
            table.append(RuleResult(rule=rule, outcome=kind, observed=None, limit=None, subject=self.stage, reason=why))
        return tuple(table)

    def _proof_rule(self, name: str, value: float) -> RuleResult:
        return self._rule(
            name,
            _shown(value >= self.margins.evidence),
            value,
            self.margins.evidence,
            self.tallies.text(name, self.weight),
        )

    def _rule(self, name: str, outcome: str, observed: float, limit: float, reason: str) -> RuleResult:
        return RuleResult(
            rule=name, outcome=outcome, observed=round(observed, 4), limit=limit, subject=self.stage, reason=reason
        )

    def _line(self, outcome: str, rule: str, why: str, elapsed: float, deadline: float) -> str:
        guarantee = f"α {self.margins.alpha:g} for the whole rollout at any number of looks"
        time = f"{elapsed:.1f} of {deadline:.0f} s"
        return f"{outcome.upper()}, {self.stage}, {rule}: {why}; {time}; {guarantee}; {ENDS[outcome]}"


def _seconds(seen: Observation, shadow: bool) -> float:
    """What the caller waited; in shadow the time at stable alone, as the mirrored twin's is at the canary alone."""
    return seen.model_seconds if shadow else seen.own.seconds


def _shown(holds: bool) -> str:
    return "pass" if holds else "insufficient"
