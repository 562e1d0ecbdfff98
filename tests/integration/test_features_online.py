"""The online store of a published training set: equal to offline as of the end, movable, never written."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from components.core.errors import IntegrityError, PolicyRefusal, UserError
from components.core.publish import verify
from components.features.featurise import featurise
from components.features.online import OnlineFeatures
from tests.fakes.feature_rows import (
    FIRST_DAY,
    clean_folder,
    complaint_recipe,
    complaints,
    deliveries,
    delivery_recipe,
    known_about,
    many_complaints,
)

ROWS = many_complaints(600, seed=3)
INPUTS = ["state_relief_rate", "company_relief_rate", "company_complaint_count", "company_days_to_send"]
RECIPE = complaint_recipe(features={"model_inputs": INPUTS})
AS_OF = max(row[0] for row in ROWS) + 30


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set, moved away from where it was made, and not writable."""
    folder = tmp_path_factory.mktemp("online")
    featurise(RECIPE, clean_folder(folder / "clean", complaints(ROWS)), folder / "first" / "set")
    moved = Path(shutil.move(folder / "first", folder / "second")) / "set"
    for path in [*moved.rglob("*"), moved]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return moved


@pytest.fixture(scope="module")
def store(published: Path) -> Iterator[OnlineFeatures]:
    """The store of that training set."""
    with OnlineFeatures(published, RECIPE) as opened:
        yield opened


def test_online_equals_offline_as_of_the_end(store: OnlineFeatures) -> None:
    """For every entity the value is what the oracle says was known when the last outcome was, in the recipe's order."""
    for company, state in sorted({(row[1], row[2]) for row in ROWS}):
        expected = known_about(ROWS, "company", company, AS_OF, 30) | known_about(ROWS, "state", state, AS_OF, 30)
        got = store.read({"company": company, "state": state})
        assert list(got) == INPUTS
        for name in INPUTS:
            value = got[name]["value"]
            if math.isnan(expected[name]):
                assert got[name] == {"value": None, "as_of": "", "fresh": False}
            else:
                assert value == pytest.approx(expected[name], rel=1e-12)
                assert got[name]["fresh"]


def test_as_of_is_when_the_newest_outcome_became_known(store: OnlineFeatures) -> None:
    """The moment of the company's last complaint plus the delay, in UTC."""
    last = max(row[0] for row in ROWS if row[1] == "Company 1")
    moment = datetime(FIRST_DAY.year, 1, 1, tzinfo=UTC) + timedelta(days=last + 30)
    got = store.read({"company": "Company 1", "state": "TX"})
    assert got["company_relief_rate"]["as_of"] == moment.isoformat()


@pytest.mark.parametrize("name", ["", "nobody", "company 1", "x' OR 1=1 --", "\0", "Ü" * 5000])
def test_an_unknown_entity_has_no_value(store: OnlineFeatures, name: str) -> None:
    """Any text may be asked for; what is not known of it is None, and what is known of the other key is there."""
    got = store.read({"company": name, "state": "TX", "more": "ignored"})
    assert got["company_relief_rate"] == {"value": None, "as_of": "", "fresh": False}
    assert got["state_relief_rate"]["value"] is not None


def test_a_missing_key_is_refused(store: OnlineFeatures) -> None:
    """The key that is needed is named."""
    with pytest.raises(UserError, match="entities: 'state' is missing; give company, state"):
        store.read({"company": "Company 1"})


def test_threads_read_what_one_reader_reads(store: OnlineFeatures) -> None:
    """Eight threads get the same answers as one."""
    asked = [{"company": f"Company {at % 25}", "state": "CA"} for at in range(400)]
    alone = [store.read(row) for row in asked]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(store.read, asked)) == alone


def test_reading_changes_no_file(published: Path) -> None:
    """After many readers, one of them with the store open, the folder still is what its manifest says."""
    with OnlineFeatures(published, RECIPE) as opened:
        opened.read({"company": "Company 1", "state": "TX"})
        verify(published)
    verify(published)


def test_a_changed_store_is_not_opened(published: Path, tmp_path: Path) -> None:
    """A byte that differs is found before anything is read."""
    copy = shutil.copytree(published, tmp_path / "copy")
    (copy / "online.db").chmod(0o644)
    with (copy / "online.db").open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"X")
    with pytest.raises(IntegrityError, match=r"online\.db"):
        OnlineFeatures(copy, RECIPE)


def test_model_inputs_of_another_training_set_are_refused(published: Path) -> None:
    """The recipe asks for a feature that this store does not have."""
    other = complaint_recipe(features={"model_inputs": ["company_size"]})
    with pytest.raises(UserError, match="'company_size' is not in training set"):
        OnlineFeatures(published, other)


def test_no_path_of_this_machine_is_published(published: Path) -> None:
    """Neither the registry nor any other file names the folder in which it was made."""
    for path in published.rglob("*"):
        if path.is_file():
            assert b"pytest-of-" not in path.read_bytes(), path.name


def test_what_is_too_old_is_not_given(tmp_path: Path) -> None:
    """With a time to live a value is given through its last day, then it is stale, as in training."""
    recipe = complaint_recipe(features={"ttl_days": 20})
    featurise(recipe, clean_folder(tmp_path / "clean", complaints(ROWS)), tmp_path / "set")
    with OnlineFeatures(tmp_path / "set", recipe) as opened:
        asked = {"company": "Company 1"}
        known_at = datetime.fromisoformat(opened.read(asked)["company_relief_rate"]["as_of"])
        last_moment = known_at + timedelta(days=20)
        assert opened.read(asked, at=last_moment)["company_relief_rate"]["fresh"]
        stale = opened.read(asked, at=last_moment + timedelta(seconds=1))["company_relief_rate"]
        assert stale == {"value": None, "as_of": known_at.isoformat(), "fresh": False}


def test_what_an_old_value_does_is_the_recipe_s(tmp_path: Path) -> None:
    """Refuse names the feature and its age; fallback gives the old value, flagged."""
    recipe = complaint_recipe(features={"ttl_days": 20})
    featurise(recipe, clean_folder(tmp_path / "clean", complaints(ROWS)), tmp_path / "set")
    asked = {"company": "Company 1"}
    with OnlineFeatures(tmp_path / "set", recipe) as opened:
        fresh = opened.read(asked, at=datetime(2023, 9, 30, tzinfo=UTC))["company_relief_rate"]
    late = datetime.fromisoformat(fresh["as_of"]) + timedelta(days=21)
    with OnlineFeatures(tmp_path / "set", complaint_recipe(features={"ttl_days": 20, "stale": "fallback"})) as opened:
        assert opened.read(asked, at=late)["company_relief_rate"] == fresh | {"fresh": False}
    with OnlineFeatures(tmp_path / "set", complaint_recipe(features={"ttl_days": 20, "stale": "refuse"})) as opened:
        assert opened.read(asked, at=late - timedelta(days=2))["company_relief_rate"] == fresh
        with pytest.raises(PolicyRefusal, match=r"feature company_.*: is as of 2023-.*older than 20 days"):
            opened.read(asked, at=late)


def test_the_future_is_not_served(tmp_path: Path) -> None:
    """Of an export that ends yesterday, outcomes that will count as known in the coming weeks are not in the store."""
    now = datetime.now(UTC)
    frame = complaints(ROWS)
    received = [(now - timedelta(days=1 + max(r[0] for r in ROWS) - row[0])).date().isoformat() for row in ROWS]
    frame["Date received"] = frame["Date sent to company"] = received
    featurise(RECIPE, clean_folder(tmp_path / "clean", frame), tmp_path / "set")
    history = pd.read_parquet(tmp_path / "set" / "history" / "company_history.parquet")
    assert history["event_timestamp"].max() > pd.Timestamp(now), "the history goes on"
    with OnlineFeatures(tmp_path / "set", RECIPE) as opened:
        for company, rows in history.groupby("company"):
            known = rows[rows["event_timestamp"] <= pd.Timestamp(now)]
            got = opened.read({"company": company, "state": "TX"})["company_complaint_count"]
            expected = known["company_complaint_count"].iloc[-1] if len(known) else None
            assert got["value"] == expected, company
        earlier = now - timedelta(days=100)
        assert opened.read({"company": "Company 1", "state": "TX"}, at=earlier)["company_relief_rate"]["value"] is None


def test_a_store_of_another_feature_service_is_refused(published: Path, tmp_path: Path) -> None:
    """A store that was filled for other features of a view is not read as these."""
    from components.features.latest.entries import Written, key_of, pack_numbers
    from components.features.latest.sqlite import SqliteLatest

    other = SqliteLatest(tmp_path / "other.db")
    body = pack_numbers(["something"], np.array([[1.0]]))[0]
    other.write("complaints:company_history", [Written(key_of(["Company 1"]), 10, 10, body)])
    other.close()
    named = complaint_recipe(features={"model_inputs": INPUTS, "online": str(tmp_path / "other.db")})
    with OnlineFeatures(published, named) as opened, pytest.raises(IntegrityError, match="holds other features than"):
        opened.read({"company": "Company 1", "state": "TX"})


def test_the_machine_s_time_zone_changes_nothing(
    store: OnlineFeatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store written on the other side of the world, over a change of the clocks, gives the same moments."""
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        featurise(RECIPE, clean_folder(tmp_path / "clean", complaints(ROWS)), tmp_path / "set")
    finally:
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
    try:
        with OnlineFeatures(tmp_path / "set", RECIPE) as there:
            for company in sorted({row[1] for row in ROWS}):
                asked = {"company": company, "state": "CA"}
                assert there.read(asked) == store.read(asked)
    finally:
        os.environ.pop("TZ", None)
        time.tzset()


def test_composite_keys_are_read(tmp_path: Path) -> None:
    """The second project's view on two keys answers too."""
    frame = deliveries(400)
    featurise(delivery_recipe(), clean_folder(tmp_path / "clean", frame), tmp_path / "set")
    with OnlineFeatures(tmp_path / "set", delivery_recipe()) as opened:
        got = opened.read({"carrier_code": "swift", "origin": "Graz", "destination": "Linz"})
        used = ((frame["from"] == "Graz") & (frame["to"] == "Linz")).sum()
        assert got["route_uses"]["value"] == used
        swift = frame[frame["carrier"] == "swift"]
        assert got["late_share"]["value"] == pytest.approx((swift["label"] == "late").mean())
