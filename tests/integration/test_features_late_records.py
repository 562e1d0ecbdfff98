"""Records that arrive late: not seen before they arrived, seen afterwards, and the newest event wins online."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from components.core.recipe import Recipe, parse_recipe
from components.features.feast_store import join_history, load_project
from components.features.history import write_history
from components.features.latest.entries import key_of, unpack_numbers
from components.features.latest.sqlite import SqliteLatest
from components.features.online import ONLINE, table_of, write_online
from tests.fakes.feature_rows import seen_by_sql

FEATURES = """
from feast import Entity, FeatureService, FeatureView, Field, ValueType
from feast.types import Float64
project = "readings"
def definitions(source, ttl):
    meter = Entity(name="meter", join_keys=["meter"], value_type=ValueType.STRING)
    view = FeatureView(name="last", entities=[meter], ttl=ttl, source=source("last"),
                       schema=[Field(name="reading", dtype=Float64)])
    return [meter, view, FeatureService(name="readings_v1", features=[view])]
"""
LAST = """
SELECT meter, event_timestamp, CAST(arrived AS TIMESTAMP) AS created_timestamp,
       any_value(CAST(value AS DOUBLE)) AS reading
FROM rows GROUP BY ALL
"""
START = pd.Timestamp("2024-01-01")


def _recipe(repo: Path) -> Recipe:
    features = {
        "repo": str(repo),
        "service": "readings_v1",
        "entities": {"meter": "meter"},
        "model_inputs": ["reading"],
    }
    return parse_recipe(
        {
            "name": "readings",
            "source": {"uri": "none", "time_column": "at", "time_formats": ["%Y-%m-%d %H:%M:%S"], "key": ["value"]},
            "contract": {"path": "none"},
            "features": features,
            "model": {"name": "readings", "label_column": "high", "positive_values": ["yes"]},
        }
    )


def _readings(seed: int) -> pd.DataFrame:
    """Readings of four meters; a third of them arrived up to 20 days after they were taken, in any order."""
    draw = random.Random(seed)
    rows = []
    for at in range(120):
        taken = START + pd.Timedelta(hours=draw.randrange(24 * 60))
        late = pd.Timedelta(hours=draw.choice([0, 0, draw.randrange(24 * 20)]))
        rows.append(
            {"meter": f"m{draw.randrange(4)}", "at": str(taken), "arrived": str(taken + late), "value": str(at)}
        )
    frame = pd.DataFrame(rows).drop_duplicates(["meter", "at"]).reset_index(drop=True)
    return frame.assign(high=["yes" if draw.random() < 0.5 else "no" for _ in frame.index])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_late_records_count_from_their_arrival_and_the_newest_event_wins(tmp_path: Path, seed: int) -> None:
    """Offline at every row and online at the end agree with a search through all records that had arrived."""
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "last.sql").write_text(LAST)
    frame = _readings(seed)
    seen = seen_by_sql(frame, _recipe(tmp_path))
    project = load_project(tmp_path, 0)
    service = project.service("readings_v1")
    out = tmp_path / "out"
    write_history(tmp_path, service.views, seen, out / "history", [seen.typed["event_timestamp"].median()])
    taken, arrived = pd.to_datetime(frame["at"]), pd.to_datetime(frame["arrived"])

    def newest(meter: str, moment: pd.Timestamp) -> float:
        known = frame[(frame["meter"] == meter) & (taken <= moment) & (arrived <= moment)]
        return float(known.loc[taken[known.index].idxmax(), "value"]) if len(known) else np.nan

    got = join_history(project, service, out / "history", seen.typed)["reading"]
    expected = [newest(meter, moment) for meter, moment in zip(frame["meter"], taken, strict=True)]
    np.testing.assert_array_equal(got, expected)

    write_online(out, project.project, service, seen.as_of.to_pydatetime())
    store = SqliteLatest(out / ONLINE, read_only=True)
    try:
        for meter in sorted(set(frame["meter"])):
            (entry,) = store.read([(table_of(project.project, "last"), key_of([meter]))])
            assert entry is not None
            assert unpack_numbers(["reading"], entry.body) == [newest(meter, arrived.max())]
    finally:
        store.close()
