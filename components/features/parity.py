"""Parity: what online reads would have answered at a moment of the past, against what training saw.

The history is replayed into a scratch store up to each sampled moment, and read there by the code that the scoring
service uses. A difference is skew: the model would be served other values than it learned from.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from components.features.latest.sqlite import SqliteLatest
from components.features.on_demand import OnDemandCode
from components.features.online import OnlineReader, fill
from components.features.repository import REQUEST, TEXT, Service

MOMENTS, ROWS_A_MOMENT, EXAMPLES = 12, 25, 5
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """One value that differs; None where there is none."""

    feature: str
    entities: dict[str, str]
    moment: str
    offline: float | None
    online: float | None


@dataclass(frozen=True)
class Parity:
    """What was compared. `skew`: the share of values that differ (0 to 1)."""

    rows: int
    moments: int
    values: int
    differing: int
    by_feature: dict[str, int]
    examples: tuple[Difference, ...]

    @property
    def skew(self) -> float:
        """The share that differs; NaN where nothing was compared."""
        return self.differing / self.values if self.values else math.nan

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"skew": self.skew if self.values else None}


def measure_parity(
    frame: pd.DataFrame,
    project: str,
    service: Service,
    features: Sequence[str],
    history: Path,
    ttl: timedelta,
    code: OnDemandCode | None = None,
) -> Parity:
    """Compare sampled rows of a training set with online reads as of their moments.

    Args:
        frame: the rows: event_timestamp (UTC), the join keys, text, `request:<name>`, and the features as training has
            them.
        project: the feature project's name.
        service: holds the features.
        features: which are compared.
        history: the folder of history tables that the rows were joined from.
        ttl: the recipe's time to live.
        code: what computes the service's on-demand features.
    """
    rows = sample(frame)
    found: list[Difference] = []
    values = 0
    by_feature = dict.fromkeys(features, 0)
    with tempfile.TemporaryDirectory(prefix="pilotline-parity-") as scratch:
        store = SqliteLatest(Path(scratch) / "online.db")
        with OnlineReader(store, project, service, features, ttl, "default", code) as reader:
            for moment, there in rows.groupby("event_timestamp", sort=True):
                fill(store, project, service, history, moment.to_pydatetime())
                for row in there.to_dict("records"):
                    keys = {key: str(row[key]) for key in reader.join_keys}
                    online = reader.read(keys, _request(row, service), at=moment.to_pydatetime())
                    for name in features:
                        values += 1
                        pair = _number(row[name]), online[name]["value"]
                        if not _same(*pair):
                            by_feature[name] += 1
                            found.append(Difference(name, keys, moment.isoformat(), *pair))
    moments = rows["event_timestamp"].nunique()
    return Parity(len(rows), moments, values, len(found), by_feature, tuple(found[:EXAMPLES]))


def _request(row: dict[str, Any], service: Service) -> dict[str, Any]:
    """What the row's request carried, as the scoring service gets it."""
    given = {name.removeprefix(REQUEST): str(value) for name, value in row.items() if name.startswith(REQUEST)}
    return given | {key: str(row[key]) for key in service.join_keys} | {TEXT: str(row.get(TEXT) or "")}


def sample(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of up to twelve moments, up to 25 of each; the same for the same frame.

    The first and the last moment are always taken: the edges are where windows and delays go wrong.
    """
    draw = random.Random(len(frame))  # noqa: S311 - a sample that can be repeated, not a secret
    times = sorted(frame["event_timestamp"].unique())
    chosen = {times[0], times[-1]} | set(draw.sample(times, min(MOMENTS, len(times)))) if times else set()
    some = frame[frame["event_timestamp"].isin(chosen)]
    nth = some.groupby("event_timestamp").cumcount()
    return some[nth < ROWS_A_MOMENT]


def _number(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _same(offline: float | None, online: float | None) -> bool:
    if offline is None or online is None:
        return offline is online
    return math.isclose(offline, online, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
