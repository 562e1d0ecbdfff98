"""Parity of training and online reads: none differs in a right project; a planted difference is found and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from components.core.errors import PolicyRefusal
from components.features import featurise as step
from components.features.feast_store import join_history
from components.features.featurise import featurise
from components.features.latest.entries import Written, key_of, pack_numbers
from components.features.latest.sqlite import SqliteLatest, settle
from components.features.online import write_online
from components.features.parity import measure_parity, sample
from tests.fakes.feature_rows import (
    clean_folder,
    complaint_recipe,
    complaints,
    deliveries,
    delivery_recipe,
    many_complaints,
)

ROWS = complaints(many_complaints(600, seed=3))
FEATURES = ("company_complaint_count", "company_relief_rate", "company_untimely_rate", "company_days_to_send")
SEVENS = np.full((1, len(FEATURES)), 7.0)


@pytest.mark.parametrize("ttl", [0, 20])
def test_a_right_project_has_no_skew(ttl: int, tmp_path: Path) -> None:
    """Of hundreds of values, with and without a time to live, none differs, and the record says so."""
    recipe = complaint_recipe(features={"ttl_days": ttl})
    record = featurise(recipe, clean_folder(tmp_path / "clean", ROWS), tmp_path / "set")
    kept = json.loads((tmp_path / "set" / "parity.json").read_text())
    assert (record.skew, kept["skew"], kept["differing"]) == (0.0, 0.0, 0)
    assert kept["moments"] >= 10
    assert kept["values"] == kept["rows"] * 2 >= 50


def test_composite_keys_and_zones_have_no_skew(tmp_path: Path) -> None:
    """The other project: two keys a view, times to the second in another zone."""
    record = featurise(delivery_recipe(), clean_folder(tmp_path / "clean", deliveries(400)), tmp_path / "set")
    assert record.skew == 0.0


def test_skew_is_refused_with_the_value_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training value that no online read gives stops the step; nothing is published; a recipe may allow it."""
    join = join_history

    def shifted(*given: object) -> pd.DataFrame:
        found = join(*given)  # type: ignore[arg-type]
        return found.assign(company_complaint_count=found["company_complaint_count"] + 1)

    monkeypatch.setattr(step, "join_history", shifted)
    clean = clean_folder(tmp_path / "clean", ROWS)
    with pytest.raises(PolicyRefusal, match=r"features.max_skew: .* company_complaint_count of .*'company': 'Company"):
        featurise(complaint_recipe(), clean, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    record = featurise(complaint_recipe(features={"max_skew": 0.5}), clean, tmp_path / "set")
    assert 0.3 < record.skew <= 0.5


def test_a_value_that_only_one_side_has_is_a_difference(tmp_path: Path) -> None:
    """No value against a value counts, in both directions; two absent ones agree."""
    from components.features.online import describe_online

    featurise(complaint_recipe(), clean_folder(tmp_path / "clean", ROWS), tmp_path / "set")
    project, service = describe_online(tmp_path / "set")
    frame = pd.read_parquet(tmp_path / "set" / "test.parquet")
    chosen = sample(frame)
    name = "company_complaint_count"
    absent = frame.assign(**{name: float("nan")})
    history, zero = tmp_path / "set" / "history", pd.Timedelta(0).to_pytimedelta()
    found = measure_parity(absent, project, service, [name], history, zero)
    assert found.differing == int(chosen[name].notna().sum()) > 0
    nobody = frame.assign(company="nobody", **{name: 3.0})
    assert measure_parity(nobody, project, service, [name], history, zero).skew == 1.0
    assert measure_parity(absent.assign(company="nobody"), project, service, [name], history, zero).skew == 0.0


def test_the_store_that_is_published_is_compared_too(tmp_path: Path) -> None:
    """At the moment up to which it is filled, for many entities; none differs."""
    featurise(complaint_recipe(), clean_folder(tmp_path / "clean", ROWS), tmp_path / "set")
    kept = json.loads((tmp_path / "set" / "parity.json").read_text())
    (served,) = kept["served"]
    assert served["store"] == "of the training set"
    assert served["values"] == served["entities"] * 2 >= 40
    assert (served["differing"], served["ahead"]) == (0, 0)
    as_of = json.loads((tmp_path / "set" / "statistics.json").read_text())["as_of"]
    assert pd.Timestamp(served["at"]) == pd.Timestamp(as_of) + pd.Timedelta(days=1)


def test_a_published_store_that_says_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entity's value in the shipped file differs from the history's: refused by its name, though replay agrees."""
    write = write_online

    def with_one_changed(folder: Path, project: str, *rest: object) -> None:
        write(folder, project, *rest)  # type: ignore[arg-type]
        store = SqliteLatest(folder / "online.db")
        table = f"{project}:company_history"
        for company in sorted(set(ROWS["Company"])):
            (entry,) = store.read([(table, key_of([company]))])
            if entry is not None:
                store.write(
                    table, [Written(key_of([company]), entry.event, entry.created, pack_numbers(FEATURES, SEVENS)[0])]
                )
        store.close()
        settle(folder / "online.db")

    monkeypatch.setattr(step, "write_online", with_one_changed)
    with pytest.raises(PolicyRefusal, match=r"features.max_skew: .* in training, 7.0 online"):
        featurise(complaint_recipe(), clean_folder(tmp_path / "clean", ROWS), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_nothing_to_compare_is_no_parity(tmp_path: Path) -> None:
    """Without a row the skew is no number, which no limit allows."""
    from components.features.online import describe_online

    featurise(complaint_recipe(), clean_folder(tmp_path / "clean", ROWS), tmp_path / "set")
    project, service = describe_online(tmp_path / "set")
    frame = pd.read_parquet(tmp_path / "set" / "test.parquet").iloc[:0]
    zero = pd.Timedelta(0).to_pytimedelta()
    found = measure_parity(frame, project, service, ["company_relief_rate"], tmp_path / "set" / "history", zero)
    assert not found.skew <= 1.0
