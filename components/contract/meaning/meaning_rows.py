"""Whether a batch has as many rows as the earlier ones let expect.

An export that grows each week and a cut to an interval are both normal: a change counts as far only where the rows a
day changed as well, or where the batch begins as the last one did and ends before it, cut off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import datetime

from components.contract.meaning.profile import Profile
from components.core.records import RuleResult

FEW = 3  # snapshots from which on the band is learned from the history
FAR_UNLEARNED, TOLD_UNLEARNED = math.log(10), math.log(2.5)
FAR_LEARNED, TOLD_LEARNED = math.log(3), math.log(1.5)  # at least; else three and two times the largest step


def row_count(profile: Profile, before: Sequence[Profile], factor: float | None) -> list[RuleResult]:
    """fail where the number of rows is far from all of the earlier ones, info where it is unusual.

    Args:
        profile: the batch; one without a row is left to the rules that ask for rows.
        before: earlier ones, oldest first, at least one.
        factor: how many times more or fewer is far; None: learned from the history.
    """
    earlier = [item.rows for item in before if item.rows]
    if not profile.rows or not earlier:
        return []
    distance = _distance(profile.rows, earlier)
    step = max((abs(math.log(b / a)) for a, b in itertools.pairwise(earlier)), default=0.0)
    learned = len(earlier) >= FEW
    far = math.log(factor) if factor else max(FAR_LEARNED, 3 * step) if learned else FAR_UNLEARNED
    told = min(far, max(TOLD_LEARNED, 2 * step) if learned else TOLD_UNLEARNED)
    if distance <= told + 1e-9:
        return []
    is_far = distance > far + 1e-9 and (_rate_is_far(profile, before, far) or _cut_off(profile, before[-1]))
    low, high = min(earlier), max(earlier)
    asked = f"{low / math.exp(far):.0f} to {high * math.exp(far):.0f} rows"
    times = math.exp(distance)
    word = "fewer" if profile.rows < low else "more"
    had = f"{low}" if low == high else f"{low} to {high}"
    note = "" if is_far or distance <= far + 1e-9 else "; rows a day are as before, so the interval is another one"
    reason = f"{profile.rows} rows, {times:.1f} times {word} than the {had} of the accepted snapshots{note}"
    outcome = "fail" if is_far else "info"
    return [RuleResult(rule="meaning: row count", outcome=outcome, observed=profile.rows, limit=asked, reason=reason)]


def _distance(value: float, earlier: Sequence[float]) -> float:
    """How far outside the earlier ones, as a natural logarithm."""
    return max(0.0, math.log(min(earlier) / value), math.log(value / max(earlier)))


def _rate_is_far(profile: Profile, before: Sequence[Profile], far: float) -> bool:
    """Whether the rows a day are far off too; yes where a time range is not known."""
    rate = _rate(profile)
    earlier = [found for item in before if (found := _rate(item))]
    return rate is None or not earlier or _distance(rate, earlier) > far + 1e-9


def _cut_off(profile: Profile, last: Profile) -> bool:
    """Begins where the last one did and ends before it, although no end was asked for."""
    ends = (profile.time_min, profile.time_max, last.time_min, last.time_max)
    if profile.until or profile.since or not all(ends) or profile.rows >= last.rows:
        return False
    begins, end, began, ended = (datetime.fromisoformat(time) for time in ends)
    return abs((begins - began).total_seconds()) <= 86_400 and end < ended


def _rate(profile: Profile) -> float | None:
    """Rows a day of the time range."""
    if not profile.time_min or not profile.time_max or not profile.rows:
        return None
    span = datetime.fromisoformat(profile.time_max) - datetime.fromisoformat(profile.time_min)
    return profile.rows / (1 + span.total_seconds() / 86_400)
