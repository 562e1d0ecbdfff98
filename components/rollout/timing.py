"""Slow or not: each request against stable's quantile at the moment, in order of arrival, ended or not.

A request is slow as soon as its age passes the limit, so a hang needs no time-out. Requests are judged in the order in
which they arrived and never in the order in which they ended: the slow ones end last, and whoever stops looking in
between would have seen the fast ones only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from components.rollout.evalues import RunningQuantile, rate_interval
from components.rollout.margins import LATENCY_LEVELS, Margins
from components.rollout.observations import Observation

Flags = tuple[bool, bool | None]  # the drawn arm was slow; the mirrored canary was slow, None where there is none
Slow = dict[str, Flags]  # by latency level


class Timing:
    """The latency side of one stage."""

    def __init__(self, margins: Margins, shadow: bool, baseline: Sequence[float]) -> None:
        """`baseline`: seconds that stable took before the stage; `shadow`: times at the model are compared."""
        self._margins, self._shadow = margins, shadow
        self._usual = {name: RunningQuantile(level, baseline) for name, level in LATENCY_LEVELS.items()}
        self._ahead = dict.fromkeys(LATENCY_LEVELS, 0)  # arrivals that were judged before they ended

    def usual(self, name: str) -> float | None:
        """Stable's quantile now, seconds; None while it warms up."""
        return self._usual[name].seconds

    def ended(self, seen: Observation, counts: bool) -> Slow:
        """Judge the next arrival, which has ended: the levels at which it was not judged before.

        `counts`: whether its draw tells of the two arms; one that does not is passed over.
        """
        slow: Slow = {}
        for name in LATENCY_LEVELS:
            if self._ahead[name]:
                self._ahead[name] -= 1
            elif counts and (flags := self._judge(name, seen)):
                slow[name] = flags
        return slow

    def open(
        self,
        arrivals: Sequence[Observation],
        counts: Callable[[Observation], bool],
        tell: Callable[[Observation, Slow], None],
    ) -> None:
        """Judge the arrivals after the last that ended, as far as each is slow by now or has ended.

        The first that may still be fast holds up those behind it, for at most the limit.
        """
        for name in LATENCY_LEVELS:
            for seen in arrivals[self._ahead[name] :]:
                if seen.open and not (seen.drawn_arm and self._is_late(name, seen)):
                    break
                self._ahead[name] += 1
                if counts(seen) and (flags := self._judge(name, seen)):
                    tell(seen, {name: flags})

    def _judge(self, name: str, seen: Observation) -> Flags | None:
        """None while the quantile warms up; stable's time then moves the quantile."""
        usual, limit = self._limits(name)
        flags = None
        if usual is not None and limit is not None:
            own = seconds_of(seen, self._shadow) > (limit if seen.canary else usual)
            flags = own, None if seen.mirrored is None else seen.mirrored.seconds > limit
        if not seen.canary:
            self._usual[name].update(seconds_of(seen, self._shadow))
        return flags

    def _is_late(self, name: str, seen: Observation) -> bool:
        """Whether it is slow whatever comes."""
        usual, limit = self._limits(name)
        if usual is None or limit is None:
            return False
        return seen.own.seconds > (limit if seen.canary else usual)

    def _limits(self, name: str) -> tuple[float | None, float | None]:
        usual = self._usual[name].seconds
        if usual is None:
            return None, None
        return usual, max(usual * self._margins.latency_ratio, usual + self._margins.latency_slack_seconds)


class Baseline:
    """Stable alone, before the canary had traffic: how fast it was and how often it failed."""

    def __init__(self, seen: Sequence[Observation] = ()) -> None:
        """Requests that stable alone answered, both versions being up and warm."""
        answered = [one for one in seen if one.own.score is not None]
        self.seconds = {shadow: [seconds_of(one, shadow) for one in answered] for shadow in (True, False)}
        self.requests, self.failed = len(seen), sum(one.own.failed or one.own.invalid for one in seen)
        self.most_failing = rate_interval(self.failed, self.requests)[1]  # what its failure rate may have been

    def slowed(self, timing: Timing, margins: Margins) -> str:
        """Stable itself became slow since the canary came: then "no slower than stable" says little."""
        usual, before = timing.usual("latency_p50"), self.seconds[False]
        if usual is None or len(before) < RunningQuantile.WARM_UP:
            return ""
        median = sorted(before)[len(before) // 2]
        if usual <= median * margins.stable_slowdown + margins.latency_slack_seconds:
            return ""
        return f"stable slowed from {median * 1000:.0f} to {usual * 1000:.0f} ms (p50) since the canary came"


def seconds_of(seen: Observation, shadow: bool) -> float:
    """What the caller waited; in shadow the time at stable alone, as the mirrored twin's is at the canary alone."""
    return seen.model_seconds if shadow else seen.own.seconds
