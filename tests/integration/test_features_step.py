"""The featurise step: the published training set and bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from components.core.digest import file_digest
from components.core.errors import ContractViolation, IntegrityError, UserError
from components.core.publish import verify
from components.core.records import TrainingSetRef
from components.features.featurise import featurise
from tests.fakes.feature_rows import (
    clean_folder,
    complaint_recipe,
    complaints,
    deliveries,
    delivery_recipe,
    known_about,
    many_complaints,
)

ROWS = many_complaints(600)
FEATURES = ["company_complaint_count", "company_relief_rate", "company_untimely_rate", "company_days_to_send"]
FEATURES += ["state_complaint_count", "state_relief_rate", "state_untimely_rate"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSetRef, Path]:
    """A training set of 600 complaints."""
    folder = tmp_path_factory.mktemp("made")
    clean = clean_folder(folder / "clean", complaints(ROWS))
    return featurise(complaint_recipe(), clean, folder / "set"), folder / "set"


def _splits(folder: Path) -> dict[str, pd.DataFrame]:
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("train", "validation", "test")}


def test_the_folder_is_whole_and_the_record_names_its_bytes(made: tuple[TrainingSetRef, Path]) -> None:
    """Rows, positives, times and digests in the record are those of the files."""
    record, folder = made
    verify(folder)
    assert TrainingSetRef.read(folder) == record
    assert (record.features, record.entities) == (tuple(FEATURES), ("company", "state"))
    for name, frame in _splits(folder).items():
        split = record.split(name)
        assert (split.rows, split.positives) == (len(frame), int(frame["label"].sum()))
        assert split.digest == file_digest(folder / f"{name}.parquet")
        assert (split.time_min, split.time_max) == tuple(
            getattr(frame["event_timestamp"], side)().isoformat() for side in ("min", "max")
        )


def test_every_row_has_its_own_label_text_and_features(made: tuple[TrainingSetRef, Path]) -> None:
    """Each published row is the clean row of its id, with the oracle's features."""
    rows = {str(1000 + at): row for at, row in enumerate(ROWS)}
    for frame in _splits(made[1]).values():
        assert frame.columns.tolist() == [
            "row_id", "event_timestamp", "label", "text", "company", "state", *FEATURES, "group:Older American",
        ]  # fmt: skip
        assert (frame["label"].dtype, frame["group:Older American"].dtype) == (np.int8, np.bool_)
        for got in frame.to_dict("records"):
            row = rows[got["row_id"]]
            assert (got["label"], got["company"], got["state"]) == (int(row[3]), row[1], row[2])
            assert got["text"] == f"words {int(got['row_id']) - 1000}"
            expected = known_about(ROWS, "company", row[1], row[0], 30) | known_about(ROWS, "state", row[2], row[0], 30)
            np.testing.assert_allclose([got[name] for name in FEATURES], [expected[name] for name in FEATURES])


def test_no_row_is_lost_but_the_embargoed_ones(made: tuple[TrainingSetRef, Path]) -> None:
    """Rows of the splits and embargoed rows add up, and the gaps are 30 days."""
    record, folder = made
    counts = json.loads((folder / "statistics.json").read_text())
    assert sum(split.rows for split in record.splits) + sum(counts["embargoed"].values()) == len(ROWS)
    splits = _splits(folder)
    times = {name: frame["event_timestamp"] for name, frame in splits.items()}
    assert times["validation"].min() - times["train"].max() >= pd.Timedelta(days=30)
    assert times["test"].min() - times["validation"].max() >= pd.Timedelta(days=30)
    assert abs(record.split("test").rows / len(ROWS) - 0.2) < 0.02


def test_statistics_describe_the_rows(made: tuple[TrainingSetRef, Path]) -> None:
    """Counts, null shares and twelve-bucket histograms agree with the published rows."""
    _, folder = made
    about = json.loads((folder / "statistics.json").read_text())
    for name, frame in _splits(folder).items():
        for feature in FEATURES:
            stated, values = about["features"][feature][name], frame[feature].dropna()
            assert stated["count"] == len(frame)
            assert stated["null_share"] == pytest.approx(frame[feature].isna().mean())
            assert stated["mean"] == pytest.approx(values.mean())
            assert stated["quantiles"]["0.5"] == pytest.approx(values.median())
            assert (len(stated["histogram"]), sum(stated["histogram"])) == (12, len(values))


def test_the_same_rows_give_the_same_digest(made: tuple[TrainingSetRef, Path], tmp_path: Path) -> None:
    """A second run, of another folder, has the same splits byte for byte."""
    again = featurise(complaint_recipe(), clean_folder(tmp_path / "clean", complaints(ROWS)), tmp_path / "set")
    assert again == made[0]


def test_a_later_export_extends_the_training_rows_and_changes_none(
    made: tuple[TrainingSetRef, Path], tmp_path: Path
) -> None:
    """With two more months of rows the old training split is the beginning of the new one."""
    later = [(240 + row[0] // 4, *row[1:]) for row in many_complaints(300, seed=1)]
    folder = clean_folder(tmp_path / "clean", complaints([*ROWS, *later]))
    featurise(complaint_recipe(), folder, tmp_path / "set")
    before, after = _splits(made[1])["train"], _splits(tmp_path / "set")["train"]
    assert len(after) > len(before)
    pd.testing.assert_frame_equal(after.head(len(before)), before, check_exact=True)


def test_a_second_project_needs_no_change_here(tmp_path: Path) -> None:
    """Other names, two join keys, features of part of a view, times with a zone, parcels in any order."""
    frame = deliveries(400)
    record = featurise(delivery_recipe(), clean_folder(tmp_path / "clean", frame), tmp_path / "set")
    assert record.features == ("route_uses", "late_share")
    assert record.entities == ("origin", "destination", "carrier_code")
    sent = pd.to_datetime(frame["sent at"], utc=True)
    late = frame["label"] == "late"
    for got in pd.read_parquet(tmp_path / "set" / "test.parquet").to_dict("records"):
        when = got["event_timestamp"]
        on_route = (frame["from"] == got["origin"]) & (frame["to"] == got["destination"]) & (sent < when)
        known = (frame["carrier"] == got["carrier_code"]) & (sent + pd.Timedelta(days=3) <= when)
        assert got["route_uses"] == on_route.sum()
        assert got["late_share"] == pytest.approx(late[known].mean())


def _one_class(frame: pd.DataFrame) -> None:
    frame["Company response to consumer"] = "Closed with explanation"


def _bad_date(frame: pd.DataFrame) -> None:
    frame.loc[7, "Date received"] = "yesterday"


def _short(frame: pd.DataFrame) -> None:
    frame.drop(frame.index[60:], inplace=True)


@pytest.mark.parametrize(
    ("change", "recipe", "words"),
    [
        (None, {"features": {"model_inputs": ["company_relief"]}}, "did you mean 'company_relief_rate'"),
        (
            None,
            {"features": {"service": "complaint_triage_v9"}},
            "has no feature service .*did you mean 'complaint_triage_v",
        ),
        (None, {"features": {"entities": {"company": "Company"}}}, "joins on 'state'; add state"),
        (None, {"features": {"repo": "feature_repo/nothing"}}, "features.repo 'feature_repo/nothing': not found"),
        (None, {"features": {"repo": "components"}}, "holds no features.py"),
        (None, {"evaluation": {"embargo_days": 10}}, "embargo_days 10 is shorter than features.label_delay_days 30"),
        (_one_class, {}, "train split: all .* rows are negative"),
        (_bad_date, {}, "1 dates fit none of .*'yesterday'"),
        (_short, {}, "split is empty"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_left(
    tmp_path: Path, change: Callable[[pd.DataFrame], None] | None, recipe: dict[str, Any], words: str
) -> None:
    """One line that says what and where; no output folder, no staging folder."""
    frame = complaints(ROWS)
    if change:
        change(frame)
    clean = clean_folder(tmp_path / "in" / "clean", frame)
    with pytest.raises(UserError, match=words) as refused:
        featurise(complaint_recipe(**recipe), clean, tmp_path / "out" / "set")
    assert "\n" not in str(refused.value)
    assert not list((tmp_path).glob("out/*"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("def definitions", "def definition", "features.py: does not load .AttributeError"),
        ("from datetime", "from datetimes", "features.py: does not load .ModuleNotFoundError"),
        ('source=source("lateness")', 'source=source("missing")', "missing.sql: cannot be read"),
        ('name="late_share"', 'name="late_y"', "definitions.. failed"),
        ('project = "deliveries"', 'project = "my deliveries"', "needs `project`"),
        ('"parcels"', '"late_share"', "two features of one name"),
        ('name="route_uses"', 'name="label"', "the name 'label' is reserved"),
    ],
)
def test_a_bad_feature_project_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    """What is wrong in features.py is said with its path, and nothing is left."""
    recipe = delivery_recipe()
    repo = shutil.copytree(recipe.features.repo, tmp_path / "repo", ignore=shutil.ignore_patterns("__pycache__"))
    text = (repo / "features.py").read_text()
    assert old in text
    (repo / "features.py").write_text(text.replace(old, new))
    recipe = recipe.model_copy(update={"features": recipe.features.model_copy(update={"repo": str(repo)})})
    clean = clean_folder(tmp_path / "in" / "clean", deliveries(400))
    with pytest.raises(UserError, match=words) as refused:
        featurise(recipe, clean, tmp_path / "out" / "set")
    assert "\n" not in str(refused.value)
    assert not list((tmp_path).glob("out/*"))


def test_altered_rows_and_failed_contracts_are_not_read(tmp_path: Path) -> None:
    """A byte that differs from the manifest, or a contract that did not pass, stops the step."""
    frame = complaints(ROWS)
    failed = clean_folder(tmp_path / "failed", frame, passed=False)
    with pytest.raises(ContractViolation):
        featurise(complaint_recipe(), failed, tmp_path / "set")
    altered = clean_folder(tmp_path / "altered", frame)
    with (altered / "clean.parquet").open("r+b") as stream:
        stream.seek(100)
        stream.write(b"X")
    with pytest.raises(IntegrityError):
        featurise(complaint_recipe(), altered, tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_real_complaints(real_csv: Path, tmp_path: Path) -> None:
    """On the real file every row is placed, and the company's relief rate ranks the test rows as measured before."""
    from sklearn.metrics import roc_auc_score

    frame = pd.read_csv(real_csv, dtype=str, keep_default_na=False)
    recipe = complaint_recipe(
        source={"time_formats": ["%m/%d/%y"]},
        model={"positive_values": ["Closed with monetary relief", "Closed with non-monetary relief"]},
    )
    record = featurise(recipe, clean_folder(tmp_path / "clean", frame), tmp_path / "set")
    assert {split.name: (split.rows, split.positives) for split in record.splits} == {
        "train": (1272, 121),
        "validation": (282, 24),
        "test": (570, 52),
    }
    test = pd.read_parquet(tmp_path / "set" / "test.parquet")
    assert roc_auc_score(test["label"], test["company_relief_rate"].fillna(0.09)) == pytest.approx(0.75, abs=0.01)
