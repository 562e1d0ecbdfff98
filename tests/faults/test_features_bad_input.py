"""Bad input of the features: one clear line and nothing left, or a right result where the input only looks bad."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from components.core.errors import TransientError, UserError
from components.core.records import TrainingSetRef
from components.features.featurise import featurise
from components.features.online import OnlineFeatures
from components.features.rows import parse_times, refuse_future
from tests.fakes.feature_rows import (
    clean_folder,
    complaint_recipe,
    complaints,
    deliveries,
    delivery_recipe,
    many_complaints,
)

KNOWN = "known_timestamp AS event_timestamp,\n    known_timestamp AS created_timestamp,"
Change = tuple[str, str, str]  # file, what stands there, what shall


@pytest.fixture(scope="module")
def parcels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean folder of the deliveries project."""
    return clean_folder(tmp_path_factory.mktemp("parcels") / "clean", deliveries(400))


@pytest.fixture(scope="module")
def sound(parcels: Path) -> pd.DataFrame:
    """The test rows of the project as it is."""
    featurise(delivery_recipe(), parcels, parcels.parent / "sound")
    return pd.read_parquet(parcels.parent / "sound" / "test.parquet")


def changed(
    folder: Path, *changes: Change, inputs: tuple[str, ...] = ("late_share", "route_uses")
) -> Callable[..., TrainingSetRef]:
    """Featurise with a copy of the project in which files were changed."""
    recipe = delivery_recipe()
    repo = shutil.copytree(recipe.features.repo, folder / "repo", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        text = (repo / name).read_text()
        assert old in text
        (repo / name).write_text(text.replace(old, new))
    features = recipe.features.model_copy(update={"repo": str(repo), "model_inputs": inputs})
    return lambda clean: featurise(recipe.model_copy(update={"features": features}), clean, folder / "out" / "set")


def renamed(name: str) -> tuple[Change, Change]:
    """The feature late_share under another name."""
    quoted = name.replace('"', '""')
    return ("features.py", '"late_share"', repr(name)), ("lateness.sql", "AS late_share", f'AS "{quoted}"')


REFUSED: dict[str, tuple[tuple[Change, ...], str]] = {
    "an entity that is not returned": (
        (("features.py", "return [carrier, origin,", "return [carrier,"),),
        r"features.py: feature view routes is of entity 'origin', which definitions\(\) does not return",
    ),
    "a view that is not returned": (
        (("features.py", "lateness, routes, service]", "routes, service]"),),
        r"feature service parcels_v3: has view 'carrier_lateness', which definitions\(\) does not return",
    ),
    "a feature named like an entity": (renamed("origin"), "feature 'origin' is named like entity .* 'origin'"),
    "named like one but for case": (renamed("Origin"), "feature 'Origin' is named like entity .* 'origin'"),
    "named like another": (renamed("Route_Uses"), "feature 'Route_Uses' is named like feature 'route_uses'"),
    "named like a column of ours": (renamed("Label"), "the name 'Label' is reserved"),
    "no event time": (
        (("lateness.sql", "known_timestamp AS event_timestamp,", ""),),
        "lateness.sql: returns no column 'event_timestamp'; it has carrier_code, created_timestamp, late_share",
    ),
    "rows without an event time": (
        (("lateness.sql", "known_timestamp AS event", "CASE WHEN carrier = 'slow' THEN known_timestamp END AS event"),),
        "lateness.sql: [0-9]+ rows have no event_timestamp; leave them out",
    ),
    "an event time that is none": (
        (("lateness.sql", "known_timestamp AS event_timestamp,", "'soon' AS event_timestamp,"),),
        "lateness.sql: times must be timestamps and features numbers",
    ),
    "times of the future only": (
        (("lateness.sql", KNOWN, KNOWN.replace("known_timestamp AS", "known_timestamp + INTERVAL 20 YEAR AS")),),
        "lateness.sql: all [0-9]+ rows are of the future: the first event_timestamp is 2044-.*; use known_timestamp",
    ),
    "made in the future only": (
        (("lateness.sql", "known_timestamp AS created", "known_timestamp + INTERVAL 20 YEAR AS created"),),
        "'late_share' has no value in any row: the history of lateness.sql is empty, or was made later than all",
    ),
    "an empty history": (
        (("lateness.sql", "FROM rows", "FROM rows WHERE carrier = 'nobody'"),),
        "features.model_inputs: 'late_share' has no value in any row: the history of lateness.sql is empty",
    ),
    "a history of others": (
        (("lateness.sql", "carrier AS carrier_code", "carrier || '!' AS carrier_code"),),
        "'late_share' has no value in any row: the history of lateness.sql holds [0-9]+ rows, none of them known of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_project_is_refused_in_one_line(case: str, parcels: Path, tmp_path: Path) -> None:
    """What, where and what to do; no output and no staging folder."""
    changes, words = REFUSED[case]
    with pytest.raises(UserError, match=words) as refused:
        changed(tmp_path, *changes, inputs=("route_uses", "late_share") if "late_share" in words else ("route_uses",))(
            parcels
        )
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    "name", ["late_y", "rn", "entity_row_id", "event", "created", "a b", "a:b", "a__b", "select", "ü", 'q"q', "1a"]
)
def test_names_that_only_look_bad_are_joined_and_served(
    name: str, parcels: Path, sound: pd.DataFrame, tmp_path: Path
) -> None:
    """Suffixes and names that Feast's own stores drop or mix up, SQL words, quotes: the values are late_share's."""
    record = changed(tmp_path, *renamed(name), inputs=(name,))(parcels)
    got = pd.read_parquet(tmp_path / "out" / "set" / "test.parquet")[name]
    pd.testing.assert_series_equal(got, sound["late_share"], check_names=False)
    assert (record.skew, got.notna().any()) == (0.0, True)


def test_an_empty_view_that_no_model_reads_is_null(parcels: Path, sound: pd.DataFrame, tmp_path: Path) -> None:
    """Its features have no value, the others are as they were."""
    empty = ("lateness.sql", "FROM rows", "FROM rows WHERE carrier = 'nobody'")
    changed(tmp_path, empty, inputs=("route_uses",))(parcels)
    got = pd.read_parquet(tmp_path / "out" / "set" / "test.parquet")
    assert got["late_share"].isna().all()
    pd.testing.assert_series_equal(got["route_uses"], sound["route_uses"])


def test_a_value_that_becomes_known_later_is_left_out(parcels: Path, sound: pd.DataFrame, tmp_path: Path) -> None:
    """Rows of a table that lie behind all that is known (a window that will end) change nothing."""
    sql = (Path(delivery_recipe().features.repo) / "lateness.sql").read_text()
    ahead = (
        f"{sql}\nUNION ALL BY NAME SELECT DISTINCT carrier AS carrier_code, TIMESTAMP '2100-01-01' AS event_timestamp, "
    )
    ahead += "TIMESTAMP '2100-01-01' AS created_timestamp, 9 AS late_share, 9 AS parcels FROM rows"
    changed(tmp_path, ("lateness.sql", sql, ahead))(parcels)
    got = pd.read_parquet(tmp_path / "out" / "set" / "test.parquet")
    pd.testing.assert_frame_equal(got, sound)


def test_the_order_of_rows_is_of_no_account(parcels: Path, sound: pd.DataFrame, tmp_path: Path) -> None:
    """A shuffled export and a history that SQL returns backwards give the same splits, byte for byte."""
    shuffled = clean_folder(tmp_path / "clean", deliveries(400).sample(frac=1, random_state=1))
    end = "WINDOW so_far AS (PARTITION BY carrier ORDER BY known_timestamp)"
    backwards = ("lateness.sql", end, f"{end}\nORDER BY known_timestamp DESC")
    record = changed(tmp_path, backwards)(shuffled)
    kept = TrainingSetRef.read(parcels.parent / "sound")
    assert [split.digest for split in record.splits] == [split.digest for split in kept.splits]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "0202-03-01",
            "'Date received': 1 dates are not of the years 1970 to 2199, for example '0202-03-01'; the engines",
        ),
        ("1677-09-01", "not of the years 1970 to 2199"),
        ("2262-04-12", "not of the years 1970 to 2199"),
        ("9999-12-31", "not of the years 1970 to 2199"),
        ("2199-01-01", "'Date received': 1 rows lie in the future, for example 2199-01-01; it is 20"),
        ("2023-02-30", "1 dates fit none of %Y-%m-%d"),
        ("", "1 dates fit none of %Y-%m-%d"),
    ],
)
def test_a_date_that_cannot_be_is_refused_with_it(value: str, words: str, tmp_path: Path) -> None:
    """A typing error in one row must not become the end of time; the row's date is shown."""
    frame = complaints(many_complaints(300))
    frame.loc[17, "Date received"] = value
    with pytest.raises(UserError, match=words) as refused:
        featurise(
            complaint_recipe(), clean_folder(tmp_path / "clean", frame), tmp_path / "out" / "set", tmp_path / "known"
        )
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("out/*"))
    assert not (tmp_path / "known").exists()  # nor is it kept as what was known


def test_a_format_that_reads_the_year_wrongly_yields_to_one_that_fits() -> None:
    """`0102-03-04` is of the year 102 by %Y, but another format makes a date of it that can be."""
    values = pd.Series(["0102-03-04", "2023-05-06"], name="when")
    with pytest.raises(UserError, match=r"1 dates are not of the years .* for example '0102-03-04'"):
        parse_times(values, ("%Y-%m-%d",))
    assert parse_times(values, ("%Y-%m-%d", "%d%m-%y-%H")).dt.year.tolist() == [2003, 2023]
    extreme = pd.Series(["9999-12-31T23:00:00-0500"], name="when")
    with pytest.raises(UserError, match="not of the years"):
        parse_times(extreme, ("%Y-%m-%dT%H:%M:%S%z",))


def test_a_day_ahead_is_a_zone_and_no_future() -> None:
    """Dates without a zone are read as UTC, so a day more may be the present elsewhere."""
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    times = pd.Series(pd.to_datetime([now - timedelta(days=9), now + timedelta(days=1)]), name="when")
    refuse_future(times, now)
    with pytest.raises(UserError, match="1 rows lie in the future, for example 2026-05-02; it is 2026-05-01"):
        refuse_future(times, now - timedelta(minutes=1))


def test_an_unreachable_redis_is_one_line(parcels: Path, sound: pd.DataFrame) -> None:
    """The recipe's store does not answer: said with its address, and worth another try."""
    assert len(sound)
    recipe = delivery_recipe()
    features = recipe.features.model_copy(update={"online": "redis://127.0.0.1:9/0"})
    with (
        pytest.raises(TransientError, match=r"127\.0\.0\.1:9") as refused,
        OnlineFeatures(parcels.parent / "sound", recipe.model_copy(update={"features": features})) as online,
    ):
        online.read({"carrier_code": "swift", "origin": "Graz", "destination": "Linz"})
    assert "\n" not in str(refused.value)
