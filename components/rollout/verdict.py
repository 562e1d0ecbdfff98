"""The canary's verdict: from observations to pass, fail or inconclusive, valid however often one looks.

Pure: no clock, no network, no files. Fed the same observations it gives the same verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from components.core.errors import IntegrityError
from components.core.records import RuleResult
from components.rollout.comparisons import Comparison, ShadowTests, SplitTests
from components.rollout.evalues import ArmShare, EProcess
from components.rollout.harm import Harm
from components.rollout.labels import Labelled
from components.rollout.margins import Margins
from components.rollout.observations import Observation
from components.rollout.table import (
    CONTINUE,
    ENDS,
    FAIL,
    INCONCLUSIVE,
    PASS,
    Decided,
    Verdict,
    line,
    row,
    with_decision,
)
from components.rollout.tallies import Tallies
from components.rollout.timing import Baseline, Slow, Timing
from components.rollout.units import Units

__all__ = ["CONTINUE", "ENDS", "FAIL", "INCONCLUSIVE", "PASS", "Judge", "Verdict"]
STABLE_IN_BAKE = 20  # requests of stable without which a bake compared with nothing
NEARLY = 0.95  # the last request of a bake comes a little before its time is over
LABELS = ("log_loss", "auc")


class Judge:
    """Collects the evidence of one rollout; a new candidate gets a new judge."""

    def __init__(self, margins: Margins, steps: int, digests: tuple[str, str] = ("", "")) -> None:
        """A judge that has seen nothing.

        Args:
            margins: of the recipe.
            steps: how many steps of split traffic will share the budget after the shadow; a bake is none.
            digests: of the candidate and of stable; they stand in every verdict.
        """
        self.margins, self._whole, self._steps, self._digests = margins, margins, steps, digests
        self._harm, self._units = Harm(margins, steps), Units()
        self._before = Baseline()
        self.stage, self.weight, self._bake = "", 0, False
        self._kept: dict[str, Any] = {}  # evidence for a pass of the stage in which an earlier controller ended
        self.objection: Decided | None = None

    def memory(self) -> dict[str, Any]:
        """The evidence as plain JSON: what a controller that is started anew must not forget.

        With sticky draws also which units were seen, about 30 bytes each: their draws are known by then.
        """
        proof = {"stage": self.stage, "tests": {name: test.value for name, test in self._proofs.items()}}
        harm = self._harm.memory()
        memory = {"digests": list(self._digests), "steps": self._steps, "harm": harm, "proof": proof}
        return memory | ({"units": dict(self._units.below)} if self.margins.sticky else {})

    @classmethod
    def resume(cls, margins: Margins, steps: int, digests: tuple[str, str], memory: Mapping[str, Any]) -> Self:
        """Go on from a memory, in a stage that is begun anew; other digests forget everything.

        Evidence is multiplied, that of harm in all stages and that for a pass in the one that was interrupted, so that
        the guarantees hold however often the controller died: what came after the last memory counts for neither. The
        samples that a pass needs are counted afresh.

        Raises:
            IntegrityError: it is no memory of a judge, or of one with other steps.
        """
        judge = cls(margins, steps, digests)
        if not isinstance(memory, Mapping) or not isinstance(memory.get("harm"), list):
            raise IntegrityError("rollout: what was kept of its evidence is none; abort it and start again")
        if memory.get("digests") == list(digests):
            if memory.get("steps") != steps:
                raise IntegrityError(f"rollout: its evidence is of {memory.get('steps')} steps, not {steps}; abort it")
            judge._harm.recall(memory["harm"])
            judge._kept = dict(memory.get("proof") or {})
            judge._units = Units(memory.get("units"))
        return judge

    def baseline(self, seen: Sequence[Observation]) -> None:
        """Requests that stable alone answered, both versions being up and warm: how it usually is."""
        self._before = Baseline(seen)

    def begin_shadow(self) -> None:
        """Start the mirrored stage."""
        self._begin("shadow", 0, self._whole)
        self._proof: Comparison = ShadowTests(self.margins, "proof")
        self._go_on()

    def begin_step(self, weight: int) -> None:
        """Start a step of split traffic at a weight in percent; evidence for a pass starts afresh."""
        self._begin(f"step {weight} %", weight, self._whole.of_step(self._harm.begin(weight)))
        self._proof = SplitTests(self.margins, "proof")
        self._go_on()

    def begin_bake(self, weight: int) -> None:
        """Hold a weight after the last step: nothing more has to be proved, and evidence of harm goes on."""
        self._begin(f"bake {weight} %", weight, self.margins, bake=True)

    def _begin(self, stage: str, weight: int, margins: Margins, bake: bool = False) -> None:
        self.stage, self.weight, self.margins, self._bake = stage, weight, margins, bake
        if not bake:
            self._harm.begin(weight)
        self._routing = ArmShare()
        self._timing = Timing(margins, weight == 0, self._before.seconds[weight == 0])
        self.tallies = Tallies(margins)

    def _go_on(self) -> None:
        """With what an earlier controller had proved of this very stage, once."""
        if self._kept.get("stage") != self.stage:
            return
        try:
            for name, test in self._proof.tests.items():
                test.carry(float(self._kept["tests"][name]))
            self._kept = {}
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(f"rollout: the evidence that was kept cannot be read ({error}); abort it") from error

    def add(self, seen: Observation) -> None:
        """Take in one request that has ended, in order of arrival."""
        drawn = self._drawn(seen)
        self.tallies.add(seen, self.weight, counts=drawn is not None or not self.margins.sticky)
        slow = self._timing.ended(seen, drawn is not None)
        if drawn is None:
            return
        self._harm.update(drawn, slow, self.weight == 0)
        if not self._bake:
            self._proof.update(drawn, slow)
        self.tallies.add_slow(drawn, slow)

    def _drawn(self, seen: Observation) -> Observation | None:
        """The request with the probability of its draw; None where it tells nothing of the two arms."""
        if not self._is_draw(seen):
            return None  # the caller never learnt the draw, or the weight was just being changed
        if self.margins.sticky and self.weight:
            if (chance := self._units.chance(seen)) is None:
                return None
            seen = replace(seen, weight=chance)
        self._routing.update(seen.canary, seen.weight)
        return None if self.weight == 0 and seen.canary else seen  # a draw that cannot be: the routing check has it

    def _is_draw(self, seen: Observation) -> bool:
        return bool(seen.drawn_arm) and abs(seen.weight * 100 - self.weight) <= 1e-6

    def open(self, arrivals: Sequence[Observation]) -> None:
        """Look at requests that may not have ended, so that a hang counts as slow once its age passes the limit.

        Args:
            arrivals: all that arrived after the last one added, in order of arrival; those that have not ended have
                `open` set and their age in own.seconds. Each is added as well when it has ended and its turn has come.

        Mirrored and sticky traffic is judged when it has ended.
        """
        if self.weight and not self.margins.sticky:
            self._timing.open(arrivals, self._is_draw, self._tell_slow)

    def _tell_slow(self, seen: Observation, slow: Slow) -> None:
        self._harm.update_slow(seen, slow)
        if not self._bake:
            self._proof.update_slow(seen, slow)
        self.tallies.add_slow(seen, slow)

    def label(self, label: Labelled) -> None:
        """Take in a label that arrived later, in the order in which labels arrive."""
        self._harm.label(label)

    def object(self, outcome: str, rule: str, reason: str) -> None:
        """What was seen outside the traffic ends the stage: a dead replica, a wrong golden answer. The first counts."""
        if self.objection is None:
            self.objection = (outcome, rule, reason)

    def verdict(self, elapsed_seconds: float, deadline_seconds: float, last: bool = False) -> Verdict:
        """Decide on what was seen so far in this stage; look as often as you like.

        Args:
            elapsed_seconds: since the stage began.
            deadline_seconds: of the stage; of a bake, how long it is held.
            last: no more traffic will come, whatever the time.
        """
        more = self.margins.extend_seconds if self.tallies.samples(self.weight) and not self._bake else 0.0
        over = last or not elapsed_seconds < deadline_seconds + more
        held = elapsed_seconds >= deadline_seconds * (NEARLY if last else 1)
        decided = (
            self._hard() or self._unroutable() or self._harmful() or self._unwell() or self._proved(held)
        ) or self._late(over)
        extended = f" (extended by {more:g} s)" if more and elapsed_seconds >= deadline_seconds else ""
        time = f"{elapsed_seconds:.1f} of {deadline_seconds:.0f} s{extended}"
        text = line(decided, self.stage, time, self.margins, self._digests)
        outcome, rule, why = decided
        return Verdict(outcome, rule, text, () if outcome == CONTINUE else self.rules(decided), why)

    def _hard(self) -> Decided | None:
        if self.objection is not None:
            return self.objection
        found = self.tallies.hard_failure()
        return (FAIL, *found) if found else None

    def _unroutable(self) -> Decided | None:
        if self._routing.value >= 1 / self.margins.routing_alpha:
            return INCONCLUSIVE, "routing", self._text("routing")
        if self.tallies.stable_surprise:
            return INCONCLUSIVE, "routing", self.tallies.stable_surprise
        return None

    def _harmful(self) -> Decided | None:
        total, worst = self.total_evidence()
        if total < self.margins.evidence:
            return None
        alone = self._harm.alone(worst)
        largest = f" ({worst} alone {alone:.3g})" if alone is not None else ""
        return FAIL, worst, f"{self._text(worst)}, evidence {total:.3g} ≥ {self.margins.evidence:.3g}{largest}"

    def _unwell(self) -> Decided | None:
        reason = self.tallies.stable_unwell()
        return (INCONCLUSIVE, "stable", reason) if reason else None

    def _proved(self, held: bool) -> Decided | None:
        if self._missing():
            return None
        if self._bake:
            total, _ = self.total_evidence()
            harm = f"evidence of harm {total:.3g} below {self.margins.evidence:.3g}"
            return (PASS, "held", f"{self._text('errors')}, {harm}") if held else None
        weakest = min(self._proofs, key=lambda name: self._proofs[name].value)
        evidence = f"weakest {weakest} {self._proofs[weakest].value:.3g} ≥ {self.margins.evidence:.3g}"
        return PASS, "evidence", f"{self._text('errors')}, {evidence}"

    def _late(self, over: bool) -> Decided:
        lacking = "; ".join(self._missing()) or "its time"
        if over and (degraded := self._degraded()):
            return INCONCLUSIVE, "stable", degraded
        return (INCONCLUSIVE, "deadline", lacking) if over else (CONTINUE, "evidence", f"still needed: {lacking}")

    def evidence_for(self, metric: str) -> float:
        """What the stage has so far that the canary is no worse in one metric; 1 where nothing has to be proved."""
        return self._proofs[metric].value if metric in self._proofs else 1.0

    @property
    def _proofs(self) -> dict[str, EProcess]:
        return {} if self._bake or not self.stage else self._proof.tests

    def _missing(self) -> list[str]:
        """What a pass still lacks; empty where nothing does."""
        lacking = [text for text in (self._samples_lack(), self._degraded(), self.tallies.undrawn_lack()) if text]
        for name, test in self._proofs.items():
            if not test.value >= self.margins.evidence:  # written so that NaN lacks
                lacking.append(f"{name} {test.value:.3g} of {self.margins.evidence:.3g}")
        return lacking

    @property
    def _needed(self) -> int:
        """Mirrored pairs in shadow, canary requests in a step; never none."""
        return max(1, self.margins.pairs if self.weight == 0 else self.margins.canary_requests)

    def _samples_lack(self) -> str:
        samples, what = self.tallies.samples(self.weight), "mirrored pairs" if self.weight == 0 else "canary requests"
        if samples < self._needed:
            return f"{samples} of {self._needed} {what}"
        stable = self.tallies.arms["stable"].requests
        return f"{stable} of {STABLE_IN_BAKE} stable requests" if self._bake and stable < STABLE_IN_BAKE else ""

    def _degraded(self) -> str:
        """Stable itself is worse than before the canary came (they share a machine): then no worse says little."""
        if self.weight == 0:
            return ""
        return self._before.slowed(self._timing, self.margins) or self.tallies.failing_since(self._before)

    def total_evidence(self) -> tuple[float, str]:
        """The rollout's evidence of harm, over all metrics and stages so far, and the metric that gives most."""
        return self._harm.total()

    def rules(self, decided: Decided) -> tuple[RuleResult, ...]:
        """Every metric of this stage with its evidence, the samples, the routing, and what decided against a pass."""
        stage, enough = self.stage, self.margins.evidence
        table = [
            row(name, test.value >= enough, test.value, enough, stage, self._text(name))
            for name, test in self._proofs.items()
        ]
        samples, needed = self.tallies.samples(self.weight), self._needed
        table.append(row("samples", samples >= needed, samples, needed, stage, "requests that tell of the canary"))
        surprise, limit = self._routing.value, 1 / self.margins.routing_alpha
        table.append(row("routing", surprise < limit, surprise, limit, stage, self._text("routing")))
        total, worst = self.total_evidence()
        reason = f"evidence of harm, weighted over all metrics and stages; most from {worst}"
        harm = row("harm", total < enough, total, enough, stage, reason)
        table.append(harm if total < enough else replace(harm, outcome="fail"))
        return with_decision(table, decided, stage)

    def _text(self, name: str) -> str:
        if name in LABELS:
            margin = self.margins.log_loss if name == "log_loss" else self.margins.auc
            return f"{self._harm.label_text(name)}, may be worse by {margin:g}"
        return self.tallies.text(name, self.weight)
