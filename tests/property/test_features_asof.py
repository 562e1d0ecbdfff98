"""The point-in-time join agrees with a search through everything, and with Feast where Feast is right."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from components.features import asof_join, asof_sql
from components.features.asof_join import Limits, join_features
from components.features.asof_sql import History
from tests.fakes.feature_asof_case import ASOF, STOCK_DUCKDB, UNITS, ZONES, at, feast_store, source, times, write_facts
from tests.fakes.feature_oracle import Fact, fact_at

# A join costs some 50 ms here and Feast's API half a second.
JOINS = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
THROUGH_FEAST = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
FEATURES = [("n", pa.int64()), ("word", pa.string()), ("list", pa.list_(pa.float64())), ("yes", pa.bool_())]
TEXT, WHOLE = pa.string(), pa.int64()
COLUMNS = {"a": TEXT, "b": WHOLE}

MINUTES = st.integers(0, 9)
MOMENTS = st.one_of(MINUTES.map(at), MINUTES.map(lambda m: at(m) + timedelta(microseconds=1)))
KEY_A, KEY_B = st.sampled_from(["x", "y", "", None]), st.sampled_from([1, 2, None])


@dataclass(frozen=True)
class View:
    """A drawn view: which key columns it has, its facts, and how they are written."""

    keys: tuple[str, ...]
    facts: list[Fact]
    ttl: timedelta | None
    created: bool
    zone: str | None
    unit: str


@st.composite
def views(draw: st.DrawFn, ties: bool = True, nulls: bool = True, keyless: bool = True) -> View:
    """A view of a few facts in a few minutes, so that moments tie, facts are late and ttl edges are hit."""
    keys = draw(st.sampled_from([("a",), ("b",), ("a", "b"), *([()] if keyless else [])]))
    of_key = {"a": KEY_A, "b": KEY_B}
    facts = []
    for place in range(draw(st.integers(0, 14))):
        event = draw(MINUTES.map(at))
        delay = draw(st.sampled_from([-1, 0, 0, 0, 1, 2, 5]))
        created: datetime | None = event + timedelta(minutes=delay)
        if nulls and draw(st.integers(0, 9)) == 0:
            created = None
        missing = nulls and draw(st.integers(0, 9)) == 0
        value = (None, None, None, None) if missing else (place, f"w{place}", [place + 0.5, place], place % 2 == 0)
        keyed = tuple(draw(of_key[key] if nulls else of_key[key].filter(lambda part: part is not None)) for key in keys)
        happened = None if nulls and draw(st.integers(0, 19)) == 0 else event
        facts.append(Fact(keyed, happened, created, value))
    if not ties:
        facts = list({(fact.keys, fact.event, fact.created): fact for fact in facts}.values())
    ttl = draw(st.sampled_from([None, timedelta(0), timedelta(minutes=1), timedelta(minutes=3)]))
    zone, unit = draw(st.sampled_from(ZONES)), draw(st.sampled_from(UNITS))
    return View(keys, facts, ttl, not ties or draw(st.booleans()), zone, unit)


ASKED = st.lists(st.tuples(KEY_A, KEY_B, st.one_of(MOMENTS, MOMENTS, MOMENTS, st.none())), max_size=12)
WORLDS = st.lists(views(), min_size=1, max_size=3)
Asked = Sequence[tuple[str | None, int | None, datetime | None]]


def _history(folder: Path, number: int, view: View) -> History:
    keys = [(key, COLUMNS[key]) for key in view.keys]
    path = write_facts(folder / f"v{number}.parquet", view.facts, keys, FEATURES, view.zone, view.unit, view.created)
    features = tuple((f"{name}{number}", name) for name, _ in FEATURES)
    created = "created" if view.created else None
    keyed = tuple((key, key) for key in view.keys)
    return History(f"v{number}", (str(path),), keyed, "event_timestamp", created, features, view.ttl)


def _rows(asked: Asked, zone: str | None = "UTC", unit: str = "us") -> pa.Table:
    return pa.table(
        {
            "label": pa.array(range(len(asked)), pa.int64()),
            "b": pa.array([row[1] for row in asked], WHOLE),
            "event_timestamp": times([row[2] for row in asked], zone, unit),
            "a": pa.array([row[0] for row in asked], TEXT),
        }
    )


def _truth(view: View, asked: Asked, known_only: bool) -> list[tuple[Any, ...]]:
    found = []
    for a, b, moment in asked:
        keys = tuple({"a": a, "b": b}[key] for key in view.keys)
        fact = fact_at(view.facts, keys, moment, view.ttl, known_only, view.created)
        found.append(fact.values if fact else (None,) * len(FEATURES))
    return found


def _values(table: pa.Table, number: int) -> list[tuple[Any, ...]]:
    columns = [table[f"{name}{number}"].to_pylist() for name, _ in FEATURES]
    return list(zip(*columns, strict=True)) if len(table) else []


@JOINS
@given(
    world=WORLDS,
    asked=ASKED,
    repeated=st.integers(0, 3),
    known_only=st.booleans(),
    zone=st.sampled_from(ZONES),
    small=st.booleans(),
)
def test_every_row_gets_what_a_search_finds(
    world: list[View], asked: Asked, repeated: int, known_only: bool, zone: str | None, small: bool
) -> None:
    """Ties, late facts, ttl edges, duplicates, nulls, zones, composite keys: the oracle's values, each in its place."""
    asked = [*asked, *asked[:repeated]]
    rows = _rows(asked, zone)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if small:  # chunks of three rows, and no history is kept
            patch.setattr(asof_join, "_CHUNK", (3, 3))
            patch.setattr(asof_join._Values, "within", lambda *_: None)
        histories = [_history(Path(folder), number, view) for number, view in enumerate(world)]
        got = pa.concat_tables(join_features(histories, rows, "event_timestamp", known_only))
    assert got.select(rows.column_names).equals(rows)
    for number, view in enumerate(world):
        assert _values(got, number) == _truth(view, asked, known_only)


@settings(JOINS, max_examples=40)
@given(world=WORLDS, asked=ASKED, known_only=st.booleans())
def test_the_one_statement_says_the_same(world: list[View], asked: Asked, known_only: bool) -> None:
    """The SQL that a job shows gives the same rows in the same order when DuckDB runs it as a whole."""
    with tempfile.TemporaryDirectory() as folder, asof_join.engine(Limits()) as connection:
        histories = [_history(Path(folder), number, view) for number, view in enumerate(world)]
        entity_rows = _rows(asked)
        connection.register("entity_rows", entity_rows)
        sql = asof_sql.whole_statement(
            "SELECT * FROM entity_rows", entity_rows.column_names, "event_timestamp", histories, known_only
        )
        got = connection.execute(sql).to_arrow_table()
    assert got["label"].to_pylist() == entity_rows["label"].to_pylist()
    for number, view in enumerate(world):
        assert _values(got, number) == _truth(view, asked, known_only)


BACKFILL = st.lists(st.tuples(KEY_A, KEY_B, MINUTES.map(at)), min_size=1, max_size=6)


@settings(JOINS, max_examples=40)
@given(view=views().filter(lambda view: view.created), later=BACKFILL, asked=ASKED)
def test_a_backfill_changes_no_earlier_row(view: View, later: list[tuple[Any, ...]], asked: Asked) -> None:
    """Facts written after a moment, whatever time they are about, change nothing as known at that moment."""
    written, value = at(20), (99, "late", [9.0], True)
    backfill = [Fact(tuple({"a": a, "b": b}[key] for key in view.keys), event, written, value) for a, b, event in later]
    more = replace(view, facts=[*view.facts, *backfill])
    with tempfile.TemporaryDirectory() as folder:
        histories = [_history(Path(folder) / str(number), 0, one) for number, one in enumerate([view, more])]
        before, after = (
            pa.concat_tables(join_features([history], _rows(asked), "event_timestamp", True)) for history in histories
        )
    assert before.equals(after)


def _through_feast(
    folder: Path, offline: dict[str, Any], world: list[View], rows: pd.DataFrame | str, known_only: bool
) -> pd.DataFrame:
    from feast import Entity, FeatureView, Field, ValueType
    from feast.types import Array, Bool, Float64, Int64, String

    entities = {
        "a": Entity(name="a", join_keys=["a"], value_type=ValueType.STRING),
        "b": Entity(name="b", join_keys=["b"], value_type=ValueType.INT64),
    }
    kinds = [("n", Int64), ("word", String), ("list", Array(Float64)), ("yes", Bool)]
    objects = []
    for number, view in enumerate(world):
        _history(folder, number, view)
        at_source = source(folder / f"v{number}.parquet", created_timestamp_column="created" if view.created else "")
        schema = [Field(name=key, dtype={"a": String, "b": Int64}[key]) for key in view.keys]
        schema += [Field(name=name, dtype=kind) for name, kind in kinds]
        keys = [entities[key] for key in view.keys]
        objects.append(FeatureView(name=f"v{number}", entities=keys, ttl=view.ttl, schema=schema, source=at_source))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = feast_store(folder, offline, [*entities.values(), *objects])
        references = [f"v{number}:{name}" for number in range(len(world)) for name, _ in kinds]
        job = store.get_historical_features(
            rows, references, full_feature_names=True, filter_by_created_timestamp=known_only
        )
        found: pd.DataFrame = job.to_df()
        return found


def _plain(frame: pd.DataFrame, number: int) -> list[tuple[Any, ...]]:
    def clean(value: Any) -> Any:
        if isinstance(value, (list, tuple)) or (hasattr(value, "tolist") and not pd.api.types.is_scalar(value)):
            return [float(item) for item in value]
        return None if pd.isna(value) else value

    columns = [[clean(value) for value in frame[f"v{number}__{name}"]] for name, _ in FEATURES]
    return list(zip(*columns, strict=True)) if len(frame) else []


@THROUGH_FEAST
@given(world=WORLDS, asked=ASKED, known_only=st.booleans(), zone=st.sampled_from(ZONES), as_sql=st.booleans())
def test_feast_with_this_store_gives_what_a_search_finds(
    world: list[View], asked: Asked, known_only: bool, zone: str | None, as_sql: bool
) -> None:
    """The same through get_historical_features, entity rows as a frame with an index of its own or as SQL."""
    frame = _rows(asked, zone).to_pandas()
    frame.index = pd.Index([f"row {at}" for at in range(len(frame))], name="name")
    with tempfile.TemporaryDirectory() as folder:
        rows: pd.DataFrame | str = frame
        if as_sql:
            pq.write_table(_rows(asked, zone), Path(folder) / "rows.parquet")
            rows = "SELECT * FROM read_parquet('rows.parquet');"
        got = _through_feast(Path(folder), ASOF, world, rows, known_only)
    assert got["label"].tolist() == list(range(len(asked)))
    if not as_sql:
        assert got.index.equals(frame.index)
        assert got.index.name == "name"
    for number, view in enumerate(world):
        assert _plain(got, number) == _truth(view, asked, known_only)


@THROUGH_FEAST
@given(
    world=st.lists(views(ties=False, nulls=False, keyless=False), min_size=1, max_size=3),
    asked=st.lists(st.tuples(st.sampled_from(["x", "y"]), st.sampled_from([1, 2]), MOMENTS), min_size=1, max_size=12),
    known_only=st.booleans(),
)
def test_feasts_own_duckdb_store_agrees_where_it_is_right(world: list[View], asked: Asked, known_only: bool) -> None:
    """Without ties in everything, nulls and keyless views, Feast's store finds the same values."""
    assume(all(view.facts for view in world))
    frame = _rows(asked).to_pandas()
    with tempfile.TemporaryDirectory() as folder:
        theirs = _through_feast(Path(folder), STOCK_DUCKDB, world, frame, known_only)
        theirs = theirs.sort_values("label").reset_index(drop=True)
        ours = _through_feast(Path(folder) / "ours", ASOF, world, frame, known_only)
    for number in range(len(world)):
        assert _plain(ours, number) == _plain(theirs, number)
