"""E-processes: evidence that may be looked at after every request and stopped at any time.

Every process here starts at 1 and has, under its null hypothesis, expectation at most 1 at any stopping time; by
Ville's inequality the probability that it ever reaches 1/alpha is at most alpha, however often one looks.

Sources: J. Ville, "Étude critique de la notion de collectif" (1939); R. Turner, A. Ly and P. Grünwald, "Generic
E-variables for exact sequential k-sample tests that allow for optional stopping" (2024) for the two-arm rate test;
I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting" (2024) for the bounded means
and for the mixture over bets; V. Vovk and R. Wang, "E-values: calibration, combination and applications" (2021) for
the weighted mean.

Validity of the two-arm tests rests on one fact: a request is drawn for the canary with a known probability that does
not depend on the request. Requests need not be alike: the nulls hold request by request, so that a drifting base rate
or an incident shared by both arms does not count against the canary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

LARGEST = 1e12  # e-values are reported up to here: beyond it the number says nothing more
_TINY = 1e-9


class EProcess:
    """An equally weighted mixture of bets; `value` is the evidence against the null so far."""

    def __init__(self, bets: int) -> None:
        """`bets`: how many alternatives or stakes the mixture has."""
        self._logs = [0.0] * bets

    @property
    def value(self) -> float:
        """The e-value, at most LARGEST."""
        top = max(self._logs)
        mean = sum(math.exp(log - top) for log in self._logs) / len(self._logs)
        log = top + math.log(mean)
        return LARGEST if log >= math.log(LARGEST) else math.exp(log)

    def carry(self, value: float) -> None:
        """Go on from evidence that was gathered before: the product of the two is an e-process again."""
        self._logs = [log + math.log(min(max(value, 1e-300), LARGEST)) for log in self._logs]


class TwoArmRate(EProcess):
    """Is the canary's failure rate more than `margin` above stable's (`worse`), or provably less (`no_worse`)?

    worse:     null p_canary - p_stable <= margin; the alternatives are excesses over p_stable + margin.
    no_worse:  null p_canary - p_stable >= margin; the alternatives are shares of the margin added to p_stable, or,
               for a margin of 0, multiples of p_stable.
    """

    WORSE = (0.005, 0.015, 0.05, 0.15, 0.4, 0.97)
    NO_WORSE = (0.0, 0.3)
    HALF_LIFE = 2000.0  # stable requests after which an outcome counts half in the plug-in base rate
    BUCKET = 0.05  # the plug-in rate is rounded to 5 % buckets, so that the bets come from a small table

    def __init__(
        self,
        direction: str,
        margin: float,
        alternatives: Sequence[float] = (),
        prior: tuple[float, float] = (0.5, 50.0),
    ) -> None:
        """`prior`: failures and requests that stand for stable's rate before any was seen."""
        assert direction in ("worse", "no_worse")
        self._worse, self._margin = direction == "worse", margin
        self._alternatives = tuple(alternatives) or (self.WORSE if self._worse else self.NO_WORSE)
        super().__init__(len(self._alternatives))
        self._failures, self._requests = prior
        self._fade = 0.5 ** (1.0 / self.HALF_LIFE)
        self._tables: dict[tuple[float, int], list[tuple[float, float, float, float]]] = {}

    def update(self, canary: bool, failed: bool, weight: float) -> None:
        """Add one request; `weight` is the probability (0..1, exclusive) with which it was drawn for the canary."""
        column = (0 if canary else 2) + (1 if failed else 0)
        for bet, row in enumerate(self._table(weight)):
            self._logs[bet] += row[column]
        if not canary:
            self._failures = self._failures * self._fade + failed
            self._requests = self._requests * self._fade + 1.0

    def _table(self, weight: float) -> list[tuple[float, float, float, float]]:
        """Log factors by bet and outcome, from what was known before this request."""
        bucket = round(math.log(max(self._failures / self._requests, 2e-4)) / self.BUCKET)
        if (weight, bucket) not in self._tables:
            stable = min(math.exp(bucket * self.BUCKET), 0.98)
            pairs = ((self._canary_rate(stable, alternative), stable) for alternative in self._alternatives)
            self._tables[weight, bucket] = [_log_factors(*pair, self._margin, weight) for pair in pairs]
        return self._tables[weight, bucket]

    def _canary_rate(self, stable: float, alternative: float) -> float:
        if self._worse:
            return min(stable + self._margin + alternative, 0.995)
        return stable + alternative * self._margin if self._margin > 0 else stable * alternative


def _log_factors(canary: float, stable: float, margin: float, weight: float) -> tuple[float, float, float, float]:
    """Log likelihood ratios (canary ok, canary failed, stable ok, stable failed) against the nearest null point.

    The null set is convex, so the ratio to the point of it that is nearest in Kullback-Leibler divergence has
    expectation at most 1 under every point of the null.
    """
    null = _nearest_null(canary, stable, margin, weight)
    return (
        math.log((1 - canary) / (1 - null - margin)),
        math.log(canary / (null + margin)),
        math.log((1 - stable) / (1 - null)),
        math.log(stable / null),
    )


def _nearest_null(canary: float, stable: float, margin: float, weight: float) -> float:
    """argmin over t of w KL(canary ‖ t + margin) + (1 - w) KL(stable ‖ t): a convex problem, by bisection."""
    low, high = _TINY, 1.0 - margin - _TINY

    def slope(t: float) -> float:
        q = t + margin
        return weight * (q - canary) / (q * (1 - q)) + (1 - weight) * (t - stable) / (t * (1 - t))

    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return (low + high) / 2


class RunningQuantile:
    """A quantile of stable's latency at this moment, from past requests only (stochastic approximation in logs)."""

    WARM_UP = 50
    STEP = 0.05
    LONGEST_SECONDS = 3600.0

    def __init__(self, level: float, first: Iterable[float] = ()) -> None:
        """`level`: 0.95 for p95. `first`: latencies of a baseline, seconds."""
        self._level, self._early, self._log = level, [self._clip(seconds) for seconds in first], math.nan
        self._settle()

    @property
    def seconds(self) -> float | None:
        """The quantile, or None while fewer than WARM_UP requests were seen."""
        return None if math.isnan(self._log) else math.exp(self._log)

    def update(self, seconds: float) -> None:
        """Move towards the level by one request of stable."""
        if math.isnan(self._log):
            self._early.append(self._clip(seconds))
            self._settle()
        else:
            above = self._clip(seconds) > math.exp(self._log)
            self._log += self.STEP * (above - (1 - self._level))

    def _settle(self) -> None:
        if len(self._early) >= self.WARM_UP:
            self._log = math.log(sorted(self._early)[int(self._level * len(self._early))])

    def _clip(self, seconds: float) -> float:
        return min(max(seconds, 1e-6), self.LONGEST_SECONDS) if not math.isnan(seconds) else self.LONGEST_SECONDS


class PairedMean(EProcess):
    """Mirrored requests: null sign * mean(canary - stable) <= margin, for values whose difference is in [-1, 1].

    A negative margin with sign -1 proves the opposite: the mean difference is below -margin's size.
    """

    STAKES = (0.03, 0.1, 0.3, 0.6, 0.95)

    def __init__(self, sign: int, margin: float) -> None:
        """`sign`: +1 where a higher value of the canary is worse."""
        super().__init__(len(self.STAKES))
        self._sign, self._margin = sign, margin

    def update(self, difference: float) -> None:
        """Add one pair."""
        gain = (self._sign * min(max(difference, -1.0), 1.0) - self._margin) / (1 + self._margin)
        for bet, stake in enumerate(self.STAKES):
            self._logs[bet] += math.log1p(stake * gain)


class UnpairedMean(EProcess):
    """Split traffic: null sign * (mean canary - mean stable) <= margin, for values in [0, 1].

    Each request's value is weighted by the inverse of its arm's probability; `expected` is any guess made before the
    draw (here the evaluated score of the row), which takes out the variance that comes from the rows. The stakes do not
    depend on `expected`: rows on which the canary scores higher would else count more than those where it scores lower.
    """

    STAKES = (0.03, 0.1, 0.25, 0.5, 0.9)

    def __init__(self, sign: int, margin: float) -> None:
        """`sign`: +1 where a higher value of the canary is worse."""
        super().__init__(len(self.STAKES))
        self._sign, self._margin = sign, margin

    def update(self, canary: bool, value: float, weight: float, expected: float) -> None:
        """Add one request; `weight` as for TwoArmRate."""
        surprise = value - expected
        gain = self._sign * (surprise / weight if canary else -surprise / (1 - weight)) - self._margin
        worst = 1 / min(weight, 1 - weight) + self._margin
        for bet, stake in enumerate(self.STAKES):
            self._logs[bet] += math.log1p(stake * gain / worst)


class RateLimit(EProcess):
    """One rate against a fixed limit: evidence that it is `above` or `below`."""

    def __init__(self, direction: str, limit: float) -> None:
        """`limit`: between 0 and 1, exclusive."""
        self._limit = limit
        below = (1e-4, limit / 5, limit / 2)
        self._rates = below if direction == "below" else tuple(min(0.99, limit * times) for times in (2, 5, 20))
        super().__init__(len(self._rates))

    def update(self, happened: bool) -> None:
        """Add one request."""
        for bet, rate in enumerate(self._rates):
            self._logs[bet] += math.log(rate / self._limit if happened else (1 - rate) / (1 - self._limit))


class ArmShare(EProcess):
    """Are requests drawn for the canary with the probability that was asked for? (Bayes factor, uniform prior.)"""

    def __init__(self) -> None:
        """No request seen."""
        super().__init__(1)
        self._drawn, self._log_null = [0, 0], 0.0

    def update(self, canary: bool, weight: float) -> None:
        """Add one request; a draw that has probability 0 is a surprise at once."""
        probability = weight if canary else 1 - weight
        self._drawn[canary] += 1
        self._log_null += math.log(probability) if probability > 0 else -1e6
        stable, drawn = self._drawn
        self._logs[0] = math.lgamma(drawn + 1) + math.lgamma(stable + 1) - math.lgamma(drawn + stable + 2)
        self._logs[0] -= self._log_null


def rate_interval(failures: int, requests: int, alpha: float = 0.05) -> tuple[float, float]:
    """An interval that holds a constant rate at all times together with probability 1 - alpha.

    A beta-binomial mixture with Jeffreys' prior against each rate; (0, 1) where nothing was seen.
    """
    if requests <= 0:
        return 0.0, 1.0
    good = requests - failures
    prior = math.lgamma(0.5) * 2 - math.lgamma(1.0)
    mixture = math.lgamma(failures + 0.5) + math.lgamma(good + 0.5) - math.lgamma(requests + 1.0) - prior
    bound, best = mixture + math.log(alpha), failures / requests

    def inside(rate: float) -> bool:
        log = failures * math.log(rate) if failures else 0.0
        return log + (good * math.log1p(-rate) if good else 0.0) >= bound

    def edge(outer: float) -> float:
        inner, outer = min(max(best, _TINY), 1 - _TINY), min(max(outer, _TINY), 1 - _TINY)
        for _ in range(60):
            middle = (inner + outer) / 2
            inner, outer = (middle, outer) if inside(middle) else (inner, middle)
        return inner

    return (0.0 if failures == 0 else edge(0.0)), (1.0 if good == 0 else edge(1.0))


def weighted_mean(weighted: Iterable[tuple[float, float]]) -> float:
    """The weighted mean of e-values, itself an e-value under the intersection of the nulls.

    Weights sum to at most 1; what is missing counts as an e-value of 1.
    """
    pairs = list(weighted)
    total = sum(weight for weight, _ in pairs)
    assert total <= 1 + 1e-9, "the weights of the budget exceed 1"
    return sum(weight * value for weight, value in pairs) + max(0.0, 1 - total)
