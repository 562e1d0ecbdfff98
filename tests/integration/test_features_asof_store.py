"""Feast's API over the offline store of ours: what get_historical_features, materialise and the writers promise."""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.core.errors import UserError
from components.features import asof_join
from tests.fakes.feature_asof_case import ASOF, STOCK_DASK, at, feast_store, source, times, write_facts
from tests.fakes.feature_oracle import Fact, fact_at

feast = pytest.importorskip("feast")
from feast import Entity, FeatureService, FeatureView, Field, RequestSource, ValueType  # noqa: E402
from feast.infra.offline_stores.file_source import (  # noqa: E402
    FileLoggingDestination,
    SavedDatasetFileStorage,
)
from feast.on_demand_feature_view import on_demand_feature_view  # noqa: E402
from feast.types import Float64, Int64  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Entity(name="driver", join_keys=["driver"], value_type=ValueType.INT64)


@pytest.fixture(autouse=True)
def _no_feast_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _write(path: Path, **columns: Any) -> Path:
    table = {
        name: times(values) if name in ("event_timestamp", "created") else pa.array(values)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(table), path)
    return path


def _trips(folder: Path) -> Path:
    """Driver 1 at minutes 1 and 3 (the second version of minute 3 was written at 9), driver 2 at minute 2."""
    return _write(
        folder / "trips.parquet",
        driver=[1, 1, 1, 2],
        event_timestamp=[at(1), at(3), at(3), at(2)],
        created=[at(1), at(3), at(9), at(2)],
        trips=[10, 30, 31, 20],
        rate=[0.1, 0.3, 0.31, None],
    )


def _trip_view(path: Path, **more: Any) -> Any:
    schema = [Field(name="trips", dtype=Int64), Field(name="rate", dtype=Float64)]
    return FeatureView(
        **{"name": "trips", "entities": [DRIVER], "ttl": timedelta(0), "schema": schema, "source": source(path)} | more
    )


def _asked(*rows: tuple[int, float]) -> pd.DataFrame:
    moments = pd.to_datetime([at(minute) for _, minute in rows], utc=True)
    return pd.DataFrame({"driver": [driver for driver, _ in rows], "event_timestamp": moments})


# Failures 6 and 7 of the design: the store is a parameter, so that Feast's stock one can be seen to fail.


def _training_set(folder: Path, offline: dict[str, Any], history: Path, rows: pd.DataFrame) -> pd.DataFrame:
    store = feast_store(folder, offline, [DRIVER, _trip_view(history)])
    job = store.get_historical_features(rows, ["trips:trips"], filter_by_created_timestamp=True)
    found: pd.DataFrame = job.to_df()
    return found


def _as_of(folder: Path, offline: dict[str, Any], facts: list[Fact], rows: pd.DataFrame) -> dict[int, int]:
    """The value that each labelled row got, whatever the order; -1 for none."""
    columns = [("driver", pa.int64())], [("trips", pa.int64()), ("rate", pa.float64())]
    path = write_facts(folder / "trips.parquet", facts, *columns)
    found = _training_set(folder, offline, path, rows)
    return dict(zip(found["label"], found["trips"].fillna(-1).astype(int), strict=True))


def _around_a_backfill(folder: Path, offline: dict[str, Any]) -> list[dict[int, int]]:
    """Training sets as of T: what a search finds, and the store's before and after a backfill, by label.

    Ten events a driver, each corrected twice; the backfill corrects all again, and adds events of drivers that had
    none. The order in which an engine gives rows back plays no part here.
    """
    facts = [
        Fact((driver,), at(10 * event), at(10 * event + version), (100 * event + version, None))
        for version in range(3)
        for event in range(10)
        for driver in range(20)
    ]
    random.Random(6).shuffle(facts)
    backfill = [Fact((driver,), at(10 * event), at(1000), (-5, None)) for event in range(10) for driver in range(22)]
    backfill += [Fact((driver,), at(200), at(1000), (-6, None)) for driver in range(22, 25)]
    asked = [(driver, minute) for driver in range(25) for minute in (0, 15, 31, 77, 99)]
    rows = _asked(*asked).assign(label=range(len(asked)))
    known = [fact_at(facts, (driver,), at(minute), None, True) for driver, minute in asked]
    return [
        {label: fact.values[0] if fact else -1 for label, fact in enumerate(known)},
        _as_of(folder / "before", offline, facts, rows),
        _as_of(folder / "after", offline, [*facts, *backfill], rows),
    ]


def _rows_in_and_out(folder: Path, offline: dict[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that share key and moment, know nothing, or are in no order; asked, and as they come back."""
    rows = _asked((2, 4), (1, 4), (1, 4), (9, 4), (1, 0), (1, 2), (1, 4)).assign(label=[1, 0, 1, 1, 0, 0, 1])
    return rows, _training_set(folder, offline, _trips(folder), rows)


def test_a_backfill_leaves_the_training_set_as_of_a_moment_unchanged(tmp_path: Path) -> None:
    """Failure 6: the training set as of T is what was known then, whatever was written after T."""
    known, before, after = _around_a_backfill(tmp_path, ASOF)
    assert before == known
    assert after == known


def test_a_backfill_changes_it_with_feasts_stock_store(tmp_path: Path) -> None:
    """The test for failure 6 is able to fail: with Feast's dask store rows vanish after the backfill."""
    _, before, after = _around_a_backfill(tmp_path, STOCK_DASK)
    assert after != before


def test_rows_out_equal_rows_in_with_labels_in_place(tmp_path: Path) -> None:
    """Failure 7: every row comes back once, in its place, with its own features."""
    rows, got = _rows_in_and_out(tmp_path, ASOF)
    pd.testing.assert_frame_equal(got[list(rows)], rows)
    assert got["trips"].fillna(-1).tolist() == [20, 30, 30, -1, -1, 10, 30]


def test_rows_are_lost_with_feasts_stock_store(tmp_path: Path) -> None:
    """The test for failure 7 is able to fail: Feast's dask store drops rows."""
    rows, got = _rows_in_and_out(tmp_path, STOCK_DASK)
    assert len(got) < len(rows)


def test_latest_created_wins_unless_asked_as_known(tmp_path: Path) -> None:
    """By default the last version of an event counts whenever it was written; with the filter only a known one."""
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(_trips(tmp_path))])
    rows = _asked((1, 4))
    assert store.get_historical_features(rows, ["trips:trips"]).to_df()["trips"].tolist() == [31]
    known = store.get_historical_features(rows, ["trips:trips"], filter_by_created_timestamp=True)
    assert known.to_df()["trips"].tolist() == [30]


def test_names_that_feasts_store_mixes_up_are_right_here(tmp_path: Path) -> None:
    """Features that end in _y, and a source column called like an entity column that is no key."""
    path = _write(
        tmp_path / "odd.parquet",
        driver=[1], event_timestamp=[at(1)], created=[at(1)], label=[5],
        trips_y=[7], key0=[8], event=[9], position=[3], since=[2],
    )  # fmt: skip
    names = ["trips_y", "key0", "event", "position", "since"]
    schema = [Field(name=name, dtype=Int64) for name in names]
    store = feast_store(
        tmp_path, ASOF, [DRIVER, FeatureView(name="odd", entities=[DRIVER], schema=schema, source=source(path))]
    )
    rows = _asked((1, 2)).assign(label=[1])
    got = store.get_historical_features(rows, [f"odd:{name}" for name in names]).to_df()
    assert got.iloc[0][["label", *names]].tolist() == [1, 7, 8, 9, 3, 2]


def test_a_feature_named_like_an_entity_column_is_refused_in_one_line(tmp_path: Path) -> None:
    """Two columns of one name are never made; full feature names are the way out."""
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(_trips(tmp_path))])
    rows = _asked((1, 4)).assign(trips=[5])
    with pytest.raises(UserError, match=r"would be called 'trips'.*full_feature_names") as refused:
        store.get_historical_features(rows, ["trips:trips"])
    assert "\n" not in str(refused.value)
    got = store.get_historical_features(rows, ["trips:trips"], full_feature_names=True).to_df()
    assert got[["trips", "trips__trips"]].iloc[0].tolist() == [5, 31]


def test_on_demand_views_see_joined_features_and_request_values(tmp_path: Path) -> None:
    """An on-demand feature is computed from the row's own features, in the job's table, frame and file."""
    trips = _trip_view(_trips(tmp_path))
    request = RequestSource(name="request", schema=[Field(name="extra", dtype=Int64)])

    @on_demand_feature_view(sources=[trips, request], schema=[Field(name="total", dtype=Float64)], mode="pandas")
    def totals(inputs: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"total": (inputs["trips"] + inputs["extra"]).astype(float)})

    store = feast_store(tmp_path, ASOF, [DRIVER, trips, totals])
    rows = _asked((1, 4), (2, 4), (9, 4)).assign(extra=[1, 2, 3])
    job = store.get_historical_features(rows, ["trips:trips", "totals:total"])
    assert job.to_df()["total"].fillna(-1).tolist() == [32, 22, -1]
    job.to_parquet("out/totals.parquet")
    assert pq.read_table(tmp_path / "out" / "totals.parquet")["total"].to_pylist()[:2] == [32, 22]


def test_one_view_serves_two_roles_under_aliases(tmp_path: Path) -> None:
    """with_name and with_join_key_map: the same history joined on two columns of the entity rows."""
    trips = _trip_view(_trips(tmp_path))
    pair = FeatureService(
        name="pair",
        features=[
            trips[["trips"]].with_name("first").with_join_key_map({"driver": "one"}),
            trips[["trips"]].with_name("second").with_join_key_map({"driver": "two"}),
        ],
    )
    store = feast_store(tmp_path, ASOF, [DRIVER, trips, pair])
    rows = _asked((1, 4), (2, 4)).rename(columns={"driver": "one"}).assign(two=[2, 1])
    got = store.get_historical_features(rows, store.get_feature_service("pair"), full_feature_names=True).to_df()
    assert got["first__trips"].tolist() == [31, 20]
    assert got["second__trips"].tolist() == [20, 31]


def test_a_join_key_map_may_name_a_part_of_a_composite_key(tmp_path: Path) -> None:
    """The key that is not renamed is still joined on."""
    site = Entity(name="site", join_keys=["site"], value_type=ValueType.STRING)
    path = _write(
        tmp_path / "both.parquet",
        driver=[1, 1], site=["a", "b"], event_timestamp=[at(1), at(2)], created=[at(1), at(2)], trips=[5, 6],
    )  # fmt: skip
    view = FeatureView(
        name="both", entities=[DRIVER, site], schema=[Field(name="trips", dtype=Int64)], source=source(path)
    )
    service = FeatureService(name="s", features=[view.with_join_key_map({"driver": "who"})])
    store = feast_store(tmp_path, ASOF, [DRIVER, site, view, service])
    rows = _asked((1, 4), (1, 4), (1, 4)).rename(columns={"driver": "who"}).assign(site=["a", "b", "c"])
    got = store.get_historical_features(rows, store.get_feature_service("s")).to_df()
    assert got["trips"].fillna(-1).tolist() == [5, 6, -1]


def test_field_mapping_renames_keys_times_and_features(tmp_path: Path) -> None:
    """A source with names of its own is read through the mapping."""
    path = _write(
        tmp_path / "raw.parquet", drv=[1, 1], event_timestamp=[at(1), at(3)], created=[at(1), at(3)], n=[10, 30]
    )
    table = pq.read_table(path).rename_columns(["drv", "ts", "created", "n"])
    pq.write_table(table, path)
    mapped = source(
        path, timestamp_field="event_timestamp", field_mapping={"drv": "driver", "n": "trips", "ts": "event_timestamp"}
    )
    view = FeatureView(name="mapped", entities=[DRIVER], schema=[Field(name="trips", dtype=Int64)], source=mapped)
    store = feast_store(tmp_path, ASOF, [DRIVER, view])
    assert store.get_historical_features(_asked((1, 2), (1, 3)), ["mapped:trips"]).to_df()["trips"].tolist() == [10, 30]


def test_views_without_entities_join_and_materialise(tmp_path: Path) -> None:
    """One history for all rows, offline and online."""
    path = _write(tmp_path / "all.parquet", event_timestamp=[at(1), at(3)], created=[at(1), at(3)], level=[10, 30])
    view = FeatureView(name="everywhere", entities=[], schema=[Field(name="level", dtype=Int64)], source=source(path))
    store = feast_store(tmp_path, ASOF, [DRIVER, view])
    got = store.get_historical_features(_asked((1, 2), (2, 4), (3, 0)), ["everywhere:level"]).to_df()
    assert got["level"].fillna(-1).tolist() == [10, 30, -1]
    store.materialize(at(0), at(60))
    assert store.get_online_features(["everywhere:level"], [{"driver": 1}]).to_dict()["level"] == [30]


@pytest.mark.parametrize("latest", [False, True])
def test_materialise_takes_the_newest_event_and_of_it_the_last_version(tmp_path: Path, latest: bool) -> None:
    """Whatever the order in the file: by event time, then created time, whether this store or Feast picks them."""
    path = _write(
        tmp_path / "trips.parquet",
        driver=[1, 1, 1, 2, 3],
        event_timestamp=[at(3), at(3), at(1), at(2), at(61)],
        created=[at(9), at(3), at(50), at(2), at(61)],
        trips=[31, 30, 10, 20, 99],
        rate=[0.31, 0.3, 0.1, 0.2, 0.9],
    )
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(path)])
    store.config.materialization_config.pull_latest_features = latest
    store.materialize(at(0), at(60))
    online = store.get_online_features(["trips:trips"], [{"driver": 1}, {"driver": 2}, {"driver": 3}]).to_dict()
    assert online["trips"] == [31, 20, None]


def test_entity_rows_keep_index_types_and_columns(tmp_path: Path) -> None:
    """Index, categories, a naive clock and other columns come back as they went in, with both ends of a ttl."""
    view = _trip_view(_trips(tmp_path), ttl=timedelta(minutes=2))
    store = feast_store(tmp_path, ASOF, [DRIVER, view])
    rows = _asked((1, 5), (1, 5.001), (2, 4))
    rows["note"] = pd.Categorical(["x", "y", "x"])
    rows["event_timestamp"] = rows["event_timestamp"].dt.tz_convert("America/New_York")
    rows.index = pd.Index(["c", "a", "a"], name="id")
    got = store.get_historical_features(rows, ["trips:trips"]).to_df()
    assert got["trips"].fillna(-1).tolist() == [31, -1, 20]
    assert got.index.equals(rows.index)
    assert got["note"].dtype == rows["note"].dtype
    assert (got["event_timestamp"] == rows["event_timestamp"]).all()


def test_entity_rows_as_sql_arrow_or_text_times_agree(tmp_path: Path) -> None:
    """A SELECT, an Arrow table and a frame with times as text get the frame's values."""
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(_trips(tmp_path))])
    rows = _asked((1, 2), (2, 4), (1, 9))
    rows.to_parquet(tmp_path / "rows.parquet")
    text = rows.assign(event_timestamp=rows["event_timestamp"].map(str))
    forms = ["SELECT driver, event_timestamp FROM 'rows.parquet'", pa.Table.from_pandas(rows), text, rows]
    found = [store.get_historical_features(form, ["trips:trips"]).to_df()["trips"].tolist() for form in forms]
    assert found == [[10, 20, 31]] * 4


def test_a_saved_dataset_comes_back_as_it_was_joined(tmp_path: Path) -> None:
    """persist writes once, refuses to replace unless told, and Feast reads the file back."""
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(_trips(tmp_path))])
    job = store.get_historical_features(_asked((2, 4), (1, 2)), ["trips:trips"])
    storage = SavedDatasetFileStorage(path="saved.parquet")
    store.create_saved_dataset(job, "saved", storage)
    back = store.get_saved_dataset("saved").to_df()
    assert sorted(zip(back["driver"], back["trips"], strict=True)) == [(1, 10), (2, 20)]
    with pytest.raises(feast.errors.SavedDatasetLocationAlreadyExists):
        job.persist(storage)
    job.persist(storage, allow_overwrite=True)
    assert not list(tmp_path.glob(".*staging"))


@pytest.mark.parametrize("folder", [False, True])
def test_added_rows_count_from_then_on(tmp_path: Path, folder: bool) -> None:
    """write_to_offline_store adds to a file or a folder; of two rows alike in time the added one counts."""
    path = _trips(tmp_path)
    if folder:
        (tmp_path / "parts").mkdir()
        path = path.rename(tmp_path / "parts" / "trips.parquet").parent
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(path)])
    before = store.get_historical_features(_asked((1, 9)), ["trips:trips"]).to_df()["trips"].tolist()
    more = pq.read_table(path).slice(2, 1).to_pandas().assign(trips=32)
    store.write_to_offline_store("trips", more)
    after = store.get_historical_features(_asked((1, 9), (2, 9)), ["trips:trips"]).to_df()["trips"].tolist()
    assert (before, after) == ([31], [32, 20])
    with pytest.raises((UserError, ValueError), match="columns"):
        store.write_to_offline_store("trips", more.drop(columns="rate"), reorder_columns=False)


def test_logged_features_are_kept_and_read_back(tmp_path: Path) -> None:
    """write_feature_service_logs adds files; nothing of an earlier call is lost."""
    from feast.feature_logging import FeatureServiceLoggingSource, LoggingConfig

    trips = _trip_view(_trips(tmp_path))
    destination = FileLoggingDestination(path=str(tmp_path / "logs"))
    service = FeatureService(name="logged", features=[trips], logging_config=LoggingConfig(destination=destination))
    store = feast_store(tmp_path, ASOF, [DRIVER, trips, service])
    schema = FeatureServiceLoggingSource(service, "asof").get_schema(store.registry)
    for number in range(2):
        row: dict[str, Any] = {field.name: None for field in schema}
        row |= {"driver": number, "trips__trips": number, "__request_id": str(number), "__log_timestamp": at(number)}
        table = pa.Table.from_pylist([{name: row[name] for name in schema.names}], schema=schema)
        store.write_logged_features(table, service)
    logs = store._get_provider().retrieve_feature_service_logs(service, at(-1), at(60), store.config, store.registry)
    assert sorted(logs.to_df()["driver"]) == [0, 1]


def test_a_result_streams_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """to_parquet takes entity rows from SQL in chunks and writes them in order."""
    monkeypatch.setattr(asof_join, "_CHUNK", (40_000, 40_000))
    limits = {"memory_limit_gib": 0.125, "threads": 1}
    store = feast_store(tmp_path, ASOF | limits, [DRIVER, _trip_view(_trips(tmp_path))])
    rows = f"SELECT i, i % 3 AS driver, TIMESTAMPTZ '{at(4).isoformat()}' AS event_timestamp FROM range(150000) r(i)"
    job = store.get_historical_features(rows, ["trips:trips"])
    job.to_parquet(tmp_path / "out.parquet")
    with pq.ParquetFile(tmp_path / "out.parquet") as file:
        assert file.num_row_groups == 4
        got = file.read()
    assert got["i"].to_pylist() == list(range(150_000))
    assert got["trips"].to_pylist()[:6] == [None, 31, 20, None, 31, 20]
    assert job.metadata.min_event_timestamp == at(4)


def _no_key(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns="driver")


def _text_key(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(driver=["one"])


def _fraction_key(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(driver=[1.5])


def _no_time(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns="event_timestamp")


def _bad_time(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(event_timestamp=["yesterday"])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (_no_key, "no column 'driver', a join key of trips"),
        (_text_key, "join key 'driver' is string in the entity rows and int64"),
        (_fraction_key, "'driver' holds fractions"),
        (_no_time, "no column 'event_timestamp'"),
        (_bad_time, "'event_timestamp' is not a time"),
        (lambda rows: pd.concat([rows, rows], axis=1), "two columns are called"),
        (lambda _: "SELECT nothing", "DuckDB cannot run the SQL"),
        (lambda _: None, "give entity rows"),
    ],
)
def test_bad_entity_rows_are_refused_in_one_line(tmp_path: Path, rows: Any, words: str) -> None:
    """What, where, and no stack of an engine's words."""
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(_trips(tmp_path))])
    with pytest.raises(UserError, match=words) as refused:
        store.config.coerce_tz_aware = False
        store.get_historical_features(rows(_asked((1, 2))), ["trips:trips"]).to_df()
    assert "\n" not in str(refused.value)


def test_bad_sources_are_refused_in_one_line(tmp_path: Path) -> None:
    """A column that is absent or differs in case only, a time that is a text, a missing file."""
    path = _trips(tmp_path)
    store = feast_store(tmp_path, ASOF, [DRIVER, _trip_view(path)])
    whole = pq.read_table(path)
    names = whole.column_names
    as_text = whole.set_column(1, "event_timestamp", pa.array(["2024-01-01"] * 4))
    broken = {
        "no column 'trips'": whole.rename_columns([name.replace("trips", "TRIPS") for name in names]),
        "no column 'created'": whole.drop_columns("created"),
        "'event_timestamp' is VARCHAR, not a time": as_text,
        "reserves the name 'file_row_number'": whole.append_column("file_row_number", whole["trips"]),
    }
    for words, table in broken.items():
        pq.write_table(table, path)
        with pytest.raises(UserError, match=words):
            store.get_historical_features(_asked((1, 2)), ["trips:trips"]).to_df()
    path.unlink()
    with pytest.raises(UserError, match="no Parquet file there"):
        store.get_historical_features(_asked((1, 2)), ["trips:trips"])


def test_the_published_settings_name_this_store(tmp_path: Path) -> None:
    """The project's own registry is opened by Feast with this store, and Feast resolves its configuration."""
    from components.features.asof_store import AsofOfflineStore, AsofOfflineStoreConfig

    store = feast_store(tmp_path, ASOF | {"memory_limit_gib": 2}, [DRIVER])
    assert isinstance(store.config.offline_store, AsofOfflineStoreConfig)
    assert isinstance(store._get_provider().offline_store, AsofOfflineStore)
    with pytest.raises(ValueError, match="memory_limit_gib"):
        AsofOfflineStoreConfig(memory_limit_gib=0)


def test_feast_is_imported_by_its_adapters_only() -> None:
    """The join knows no Feast, so it can be tested and measured alone; importing Feast costs seconds."""
    importing = set()
    for path in (ROOT / "components").rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        if any(name.split(".")[0] in ("feast", "ibis") for name in names):
            importing.add(path.relative_to(ROOT / "components").as_posix())
    adapters = {"features/asof_job.py", "features/asof_store.py", "features/online_stores.py"}
    assert {path for path in importing if "feast" not in path} <= adapters
    assert all(path.startswith("features/") for path in importing)
