"""Failures 8 and 9 through Feast's own API: late rows reach the online store, and an older write never wins."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.fakes.redis_server import redis_server

NOW = datetime.now(UTC).replace(microsecond=0)
OURS = "components.features.online_stores"
Opened = Callable[..., Any]


def hours_ago(hours: float) -> datetime:
    """A moment of the recent past."""
    return NOW - timedelta(hours=hours)


def open_store(folder: Path, online: dict[str, Any], ttl_hours: int = 0) -> Any:
    """A Feast store with one view `rates` of entity `company`, its history in a file, and a push source."""
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, ValueType
    from feast.repo_config import RepoConfig
    from feast.types import Float64, Int64, String

    folder.mkdir(parents=True, exist_ok=True)
    write_history(folder, [])
    config = RepoConfig(
        project="late",
        provider="local",
        registry={"registry_type": "sql", "path": f"sqlite:///{folder}/registry.db"},
        offline_store={"type": "duckdb"},
        online_store=online,
        entity_key_serialization_version=3,
        repo_path=folder,
    )
    store = FeatureStore(config=config)
    company = Entity(name="company", join_keys=["company"], value_type=ValueType.STRING)
    source = FileSource(
        name="file",
        path=str(folder / "history.parquet"),
        timestamp_field="event_timestamp",
        created_timestamp_column="created_timestamp",
    )
    views = []
    for name, fields in (("rates", {"rate": Float64}), ("mixed", {"count": Int64, "word": String})):
        views.append(
            FeatureView(
                name=name,
                entities=[company],
                ttl=timedelta(hours=ttl_hours),
                schema=[Field(name=key, dtype=kind) for key, kind in fields.items()],
                source=PushSource(name=f"push_{name}", batch_source=source),
            )
        )
    store.apply([company, *views])
    return store


def write_history(folder: Path, rows: list[tuple[str, datetime, datetime, float]]) -> None:
    """The history file: (company, event, created, rate)."""
    frame = pd.DataFrame(rows, columns=["company", "event_timestamp", "created_timestamp", "rate"])
    frame = frame.astype({"event_timestamp": "datetime64[us, UTC]", "created_timestamp": "datetime64[us, UTC]"})
    frame = frame.astype({"rate": "float64"}).assign(count=7, word="w")
    frame.to_parquet(folder / "history.parquet", index=False)


def online_rate(store: Any, company: str = "A") -> float | None:
    """What is served."""
    found = store.get_online_features(features=["rates:rate"], entity_rows=[{"company": company}]).to_dict()
    value: float | None = found["rate"][0]
    return value


def offline_rate(store: Any, company: str = "A") -> float | None:
    """What the history says as of now."""
    rows = pd.DataFrame({"company": [company], "event_timestamp": [pd.Timestamp(NOW)]})
    found = store.get_historical_features(entity_df=rows, features=["rates:rate"]).to_df()
    value: float = found["rate"].iloc[0]
    return None if pd.isna(value) else float(value)


def late_row(folder: Path, online: dict[str, Any]) -> tuple[float | None, float | None]:
    """Online and offline, after an interval was materialised and a row of it came later."""
    store = open_store(folder, online)
    write_history(folder, [("B", hours_ago(5), hours_ago(5), 0.5)])
    store.materialize_incremental(end_date=hours_ago(2))
    write_history(folder, [("B", hours_ago(5), hours_ago(5), 0.5), ("A", hours_ago(4), hours_ago(1), 0.25)])
    materialise_ours(store, folder) if OURS in online["type"] else store.materialize_incremental(end_date=NOW)
    return online_rate(store), offline_rate(store)


def materialise_ours(store: Any, folder: Path) -> None:
    """What `pilotline features materialize` does with a view."""
    from components.features.materialise import materialise
    from components.features.online_stores import table_of

    latest = store._get_provider().online_store._latest(store.config)
    materialise(latest, table_of("late", "rates"), folder / "history.parquet", ["company"], ["rate"], NOW)


def older_write(folder: Path, online: dict[str, Any]) -> float | None:
    """What is served after an older event was written behind a newer one."""
    store = open_store(folder, online)
    for rate, at in ((0.9, hours_ago(1)), (0.1, hours_ago(3))):
        row = pd.DataFrame({"company": ["A"], "event_timestamp": [at], "created_timestamp": [at], "rate": [rate]})
        store.push("push_rates", row.assign(event_timestamp=pd.to_datetime(row["event_timestamp"])))
    return online_rate(store)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis for this file."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def ours(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a store of ours, empty."""
    if request.param == "sqlite":
        return {"type": f"{OURS}.SqliteNewestOnlineStore", "path": "online.db"}
    import redis

    url = request.getfixturevalue("redis_url")
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return {"type": f"{OURS}.RedisNewestOnlineStore", "url": url}


STOCK = {"type": "sqlite", "path": "stock.db"}


def test_a_late_row_appears_and_online_equals_offline(ours: dict[str, Any], tmp_path: Path) -> None:
    """A row of an interval that is already materialised, known later, is served after the next one."""
    assert late_row(tmp_path, ours) == (0.25, 0.25)


def test_feast_s_sqlite_store_misses_the_late_row(tmp_path: Path) -> None:
    """The same story with the stock store: the history has the row, the online store never gets it."""
    assert late_row(tmp_path, STOCK) == (None, 0.25)


def test_an_older_write_does_not_win(ours: dict[str, Any], tmp_path: Path) -> None:
    """Pushed newest first, the newest is served."""
    assert older_write(tmp_path, ours) == 0.9


def test_feast_s_sqlite_store_lets_the_older_write_win(tmp_path: Path) -> None:
    """The same story with the stock store: the older value is served."""
    assert older_write(tmp_path, STOCK) == 0.1


def test_a_value_beyond_its_ttl_is_missing_and_flagged(ours: dict[str, Any], tmp_path: Path) -> None:
    """Served as null with the time of its event; a fresh one is served."""
    store = open_store(tmp_path, ours, ttl_hours=2)
    for company, hours in (("old", 3), ("new", 1)):
        at = pd.to_datetime([hours_ago(hours)])
        row = pd.DataFrame({"company": [company], "event_timestamp": at, "created_timestamp": at, "rate": [0.5]})
        store.push("push_rates", row)
    response = store.get_online_features(
        features=["rates:rate"], entity_rows=[{"company": "old"}, {"company": "new"}, {"company": "never"}]
    )
    assert response.to_dict()["rate"] == [None, 0.5, None]
    vector = response.proto.results[list(response.proto.metadata.feature_names.val).index("rate")]
    assert [stamp.seconds > 0 for stamp in vector.event_timestamps] == [True, True, False]
    assert vector.event_timestamps[0].seconds == int(hours_ago(3).timestamp())


def test_other_types_come_back_as_they_were(ours: dict[str, Any], tmp_path: Path) -> None:
    """Whole numbers beyond a double's 53 bits and texts, pushed and read through Feast."""
    store = open_store(tmp_path, ours)
    at = pd.to_datetime([hours_ago(1)])
    row = pd.DataFrame({"company": ["A"], "event_timestamp": at, "created_timestamp": at})
    store.push("push_mixed", row.assign(count=[2**62 + 1], word=["é\0 ü"]))
    found = store.get_online_features(features=["mixed:count", "mixed:word"], entity_rows=[{"company": "A"}]).to_dict()
    assert (found["count"], found["word"]) == ([2**62 + 1], ["é\0 ü"])


def test_feast_s_own_materialize_writes_to_these_stores(ours: dict[str, Any], tmp_path: Path) -> None:
    """Whoever uses Feast's command gets the newest values too, and can write them again."""
    store = open_store(tmp_path, ours)
    write_history(tmp_path, [("A", hours_ago(5), hours_ago(5), 0.5), ("A", hours_ago(4), hours_ago(4), 0.75)])
    for _ in range(2):
        store.materialize(start_date=hours_ago(10), end_date=NOW)
    assert online_rate(store) == 0.75


def test_a_view_that_is_removed_is_forgotten(ours: dict[str, Any], tmp_path: Path) -> None:
    """Applying without a view removes its values; teardown removes all."""
    store = open_store(tmp_path, ours)
    write_history(tmp_path, [("A", hours_ago(5), hours_ago(5), 0.5)])
    store.materialize(start_date=hours_ago(10), end_date=NOW)
    store.teardown()
    shutil.rmtree(tmp_path / "again", ignore_errors=True)
    again = open_store(tmp_path / "again", ours if "url" in ours else {**ours, "path": str(tmp_path / "online.db")})
    assert online_rate(again) is None
