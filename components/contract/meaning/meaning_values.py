"""Changes of one column's values: constant, without a value, another format, another unit. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from statistics import median

from components.contract.meaning.profile import NUMBER, QUANTILES, ColumnProfile
from components.contract.meaning.profile_dates import DATES, DateFormat, twin
from components.core.records import RuleResult

MIN_VALUES = 20
CHANCE = math.log(1e-9)  # of a change that rows drawn as before would show
USUAL = 0.99  # a value in more of the rows than this may well fill a batch
NEW_FORMAT_SHARE, NEW_FORMAT_ROWS, KNOWN_FORMAT_SHARE = 0.005, 3, 0.001
MIDDLE = tuple(QUANTILES.index(share) for share in (0.05, 0.25, 0.5, 0.75, 0.95))
Columns = Sequence[ColumnProfile]


def finding(
    kind: str, column: str, outcome: str, observed: float | str | None, limit: float | str | None, reason: str
) -> RuleResult:
    """A result of the rule `meaning: <kind>`."""
    return RuleResult(
        rule=f"meaning: {kind}", outcome=outcome, observed=observed, limit=limit, subject=column, reason=reason
    )


def constant(now: ColumnProfile, before: Columns) -> list[RuleResult]:
    """One value everywhere, where each earlier snapshot had several; a column of dates may be a day's."""
    earlier = [column for column in before if column.looked_at]
    if not now.constant or not earlier or any(column.constant for column in earlier) or now.date_share >= 0.5:
        return []
    if now.absent_share == 1:
        return []  # all null, by another name
    usual = max(column.categories[0].count / column.looked_at for column in earlier)
    outcome = "fail" if usual <= USUAL and now.looked_at * math.log(usual) < CHANCE else "info"
    value = now.categories[0].value[:60]
    reason = (
        f"{value!r} in all {now.looked_at} values; the accepted snapshots had {_range([c.distinct for c in earlier])} "
        f"different ones, for example {earlier[-1].examples}"
    )
    return [finding("constant", now.name, outcome, value, f"{earlier[-1].distinct} values", reason)]


def null_share(now: ColumnProfile, before: Columns, points: float) -> list[RuleResult]:
    """All null, or a share of rows without a value that is outside what the earlier snapshots had.

    A value is absent where it is missing by the contract or reads `N/A`, `none` and the like. The band is what the
    accepted snapshots had, widened by `points` of a hundred, three times its own width and five standard errors.
    """
    earlier = [column for column in before if column.rows]
    if not now.rows or not earlier:
        return []
    shares = [column.absent_share for column in earlier]
    share, low, high = now.absent_share, min(shares), max(shares)
    had = f"{_percent(low)}" if high - low < 0.001 else f"{_percent(low)} to {_percent(high)}"
    if share == 1:
        if high == 1:
            return []
        sure = high <= USUAL and now.rows * math.log(max(high, 1e-9)) < CHANCE
        reason = f"no value in {now.rows} rows; {had} of the rows had none before, values were {earlier[-1].examples}"
        return [finding("all null", now.name, "fail" if sure else "info", "no value", f"{had} without one", reason)]
    rows = min(column.rows for column in earlier)
    typical = min(max((low + high) / 2, 1 / rows), 1 - 1 / rows)
    error = math.sqrt(typical * (1 - typical) * (1 / now.rows + 1 / rows))
    outside = max(low - share, share - high)
    far = max(points / 100, 3 * (high - low), 5 * error)
    told = max(min(points / 100, 0.03), 2 * (high - low), 4 * error)
    if outside <= told:
        return []
    asked = f"{_percent(max(0.0, low - far))} to {_percent(min(1.0, high + far))}"
    reason = f"{_percent(share)} of the rows have no value, {had} had none before; values are {now.examples}"
    return [finding("null share", now.name, "fail" if outside > far else "info", _percent(share), asked, reason)]


def date_format(now: ColumnProfile, before: Columns, declared: Sequence[str]) -> list[RuleResult]:
    """A date format that no earlier snapshot had, day and month swapped too, or dates that read as none.

    A format that the contract declares, and whose twin with day and month swapped it does not declare, is told only:
    it can be read one way.
    """
    earlier = [column for column in before if column.date_share >= 0.5]
    if not earlier or not now.looked_at:
        return []
    known = [
        item for column in earlier for item in column.formats if item.count >= KNOWN_FORMAT_SHARE * column.looked_at
    ]
    last = earlier[-1].formats[0]
    was = f"{last.pattern} ({last.example!r})"
    found = []
    for item in now.formats:
        share = item.count / now.looked_at
        if share < NEW_FORMAT_SHARE or item.count < NEW_FORMAT_ROWS or _is_known(item, known):
            continue
        swapped = any(old.pattern == twin(item.pattern) for old in known)
        one_way = _plain(item.pattern) in map(_plain, declared) and (
            twin(item.pattern) == item.pattern or _plain(twin(item.pattern)) not in map(_plain, declared)
        )
        what = "day and month changed places" if swapped else "dates are written in another format"
        reason = f"{what}: were {was}, now {_percent(share)} are {item.pattern} ({item.example!r})"
        reason += "; the contract declares it" if one_way else ""
        found.append(
            finding("date format", now.name, "info" if one_way else "fail", item.pattern, last.pattern, reason)
        )
    usual = min(column.date_share for column in before if column.looked_at)
    if not found and now.looked_at >= MIN_VALUES and usual - now.date_share > 0.2:
        odd = f"{_percent(1 - now.date_share)} of the values are no date that can be told"
        reason = f"{odd}, for example {_unlike(now, *DATES)}; dates were written {was}"
        found.append(finding("date format", now.name, "fail", "no known format", last.pattern, reason))
    return found


def number_format(now: ColumnProfile, before: Columns) -> list[RuleResult]:
    """Values that read as numbers before and do not now."""
    earlier = [column for column in before if column.looked_at]
    if now.looked_at < MIN_VALUES or not earlier or now.date_share >= 0.5:
        return []
    usual = min(column.number_share for column in earlier)
    lost = usual - now.number_share
    if usual < 0.95 or lost < 0.05:
        return []
    reason = (
        f"{_percent(now.number_share)} of the values read as a number, {_percent(usual)} or more did; "
        f"were {earlier[-1].examples}, now {_unlike(now, NUMBER)}"
    )
    outcome = "fail" if lost >= 0.2 else "info"
    return [finding("number format", now.name, outcome, _percent(now.number_share), _percent(usual), reason)]


def unit(now: ColumnProfile, before: Columns) -> list[RuleResult]:
    """Numbers whose quantiles all moved by the same power of ten.

    The absolute values of the numbers other than 0 are compared at five quantiles, as logarithms: a changed unit moves
    all by one whole number. What is within five standard errors of the median is no finding.
    """
    earlier = [column for column in before if _measures(column)]
    if not earlier or not _measures(now) or len(earlier) < len([c for c in before if c.looked_at]):
        return []
    moves = [_moves(column, now) for column in earlier]
    power = round(median(moves[-1]))
    moved = min(abs(median(move)) for move in moves)
    last = earlier[-1]
    spread = math.log10(last.magnitudes[MIDDLE[3]] / last.magnitudes[MIDDLE[1]])
    error = 0.93 * spread * math.sqrt(1 / now.nonzero + 1 / last.nonzero)
    off = sum(abs(move - power) for move in moves[-1]) / len(moves[-1])
    if power == 0 or moved < max(0.65, 5 * error) or off > min(0.35, 0.2 + 2 * error):
        return []
    wobble = max((abs(median(_moves(a, b))) for a, b in itertools.pairwise(earlier)), default=0.0)
    outcome = "fail" if wobble < 0.5 else "info"
    times = f"{10 ** abs(power)} times {'larger' if power > 0 else 'smaller'}"
    reason = (
        f"values are about {times} at every quantile: were {_spread(last)}, now {_spread(now)}; did the unit change?"
    )
    return [finding("unit", now.name, outcome, _middle(now), _middle(last), reason)]


def _is_known(item: DateFormat, known: Sequence[DateFormat]) -> bool:
    """Whether some earlier format is or may be this one."""
    for old in known:
        if item.pattern == old.pattern or item.pattern in old.pattern.split(" or "):
            return True
        if old.pattern in item.pattern.split(" or "):
            return True
    return not item.certain and not any(old.certain and not old.ambiguous for old in known)


def _plain(pattern: str) -> str:
    """The date part of a pattern, days and months in two letters."""
    date = re.split(r"'?T'?|HH|H|hh| ", pattern.strip(), maxsplit=1)[0] if "MMM" not in pattern else pattern
    date = re.sub(r"(?<!M)M(?!M)", "MM", date).replace("uuuu", "yyyy")
    return re.sub(r"(?<!d)d(?!d)", "dd", date)


def _unlike(column: ColumnProfile, *expressions: str) -> str:
    """Up to three frequent values that match none of the expressions."""
    read = [re.compile(expression) for expression in expressions]
    odd = [item.value[:60] for item in column.categories if not any(found.search(item.value) for found in read)]
    return ", ".join(repr(value) for value in odd[:3]) or column.examples


def _measures(column: ColumnProfile) -> bool:
    return column.number_share >= 0.95 and column.nonzero >= MIN_VALUES and len(column.magnitudes) == len(QUANTILES)


def _moves(old: ColumnProfile, new: ColumnProfile) -> list[float]:
    """Logarithms to base 10 of the ratios of the middle quantiles."""
    return [math.log10(new.magnitudes[n] / old.magnitudes[n]) for n in MIDDLE]


def _middle(column: ColumnProfile) -> float:
    return column.magnitudes[MIDDLE[2]]


def _spread(column: ColumnProfile) -> str:
    low, middle, high = (f"{column.magnitudes[n]:g}" for n in (MIDDLE[0], MIDDLE[2], MIDDLE[4]))
    return f"{low}, {middle}, {high} (5 %, median, 95 %)"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
