"""The golden set: held-out rows whose scores were registered, asked of the running replica again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from components.core.protocols import GoldenRow
from components.core.records import RuleResult
from components.rollout.observations import valid_score


def golden_row(rows: Sequence[Mapping[str, Any]], scores: Mapping[str, float], tolerance: float) -> GoldenRow | None:
    """The first of these rows that has a registered score, with it; None where none has.

    A replica is ready when it gives this score again. A tolerance of a half would accept anything: None then too.
    """
    for row in rows:
        if valid_score(score := scores.get(str(row["row_id"]))) and score is not None and tolerance < 0.5:
            return GoldenRow(dict(row["features"]), str(row["text"]), score, tolerance)
    return None


def golden_rules(
    served: Sequence[float | None], evaluated: Sequence[float], tolerance: float, subject: str
) -> tuple[RuleResult, RuleResult]:
    """Is every golden answer a probability, and the one that was evaluated?

    Args:
        served: one score a row; None where the replica gave none, also when asked again.
        evaluated: the scores in the evidence, in the same order.
        tolerance: largest absolute difference that is still the same score.
        subject: where in the rollout, for the record.

    Returns:
        Rules `golden_valid` and `golden_parity`; insufficient where there is no row, a fail needs no statistics.
    """
    total = len(evaluated)
    valid = [(float(score), wanted) for score, wanted in _pairs(served, evaluated) if score is not None]
    broken = total - len(valid)
    differences = [abs(score - wanted) for score, wanted in valid]
    wrong = sum(not difference <= tolerance for difference in differences)
    largest = max(differences, default=None)
    parity = f"{wrong} of {len(valid)} golden scores differ by more than {tolerance:g} from the evaluated ones"
    if valid and not wrong:
        parity += f"; share of such rows below {1 - 0.05 ** (1 / len(valid)):.1%} (95 %)"
    return (
        _rule("golden_valid", total, broken > 0, broken, 0, f"{broken} of {total} golden answers are none", subject),
        _rule("golden_parity", len(valid), wrong > 0, largest, tolerance, parity, subject),
    )


def _pairs(served: Sequence[float | None], evaluated: Sequence[float]) -> list[tuple[float | None, float]]:
    """Pairs by position; what is missing at the end, or is no probability, is None."""
    padded = [*served, *[None] * (len(evaluated) - len(served))][: len(evaluated)]
    return [(score if valid_score(score) else None, wanted) for score, wanted in zip(padded, evaluated, strict=True)]


def _rule(
    name: str, seen: int, failed: bool, observed: float | None, limit: float, reason: str, subject: str
) -> RuleResult:
    outcome = "fail" if failed else "pass" if seen else "insufficient"
    rounded = None if observed is None or not seen else round(observed, 9)
    return RuleResult(rule=name, outcome=outcome, observed=rounded, limit=limit, subject=subject, reason=reason)
