"""Parity: what online reads would have answered at a moment of the past, against what training saw.

The history is replayed into a scratch store up to each sampled moment, and read there by the code that the scoring
service uses. So are the stores that serve, at the moment up to which they are filled, against the offline join as of
then. A difference is skew: the model would be served other values than it learned from.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from components.features.latest.entries import LatestStore, key_of
from components.features.latest.sqlite import SqliteLatest
from components.features.on_demand import OnDemandCode
from components.features.online import EPOCH, OnlineReader, fill, table_of
from components.features.repository import REQUEST, TEXT, Service, View

MOMENTS, ROWS_A_MOMENT, ENTITIES, EXAMPLES = 12, 25, 100, 5
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
class Served:
    """What was compared of a store that serves, as of the moment `at` up to which it is filled (ISO 8601, UTC).

    ahead: values left out, since the store holds a later event of them (a push) than the history. at is "" where the
    store was never filled with one of the views.
    """

    store: str
    at: str
    entities: int
    values: int
    differing: int
    ahead: int

    @property
    def insufficient(self) -> str:
        """Why the comparison says nothing of the store; "" where it does."""
        if not self.at:
            return "was never filled with this feature service; materialize it"
        if self.values <= self.ahead:
            of = f"{self.ahead} of {self.values + self.ahead} values"
            return f"holds later events of {of} than the history; make a newer training set, or rebuild the store"
        return ""


@dataclass(frozen=True)
class Parity:
    """What was compared. rows, moments, values and differing: of the replay; by_feature and examples: of both."""

    rows: int
    moments: int
    values: int
    differing: int
    by_feature: dict[str, int]
    examples: tuple[Difference, ...]
    served: tuple[Served, ...] = ()

    @property
    def compared(self) -> tuple[int, int]:
        """Values that were compared, in replay and in stores that serve, and those of them that differ."""
        values = self.values + sum(one.values for one in self.served)
        return values, self.differing + sum(one.differing for one in self.served)

    @property
    def skew(self) -> float:
        """The share that differs (0 to 1); NaN where nothing was compared."""
        values, differing = self.compared
        return differing / values if self.values else math.nan

    @property
    def insufficient(self) -> tuple[str, ...]:
        """The stores of which nothing is said, and why, a line each."""
        return tuple(f"store {one.store} {one.insufficient}" for one in self.served if one.insufficient)

    def with_served(self, served: Served, found: Sequence[Difference]) -> Parity:
        """Beside a store that serves; its differences are shown first."""
        by_feature = dict(self.by_feature)
        for one in found:
            by_feature[one.feature] = by_feature.get(one.feature, 0) + 1
        examples = (*found, *self.examples)[:EXAMPLES]
        return replace(self, by_feature=by_feature, examples=examples, served=(*self.served, served))

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


def measure_served(
    store: LatestStore,
    name: str,
    frame: pd.DataFrame,
    project: str,
    service: Service,
    features: Sequence[str],
    until: datetime,
    ttl: timedelta,
    offline: Callable[[pd.DataFrame], pd.DataFrame],
    code: OnDemandCode | None = None,
) -> tuple[Served, list[Difference]]:
    """Compare what a store answers at the moment up to which it is filled with the offline join as of then.

    Args:
        store: is closed.
        name: what it is called in the result.
        frame, project, service, features, ttl, code: as measure_parity has them; entities are taken from the rows.
        until: the end of the history that `offline` reads (UTC); the store may be filled further.
        offline: rows with event_timestamp, join keys and what a request carries → the service's features.

    Returns:
        what was compared and each difference; nothing, with an empty `at`, where the store was never filled.
    """
    with OnlineReader(store, project, service, features, ttl, "default", code) as reader:
        views = [view for view in service.views if set(features) & set(view.features)]
        marks = [json.loads(store.mark(table_of(project, view.name)) or "{}").get("until", "") for view in views]
        if not any(marks) and views:
            return Served(name, "", 0, 0, 0, 0), []
        moment = min(max((datetime.fromisoformat(mark) for mark in marks if mark), default=until), until)
        some = _entities(frame, reader.join_keys).assign(event_timestamp=pd.Timestamp(moment).as_unit("us"))
        expected = offline(some)
        found: list[Difference] = []
        values = ahead = 0
        for row, known in zip(some.to_dict("records"), expected.to_dict("records"), strict=True):
            keys = {key: str(row[key]) for key in reader.join_keys}
            online = reader.read(keys, _request(row, service), at=moment)
            later = _ahead(store, project, views, keys, moment)
            for feature in features:
                if feature in later:
                    ahead += 1
                    continue
                values += 1
                pair = _number(known[feature]), online[feature]["value"]
                if not _same(*pair):
                    found.append(Difference(feature, keys, moment.isoformat(), *pair))
    return Served(name, moment.isoformat(), len(some), values, len(found), ahead), found


def _ahead(store: LatestStore, project: str, views: Sequence[View], keys: dict[str, str], at: datetime) -> set[str]:
    """Features of which the store holds a later event: what it held at the moment is gone."""
    asked = [(table_of(project, view.name), key_of([keys[key] for key in sorted(view.join_keys)])) for view in views]
    entries = store.read(asked)
    now = (at - EPOCH) // timedelta(microseconds=1)
    return {
        name
        for view, entry in zip(views, entries, strict=True)
        if entry is not None and entry.event > now
        for name in view.features
    }


def _entities(frame: pd.DataFrame, join_keys: Sequence[str]) -> pd.DataFrame:
    """A row each of up to a hundred entities; the same for the same frame."""
    one_each = frame.drop_duplicates(list(join_keys)) if join_keys else frame
    return one_each.sample(min(ENTITIES, len(one_each)), random_state=len(frame)).reset_index(drop=True)


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
