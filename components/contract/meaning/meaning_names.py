"""Categories that were renamed: an old one is gone, a new one has its place, or is spelled almost alike. Pure."""

from __future__ import annotations

import difflib
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from components.contract.meaning.profile import ColumnProfile
from components.core.records import RuleResult

EXPECTED = 10  # rows that a category must have had or must have, before its absence says something: e^-10
MIN_COUNT, MIN_SHARE = 3, 0.001  # of a new category
SPELLED_COUNT, SPELLED_SHARE = 5, 0.02  # of one that is known but for case, punctuation and spaces, to be refused
SHARE_ALONE = 0.05  # a new name with nothing in common needs this share, and few categories beside it
FEW_CATEGORIES = 30
ALIKE, ALIKE_OF_MANY = 0.6, 0.8  # the second where there are more than FEW_CATEGORIES
COMMON = 3  # categories that share a word: `Bank`, `Inc.` tells none from the other
SHOWN = 5
Columns = Sequence[ColumnProfile]


@dataclass(frozen=True)
class _Pair:
    """An old category and a new one; `how` is why they are taken for the same."""

    old: str
    new: str
    old_share: float
    new_share: float
    left_share: float
    how: str
    score: float
    sure: bool = True


def near_renames(now: ColumnProfile, before: Columns, declared: frozenset[str]) -> list[RuleResult]:
    """New categories that take the place of known ones.

    A category is new where no earlier snapshot had it and one of its share would have been seen (EXPECTED rows); an
    old one is diminished where at least half of its expected rows, and EXPECTED, are missing. New ones are matched
    with old ones: spelled the same but for case, punctuation, spaces and accents (the old one may stay); one or two
    characters apart; alike in words; or of the same share where nothing else fits.
    Told only: another spelling in few rows while the old one stays; two values that the contract both declares; names
    that differ in digits only (periods, numbers); alike words in a column of more categories than a profile keeps,
    where a rare one may be known; a column whose categories come and go in the history itself, or
    whose history is spelled in several ways.

    Args:
        now: the column of the batch; columns of dates, measured numbers and single texts have no categories.
        before: the column in the accepted snapshots, oldest first.
        declared: values that the contract lists.
    """
    earlier = [column for column in before if column.looked_at]
    if not earlier or not now.looked_at or not all(_has_categories(column) for column in [now, *earlier]):
        return []
    turns = _turns_over(earlier)
    found, used = [], set[str]()
    candidates = sorted(_pairs(now, earlier), key=lambda pair: (-pair.score, pair.old, pair.new))
    for pair in candidates:
        if pair.old in used or pair.new in used:
            continue
        used |= {pair.old, pair.new} if pair.how != "spelled" else {pair.new}
        told = turns or not pair.sure or {pair.old, pair.new} <= declared
        found.append(_told(now, pair, "info" if told else "fail"))
    found.sort(key=lambda result: result.outcome != "fail")
    return found[:SHOWN]


def similarity(old: str, new: str, common: frozenset[str] = frozenset()) -> float:
    """From 0 to 1: how alike two names are, ignoring case, punctuation and `common` words; by letters or by words."""
    first, second = ([word for word in _words(text) if word not in common] for text in (old, new))
    a, b = _normal("".join(first)), _normal("".join(second))
    by_letters = difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() if a and b else 0.0
    shared = sum(any(_same_word(x, y) for y in second) for x in first)
    by_words = 2 * shared / (len(first) + len(second)) if len(first) + len(second) > 2 else 0.0
    return max(by_letters, min(by_words, 1.0))


def same_values(old: ColumnProfile, new: ColumnProfile) -> float:
    """From 0 to 1: the share of the values that two columns have in common."""
    first, second = _shares(old), _shares(new)
    return sum(min(share, second.get(value, 0.0)) for value, share in first.items())


def _pairs(now: ColumnProfile, before: Columns) -> Iterable[_Pair]:
    shares, last = _shares(now), _shares(before[-1])
    known = {value: share for column in before for value, share in _shares(column).items()}
    gone = {value: share for value, share in last.items() if _diminished(share, shares.get(value, 0.0), now.looked_at)}
    sloppy, common = _sloppy(last), _common_words(last)
    for new in _appeared(now, before, known):
        for old, share in last.items():
            if _spelled(old, new):
                many = shares[new] >= SPELLED_SHARE and now.looked_at * shares[new] >= SPELLED_COUNT
                sure = old in gone or (many and not sloppy)
                yield _Pair(old, new, share, shares[new], shares.get(old, 0.0), "spelled", 3.0, sure)
            elif old in gone and _takes_place(share, shares, old, new, now, before[-1]):
                yield from _renamed(old, new, share, shares, now, common, _tail(before[-1]) == 0)


def _renamed(
    old: str,
    new: str,
    share: float,
    shares: dict[str, float],
    now: ColumnProfile,
    common: frozenset[str],
    complete: bool,
) -> Iterable[_Pair]:
    """A pair where the new one takes the place of the old one and the names or the shares fit."""
    left, sure = shares.get(old, 0.0), not _differs_in_digits(old, new)
    alike = similarity(old, new, common)
    enough = ALIKE if len(now.categories) <= FEW_CATEGORIES else ALIKE_OF_MANY
    vanished = left <= 0.02 * share
    if _close(old, new) and not now.masked:
        yield _Pair(old, new, share, shares[new], left, "spelled almost alike", 2.0 + alike, sure)
    elif alike >= enough and not now.masked:
        yield _Pair(old, new, share, shares[new], left, "alike in words", 1.0 + alike, sure and complete)
    elif vanished and min(share, shares[new]) >= SHARE_ALONE and len(now.categories) <= FEW_CATEGORIES:
        yield _Pair(old, new, share, shares[new], left, "of the same share", alike, sure)


def _told(now: ColumnProfile, pair: _Pair, outcome: str) -> RuleResult:
    left = "is gone" if pair.left_share <= 0.02 * pair.old_share else f"is now {100 * pair.left_share:.1f} %"
    kind = "shape" if now.masked else "near-rename"
    how = "spelled alike but for case, punctuation or spaces" if pair.how == "spelled" else pair.how
    reason = (
        f"{pair.old!r} ({100 * pair.old_share:.1f} % of the last accepted snapshot) {left}, {pair.new!r} "
        f"({100 * pair.new_share:.1f} %) is new and {how}: renamed?"
    )
    return RuleResult(
        rule=f"meaning: {kind}", outcome=outcome, observed=pair.new, limit=pair.old, subject=now.name, reason=reason
    )


def _has_categories(column: ColumnProfile) -> bool:
    if column.masked:
        return True
    measured = column.number_share >= 0.95 and column.distinct > 20
    return column.date_share < 0.5 and not measured and column.distinct <= column.looked_at / 2


def _shares(column: ColumnProfile) -> dict[str, float]:
    return {item.value: item.count / column.looked_at for item in column.categories} if column.looked_at else {}


def _appeared(now: ColumnProfile, before: Columns, known: dict[str, float]) -> list[str]:
    """Values that no earlier snapshot had, although it would have shown them; most frequent first, at most 20."""
    seen = max(column.looked_at for column in before)
    tail = max(_tail(column) for column in before)
    found = []
    for item in now.categories:
        share = item.count / now.looked_at
        if item.value in known or item.count < MIN_COUNT or share < MIN_SHARE:
            continue
        if seen * share >= EXPECTED and share > 3 * tail:
            found.append(item.value)
    return found[:20]


def _tail(column: ColumnProfile) -> float:
    """The largest share that a value which is not kept may have."""
    kept = sum(item.count for item in column.categories)
    return column.categories[-1].count / column.looked_at if kept < column.looked_at else 0.0


def _diminished(old: float, new: float, rows: int) -> bool:
    """Whether at least half of the expected rows are missing, and more than chance takes (six deviations)."""
    lost = (old - new) * rows
    return new <= old / 2 and lost >= EXPECTED and lost >= min(6 * math.sqrt(old * rows), old * rows * 0.999)


def _takes_place(
    old_share: float, shares: dict[str, float], old: str, new: str, now: ColumnProfile, last: ColumnProfile
) -> bool:
    """Whether the new one has about as many rows as the old one lost: within half more and three deviations."""
    lost, gained = old_share - shares.get(old, 0.0), shares[new]
    noise = 3 * math.sqrt(1 / (now.looked_at * gained) + 1 / (last.looked_at * old_share))
    return abs(math.log(gained / lost)) <= math.log(1.5) + noise


def _turns_over(before: Columns) -> bool:
    """Whether in each step of a history of three or more one category of weight went and another came."""
    steps = list(itertools.pairwise(before))
    return len(steps) > 1 and all(
        any(_diminished(share, _shares(b).get(value, 0.0), b.looked_at) for value, share in _shares(a).items())
        and bool(_appeared(b, [a], _shares(a)))
        for a, b in steps
    )


def _sloppy(shares: dict[str, float]) -> bool:
    """Whether the same name is already spelled in two ways."""
    names = [normal for value in shares if (normal := _normal(value))]
    return len(names) > len(set(names))


def _spelled(old: str, new: str) -> bool:
    normal = _normal(new)
    return bool(normal) and old != new and _normal(old) == normal


def _normal(text: str) -> str:
    """Letters and digits only, no case, no accents."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(sign for sign in plain if sign.isalnum())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _common_words(values: Iterable[str]) -> frozenset[str]:
    """Words that stand in COMMON or more of at least seven values."""
    texts = [set(_words(value)) for value in values]
    counts = Counter(itertools.chain.from_iterable(texts))
    return frozenset(word for word, count in counts.items() if count >= COMMON and len(texts) > 2 * COMMON)


def _same_word(first: str, second: str) -> bool:
    """The same word, or the same beginning: `explained`, `explanation`."""
    common = min(len(first), len(second))
    return first == second or (common >= 4 and first[: max(4, common - 3)] == second[: max(4, common - 3)])


def _differs_in_digits(old: str, new: str) -> bool:
    """Whether only digits differ: `week 31`, `week 32`."""
    return bool(re.search(r"\d", old + new)) and re.sub(r"\d+", "#", old) == re.sub(r"\d+", "#", new)


def _close(old: str, new: str) -> bool:
    """Whether one or two characters are put in, left out or changed; none in codes of under five."""
    a, b = _normal(old), _normal(new)
    allowed = 2 if min(len(a), len(b)) >= 10 else 1 if min(len(a), len(b)) >= 5 else 0
    return abs(len(a) - len(b)) <= allowed and _distance(a, b) <= allowed


def _distance(a: str, b: str) -> int:
    """Levenshtein's: single characters put in, left out or changed."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]
