"""What a rollout asks for and how it spends its error probability; from the recipe, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from components.core.errors import UserError
from components.core.recipe import Recipe

# Share of alpha by what is watched. A weighted mean of e-values dominates testing each at its share (Vovk and Wang).
BUDGET = {
    "errors": 0.40,
    "invalid": 0.15,
    "latency_p50": 0.125,
    "latency_p95": 0.125,
    "score_up": 0.04,
    "score_down": 0.04,
    "label_flips": 0.02,
    "log_loss": 0.05,
    "auc": 0.05,
}
BAKE_REQUESTS = 600  # at 95/5 they leave stable enough to compare with
MOST_LOST = 4  # controllers that ended while they compared: whatever ends them, a fifth is not better off
SHADOW_SHARE = 0.2  # of every metric's budget; the steps share the rest
LATENCY_LEVELS = {"latency_p50": 0.5, "latency_p95": 0.95}


@dataclass(frozen=True)
class Margins:
    """Limits of the verdict; rates, scores and shares in 0..1, latencies in seconds.

    errors: the canary passes when its failure rate is proved to exceed stable's by less than this.
    harm: it is aborted when its failure rate is proved to exceed stable's by more than this.
    latency_ratio, latency_slack_seconds: slow means above ratio x stable's quantile, and above it by the slack (a
        ratio of a few milliseconds measures the event loop).
    score_shift: the mean score may differ by this, up or down. Versions trained on different weeks keep the mean (both
        are calibrated to the base rate) but not each score, so the mean is limited and not the single difference.
    label_flips: share of mirrored requests whose label the two versions may see differently. Wide, because versions
        that disagree near the threshold are normal: it stops a model that decides otherwise, not one that learnt.
    log_loss: where outcomes are known, the mean log loss (each clipped to 1) may be worse by this.
    auc: where outcomes are known, the share of (positive, negative) pairs in the right order may be worse by this.
    harm_margin: see `harm`; 0 takes a tenth of `errors`.
    step_errors: the pass margin of errors in each step, empty = `errors` in all: later steps can ask for more.
    extend_seconds: a stage that saw data but proved nothing by its deadline goes on for this long, once.
    sticky: the draw is a hash of the entity, which then is the unit that is counted.
    stable_errors, slo_seconds, stable_slowdown: beyond these stable itself is unwell and proves nothing about a canary.
    """

    errors: float
    latency_ratio: float
    score_shift: float
    alpha: float
    pairs: int
    canary_requests: int
    threshold: float
    stable_errors: float
    slo_seconds: float
    label_flips: float = 0.15
    log_loss: float = 0.02
    latency_slack_seconds: float = 0.005
    stable_slowdown: float = 3.0
    failures_in_a_row: int = 5
    routing_alpha: float = 0.001
    undrawn_share: float = 0.01
    auc: float = 0.02
    harm_margin: float = 0.0
    step_errors: tuple[float, ...] = ()
    extend_seconds: float = 0.0
    sticky: bool = False

    @property
    def harm(self) -> float:
        """A tenth of the pass margin where the recipe says nothing else: +0.5 pp where passing asks for +5 pp."""
        return self.harm_margin or self.errors / 10

    def of_step(self, number: int) -> Margins:
        """The margins of a step (0 = the first): its own pass margin, and the same harm throughout."""
        errors = self.step_errors[number] if number < len(self.step_errors) else self.errors
        return replace(self, errors=errors, harm_margin=self.harm)

    @property
    def evidence(self) -> float:
        """The e-value that decides."""
        return 1 / self.alpha

    @classmethod
    def of(cls, recipe: Recipe) -> Margins:
        """Read them from the recipe.

        Raises:
            UserError: a margin with which nothing could ever be proved, or no step that compares two versions.
        """
        rollout = recipe.rollout
        bounds = {
            "alpha": (rollout.alpha, 0.2),
            "error_margin": (rollout.error_margin, 0.5),
            "score_shift": (rollout.score_shift, 0.5),
        }
        for key, (value, most) in bounds.items():
            if not 0 < value <= most:
                raise UserError(f"recipe: rollout.{key} is {value:g}; give a number above 0 and at most {most:g}")
        if rollout.latency_ratio < 1:
            raise UserError(f"recipe: rollout.latency_ratio is {rollout.latency_ratio:g}; give 1 or more")
        if not split_steps(recipe):
            raise UserError("recipe: rollout.steps has no weight below 100, so nothing would be compared; add one")
        bake, least = rollout.bake_seconds * rollout.requests_per_second, rollout.min_canary_requests / 0.9
        if 0 < bake < max(least, BAKE_REQUESTS):
            raise UserError(
                f"recipe: rollout.bake_seconds {rollout.bake_seconds:g} gives {bake:.0f} requests, a bake needs "
                f"{max(least, BAKE_REQUESTS):.0f}; make it longer, or 0"
            )
        warm = rollout.warm_seconds * rollout.requests_per_second
        if 0 < warm < rollout.slo_requests / 0.9:
            raise UserError(
                f"recipe: rollout.warm_seconds {rollout.warm_seconds:g} gives {warm:.0f} requests at 100 %, its limits "
                f"need {rollout.slo_requests / 0.9:.0f}; make it longer, or 0"
            )
        return cls(
            errors=rollout.error_margin,
            latency_ratio=rollout.latency_ratio,
            score_shift=rollout.score_shift,
            alpha=rollout.alpha,
            pairs=rollout.shadow_requests,
            canary_requests=rollout.min_canary_requests,
            threshold=recipe.serving.threshold,
            stable_errors=rollout.slo_error_rate + rollout.error_margin,
            slo_seconds=rollout.slo_p95_ms / 1000,
            harm_margin=rollout.harm_margin,
            step_errors=_step_errors(recipe),
            extend_seconds=rollout.extend_seconds,
            sticky=rollout.sticky,
        )


def _step_errors(recipe: Recipe) -> tuple[float, ...]:
    """The pass margins of the steps that compare, where the recipe gives one a step."""
    rollout, steps = recipe.rollout, split_steps(recipe)
    asked = rollout.error_margins
    if asked and len(asked) != len(steps):
        raise UserError(f"recipe: rollout.error_margins has {len(asked)} numbers for {len(steps)} steps below 100")
    for margin in asked or (rollout.error_margin,):
        if not rollout.harm_margin <= margin <= 0.5 or margin <= 0:
            raise UserError(
                f"recipe: rollout.error_margins: {margin:g} is no margin; give more than 0, at least harm_margin "
                f"({rollout.harm_margin:g}) and at most 0.5"
            )
    return asked


def split_steps(recipe: Recipe) -> tuple[int, ...]:
    """The weights at which both versions answer users; at 100 there is nothing left to compare with."""
    return tuple(step for step in recipe.rollout.steps if step < 100)


def step_shares(steps: int) -> tuple[float, ...]:
    """How the steps share what the shadow leaves: early ones more, because a harm is best found at a low weight."""
    sizes = [0.6**step for step in range(steps)]
    return tuple((1 - SHADOW_SHARE) * size / sum(sizes) for size in sizes)
