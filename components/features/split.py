"""The split in time: pure functions of event times.

Every outcome of a validation row is known before the first test row was received, and every outcome of a training
row before the first validation row: `embargo_days` lie between them. Rows that fall into the gaps are in no split,
nor are those that came so late that their outcome was not known by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from components.core.errors import UserError

NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class TimeSplit:
    """Row positions by split, in order of time, and the moments that bound them (UTC, inclusive).

    `embargoed` counts the rows in the two gaps, before validation and before test, and those that came too late.
    """

    positions: dict[str, np.ndarray]
    train_until: pd.Timestamp
    validation_from: pd.Timestamp
    validation_until: pd.Timestamp
    test_from: pd.Timestamp
    embargoed: dict[str, int]


def split_by_time(times: pd.Series, test_share: float, validation_share: float, embargo_days: int) -> TimeSplit:
    """Split rows by time with an embargo.

    Args:
        times: event time of each row (UTC), shape (rows,), any order.
        test_share: test starts on the day of the row at this share from the end.
        validation_share: share of all rows taken as the last ones received `embargo_days` or more before test.
        embargo_days: days between the last row of a split and the first of the next.

    Raises:
        UserError: a split would be empty; says which and what to change.
    """
    rows = len(times)
    if rows == 0:
        raise UserError("training set: no clean rows; read a longer interval of the source")
    order = np.argsort(times.to_numpy(), kind="stable")
    ordered = pd.DatetimeIndex(times.iloc[order])
    gap = pd.Timedelta(days=embargo_days)

    test_from = ordered[min(int((1 - test_share) * rows), rows - 1)].normalize()
    test_start = int(ordered.searchsorted(test_from, side="left"))
    validation_until = test_from - gap
    validation_end = min(int(ordered.searchsorted(validation_until, side="right")), test_start)
    if validation_end == 0:
        raise _empty("validation", ordered, embargo_days, test_from)

    wanted = max(1, int(validation_share * rows))
    validation_from = ordered[max(validation_end - wanted, 0)].normalize()
    validation_start = int(ordered.searchsorted(validation_from, side="left"))
    train_until = validation_from - gap
    train_end = min(int(ordered.searchsorted(train_until, side="right")), validation_start)
    if train_end == 0:
        raise _empty("train", ordered, embargo_days, validation_from)

    return TimeSplit(
        positions={
            "train": order[:train_end],
            "validation": order[validation_start:validation_end],
            "test": order[test_start:],
        },
        train_until=train_until,
        validation_from=validation_from,
        validation_until=validation_until,
        test_from=test_from,
        embargoed={"before_validation": validation_start - train_end, "before_test": test_start - validation_end},
    )


def known_in_time(split: TimeSplit, recorded: pd.Series) -> TimeSplit:
    """Leave out the training and validation rows that reached us, or were corrected, after the next split began.

    Whoever trained then did not have them: a late row's outcome was not known in time, however old its event is.

    Args:
        split: by event time.
        recorded: from when each row was known as it is (UTC; see known.py), shape (rows,).

    Raises:
        UserError: all rows of a split came too late.
    """
    positions, embargoed = dict(split.positions), dict(split.embargoed)
    for name, following, begins in (
        ("train", "validation", split.validation_from),
        ("validation", "test", split.test_from),
    ):
        there = positions[name]
        positions[name] = there[(recorded.iloc[there] <= begins).to_numpy()]
        embargoed[f"before_{following}"] += len(there) - len(positions[name])
        if not len(positions[name]):
            raise UserError(
                f"{name} split is empty: all of its {len(there)} rows were added or changed by exports after "
                f"{begins:%Y-%m-%d}, when the {following} rows begin; read a longer interval (source.since), or begin "
                "anew under another home, or with features.restated = anew, if the source was restated"
            )
    return replace(split, positions=positions, embargoed=embargoed)


def check_classes(labels: np.ndarray, split: TimeSplit, by_event: TimeSplit | None = None) -> None:
    """Refuse a split in which all rows have one label.

    Args:
        labels: 0 or 1 a row.
        split: what is trained and measured on.
        by_event: the split before known_in_time() left rows out.

    Raises:
        UserError: names the split and the label, and whether rows of the other one came too late.
    """
    for name, positions in split.positions.items():
        positives = int(labels[positions].sum())
        if positives not in (0, len(positions)):
            continue
        only, other = ("positive", 0) if positives else ("negative", 1)
        what = f"{name} split: all {len(positions)} rows are {only}, so nothing can be learned or measured; "
        before = by_event.positions[name] if by_event else positions
        if late := int((labels[before] == other).sum()):
            raise UserError(
                f"{what}{late} {'positive' if other else 'negative'} rows were left out, since a later export added or "
                "corrected them and they count as known from then only; read a longer interval (source.since), begin "
                "anew under another home, or see features.restated"
            )
        raise UserError(f"{what}read a longer interval, or check model.positive_values")


def _empty(name: str, ordered: pd.DatetimeIndex, embargo_days: int, following: pd.Timestamp) -> UserError:
    return UserError(
        f"{name} split is empty: rows run from {ordered[0]:%Y-%m-%d} to {ordered[-1]:%Y-%m-%d} and none lies "
        f"{embargo_days} days or more before {following:%Y-%m-%d}; read a longer interval (source.since) "
        "or lower evaluation.embargo_days"
    )
