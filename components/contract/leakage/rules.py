"""Leakage: does a row know its own outcome, or does a test row stand in training? Pure: measures in, rules out.

Every rule says what was seen, what was asked and why. Too few rows of one outcome to tell: insufficient, which is
never a pass. What is measured, and where, is in leakage_measures.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from components.core.recipe import Leakage
from components.core.records import RuleResult

PURE = 0.995  # of the rows that carry a mark, to say that it stands with one outcome only
CHANCE = 1e-6  # for all marks of one rule together, were they strewn at random
RECURS = 1e-3  # that texts recur this often by themselves
TOLD = 3  # examples in a reason


@dataclass(frozen=True)
class Counts:
    """Rows grouped by a score: (groups,) scores, and how many rows of either outcome have each."""

    scores: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray


@dataclass(frozen=True)
class Separation:
    """How well a score separates the outcomes: the AUC, 0.5 to 1 whichever way it points, with a 95 % interval."""

    auc: float
    low: float
    high: float
    positives: int
    negatives: int
    where: str = ""

    @property
    def certain(self) -> float:
        """What is held against the limit: the estimate on all rows, the interval's lower end on a part of them."""
        return self.low if self.where else self.auc

    @property
    def text(self) -> str:
        """For people."""
        rows = f"{self.positives} positive and {self.negatives} negative rows"
        return f"AUC {self.auc:.3f} ({self.low:.3f} to {self.high:.3f}) on {rows}{self.where and f' of {self.where}'}"


@dataclass(frozen=True)
class Mark:
    """A yes/no fact about rows (a token is there, a value is missing): rows of either outcome that have it."""

    name: str
    positives: int
    negatives: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Twin:
    """Two rows with nearly the same text: their keys and the Jaccard index."""

    row: str
    other: str
    similarity: float


@dataclass(frozen=True)
class Recurrence:
    """How many held-out rows have a twin in training, and how many training rows have one among themselves.

    Among themselves: `apart` days or more away, as a held-out row is from training; `reach` is the share of the
    training rows that are that far from one, on average.
    """

    split: str
    rows: int
    twins: int
    training_rows: int
    training_twins: int
    apart: int = 0
    reach: float = 1.0
    examples: tuple[Twin, ...] = ()

    def expected(self, twins: float, rows: float) -> float:
        """Share with a twin among all training rows, where `twins` of `rows` have one among `reach` of them.

        Every training row is taken for another chance of a twin.
        """
        return float(1 - (1 - twins / rows) ** (1 / self.reach))


def separation(counts: Counts, where: str = "") -> Separation:
    """AUC by ranks with ties counted half, NaN where an outcome is absent; interval by Hanley and McNeil (1982)."""
    order = np.argsort(counts.scores, kind="stable")
    positives, negatives = counts.positives[order].astype(float), counts.negatives[order].astype(float)
    _, group = np.unique(counts.scores[order], return_inverse=True)
    positives, negatives = np.bincount(group, positives), np.bincount(group, negatives)
    all_positive, all_negative = positives.sum(), negatives.sum()
    if not all_positive or not all_negative:
        return Separation(math.nan, math.nan, math.nan, int(all_positive), int(all_negative), where)
    below = np.cumsum(negatives) - negatives
    auc = float((positives * (below + negatives / 2)).sum() / (all_positive * all_negative))
    auc = max(auc, 1 - auc)
    first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = (auc * (1 - auc) + (all_positive - 1) * (first - auc**2) + (all_negative - 1) * (second - auc**2)) / (
        all_positive * all_negative
    )
    reach = 1.96 * math.sqrt(max(spread, 0.0))
    return Separation(auc, max(auc - reach, 0.0), min(auc + reach, 1.0), int(all_positive), int(all_negative), where)


def cross_fitted(halves: np.ndarray) -> Counts:
    """Scores of categories that no row gave itself: each half is scored with the rates of the other half.

    Args:
        halves: (categories, 2 halves, 2 outcomes) rows; a category with no row in the other half gets the base rate.
    """
    total = halves.sum(axis=(0, 1))
    base = total[1] / max(total.sum(), 1)
    other = halves[:, ::-1, :]
    rates = (other[:, :, 1] + base) / (other.sum(axis=2) + 1)
    return Counts(rates.ravel(), halves[:, :, 1].ravel(), halves[:, :, 0].ravel())


def tells_outcome(
    name: str, subject: str, seen: Sequence[Separation], limits: Leakage, advice: str, required: bool
) -> RuleResult:
    """One column or feature alone against the outcome of its own row.

    Args:
        seen: separations of its value or its category, of all rows or of single splits.
        required: it feeds the model, so rows too few to tell are no pass.
    """
    asked = f"below {limits.max_auc:g}"
    enough = [one for one in seen if min(one.positives, one.negatives) >= limits.min_positives]
    if not enough:
        most = max((min(one.positives, one.negatives) for one in seen), default=0)
        why = f"{most} rows of the rarer outcome have a value; {limits.min_positives} are needed to tell"
        return _result(name, "insufficient" if required else "info", None, asked, subject, why)
    worst = max(enough, key=lambda one: one.certain)
    if worst.certain < limits.max_auc:
        return _result(name, "pass", round(worst.auc, 4), asked, subject, worst.text)
    why = f"tells the outcome of its own row by itself: {worst.text}; {advice}"
    return _result(name, "fail", round(worst.auc, 4), asked, subject, why)


def stands_with_one_outcome(
    name: str, subject: str, marks: Sequence[Mark], rows: tuple[int, int], limits: Leakage, advice: str
) -> RuleResult:
    """Marks that are there with one outcome only, or that alone separate the outcomes.

    A mark counts where it covers `limits.min_mark_share` of an outcome's rows and is too pure for chance.

    Args:
        rows: positive and negative rows in all.
    """
    asked = f"no mark on {100 * limits.min_mark_share:g} % of one outcome only"
    if min(rows) < limits.min_positives:
        why = f"{min(rows)} rows of the rarer outcome; {limits.min_positives} are needed to tell"
        return _result(name, "insufficient", None, asked, subject, why)
    told = [text for mark in marks if (text := _given_away(mark, rows, len(marks), limits))]
    if not told:
        return _result(name, "pass", 0.0, asked, subject, "")
    more = f" (and {len(told) - TOLD} more)" if len(told) > TOLD else ""
    return _result(name, "fail", float(len(told)), asked, subject, f"{'; '.join(told[:TOLD])}{more}; {advice}")


def _given_away(mark: Mark, rows: tuple[int, int], tests: int, limits: Leakage) -> str:
    """What a mark gives away, in words; "" where nothing."""
    carried = (mark.positives, mark.negatives)
    shares = [part / whole for part, whole in zip(carried, rows, strict=True)]
    for side, outcome in enumerate(("positive", "negative")):
        with_it, covered = carried[side], shares[side]
        pure = with_it / max(sum(carried), 1)
        base = rows[side] / sum(rows)
        if covered >= limits.min_mark_share and pure >= PURE and _chance(sum(carried), pure, base) * tests < CHANCE:
            return (
                f"{mark.name}: in {with_it} of {rows[side]} {outcome} rows and in {sum(carried) - with_it} others"
                + (f", for example rows {', '.join(mark.examples)}" if mark.examples else "")
            )
    auc = 0.5 + abs(shares[0] - shares[1]) / 2
    return f"{mark.name}: by itself AUC {auc:.3f}" if auc >= limits.max_auc else ""


def _chance(count: int, pure: float, base: float) -> float:
    """Chernoff's bound of seeing a share `pure` or more in `count` rows drawn at the base rate."""
    if pure <= base:
        return 1.0
    distance = pure * math.log(pure / base) + ((1 - pure) * math.log((1 - pure) / (1 - base)) if pure < 1 else 0.0)
    return math.exp(-count * distance)


def recurs(name: str, subject: str, seen: Recurrence, limit: float, masked: bool) -> RuleResult:
    """Held-out rows with a twin in training, beyond what the training texts recur among themselves.

    Templates recur by themselves and do so within training too, as far apart; a copy put on both sides raises only the
    held-out share. Refused where the excess passes the limit and is more than chance (binomial tail below 1 in 1,000).
    """
    from scipy.special import bdtrc

    asked = f"excess at most {100 * limit:g} %"
    if not seen.rows or not seen.training_rows:
        return _result(name, "insufficient", None, asked, subject, "there is no text to compare")
    share, expected = seen.twins / seen.rows, seen.expected(seen.training_twins, seen.training_rows)
    excess = share - expected
    told = (
        f"{seen.twins} of {seen.rows} {seen.split} rows ({100 * share:.1f} %) have a twin in training; by how training "
        f"texts recur among themselves {seen.apart} days apart, {100 * expected:.1f} % would"
    )
    usual = seen.expected(seen.training_twins + 1, seen.training_rows + 2)
    by_chance = float(bdtrc(seen.twins - 1, seen.rows, usual)) if seen.twins else 1.0
    if excess <= limit or by_chance >= RECURS:
        return _result(name, "pass", round(max(excess, 0.0), 4), asked, subject, told)
    pairs = ", ".join(
        f"{'•••' if masked else twin.row} and {'•••' if masked else twin.other} ({twin.similarity:.2f})"
        for twin in seen.examples[:TOLD]
    )
    advice = "take such rows out of one side, or keep those of one customer or campaign in one split"
    return _result(name, "fail", round(excess, 4), asked, subject, f"{told}; for example {pairs}; {advice}")


def none_of(name: str, subject: str, rows: int, broken: int, why: str, asked: str = "0 rows") -> RuleResult:
    """A rule that no row may break; no row to look at is no evidence."""
    if not rows:
        return _result(name, "insufficient", None, asked, subject, "there is no row to look at")
    return _result(name, "fail" if broken else "pass", float(broken), asked, subject, why if broken else "")


def _result(name: str, outcome: str, observed: float | str | None, limit: str, subject: str, reason: str) -> RuleResult:
    return RuleResult(rule=name, outcome=outcome, observed=observed, limit=limit, subject=subject, reason=reason)
