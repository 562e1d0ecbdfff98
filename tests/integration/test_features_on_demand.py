"""Features of the request: one function for training and serving, and no other code passes for it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pandas as pd
import pytest

from components.core.digest import file_digest
from components.core.errors import IntegrityError, PolicyRefusal, UserError
from components.core.home import Home
from components.core.records import TrainingSetRef
from components.features.featurise import featurise
from components.features.online import OnlineFeatures
from pipelines.features import apply, parity
from tests.fakes.feature_request_case import CODE, FEATURES, request_project, request_recipe
from tests.fakes.feature_rows import (
    ROOT,
    clean_folder,
    complaint_recipe,
    complaints,
    deliveries,
    many_complaints,
)

KEYS = {"carrier_code": "swift", "origin": "Graz", "destination": "Linz"}


def parcels(count: int = 400) -> pd.DataFrame:
    """Deliveries with a note and a weight, some without."""
    frame = deliveries(count)
    notes = ["fragile glass", "", "Ring twice, ünïcode", "x" * 300]
    return frame.assign(
        note=[notes[at % 4] for at in range(count)],
        kg=["" if at % 5 == 0 else f"{1 + at % 9}.5" for at in range(count)],
    )


def expected(row: pd.Series) -> dict[str, float]:
    """The oracle: from the clean row, by hand."""
    sent = datetime.strptime(row["sent at"], "%Y-%m-%dT%H:%M:%S%z").astimezone(UTC)
    return {
        "note_length": float(len(row["note"])),
        "weight_log": math.log(float(row["kg"])) if row["kg"] else math.nan,
        "is_main_depot": float(row["depot"] == "A"),
        "carrier_letters": float(len(row["carrier"])),
        "sent_hour": float(sent.hour),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, TrainingSetRef]:
    """The project, its training set's folder and record."""
    root = tmp_path_factory.mktemp("parcels")
    repo = request_project(root / "repo")
    record = featurise(request_recipe(repo), clean_folder(root / "clean", parcels()), root / "set")
    return repo, root / "set", record


def rows_of(folder: Path) -> pd.DataFrame:
    """All splits."""
    return pd.concat([pd.read_parquet(folder / f"{name}.parquet") for name in ("train", "validation", "test")])


def test_training_holds_what_each_row_says_itself(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Every row's values are those of its own clean row; rows stay rows, and parity compared every feature."""
    _, folder, record = made
    clean = parcels()
    clean.index = pd.Index(clean["depot"] + "|" + clean["number"])
    rows = rows_of(folder)
    assert len(rows) > 300
    for row in rows.to_dict("records"):
        for name, value in expected(clean.loc[row["row_id"]]).items():
            assert row[name] == pytest.approx(value, nan_ok=True), (row["row_id"], name)
    assert (record.on_demand, record.skew) == (FEATURES, 0.0)
    assert set(json.loads((folder / "parity.json").read_text())["by_feature"]) >= set(FEATURES)


def test_online_answers_what_training_holds(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Held-out rows as requests: each feature of the request is equal, and as of the request's time."""
    repo, folder, _ = made
    with OnlineFeatures(folder, request_recipe(repo)) as online:
        for row in pd.read_parquet(folder / "test.parquet").head(40).to_dict("records"):
            time = row["event_timestamp"].to_pydatetime().astimezone(timezone(timedelta(hours=5)))
            request = {"text": row["text"], "event_timestamp": time}
            request |= {name: row[f"request:{name}"] for name in ("depot_name", "weight")}
            got = online.read({name: row[name] for name in KEYS}, request)
            for name in FEATURES:
                value = None if math.isnan(row[name]) else row[name]
                assert got[name] == {"value": value, "as_of": time.astimezone(UTC).isoformat(), "fresh": True}
        assert got["late_share"]["as_of"] != got["sent_hour"]["as_of"]


def test_without_a_time_the_request_is_now_and_without_an_input_it_is_refused(
    made: tuple[Path, Path, TrainingSetRef],
) -> None:
    """The moment of the decision stands in for the event's; nothing stands in for an input."""
    repo, folder, _ = made
    given = {"text": "", "depot_name": "A", "weight": ""}
    with OnlineFeatures(folder, request_recipe(repo)) as online:
        now = online.read(KEYS, given, at=datetime(2026, 5, 1, 17, 59, tzinfo=UTC))
        assert (now["sent_hour"]["value"], now["weight_log"]["value"]) == (17.0, None)
        with pytest.raises(UserError, match="request: 'weight' is missing; parcel_request takes text, depot_name"):
            online.read(KEYS, {"text": "", "depot_name": "A"})


def test_other_code_is_refused_by_name_and_digest(made: tuple[Path, Path, TrainingSetRef], tmp_path: Path) -> None:
    """One changed byte of on_demand.py, or none of it: no online read and no parity; who asks for none is served."""
    repo, folder, record = made
    other = Path(shutil.copytree(repo, tmp_path / "other"))
    assert record.on_demand_digest == file_digest(repo / "on_demand.py")
    (other / "on_demand.py").write_text(CODE + "\n")
    words = (
        f"on_demand.py: has digest {file_digest(other / 'on_demand.py')[:12]}, but .* {record.on_demand_digest[:12]}"
    )
    with pytest.raises(IntegrityError, match=words):
        OnlineFeatures(folder, request_recipe(other))
    with pytest.raises(IntegrityError, match=words):
        parity(Home.at(tmp_path / "home"), request_recipe(other), str(folder))
    (other / "on_demand.py").unlink()
    with pytest.raises(IntegrityError, match=r"on_demand.py: is not there"):
        OnlineFeatures(folder, request_recipe(other))
    with OnlineFeatures(folder, request_recipe(other, model_inputs=["late_share"])) as online:
        assert set(online.read(KEYS)) == {"late_share"}


def test_the_command_compares_every_feature_again(made: tuple[Path, Path, TrainingSetRef], tmp_path: Path) -> None:
    """`features apply` lists the view, `features parity` finds no difference."""
    repo, folder, record = made
    home = Home.at(tmp_path / "home")
    assert apply(home, request_recipe(repo))["views"]["parcel_request"] == list(FEATURES)
    found = parity(home, request_recipe(repo), str(folder))
    assert (found["passed"], found["differing"]) == (True, 0)
    assert set(found["by_feature"]) == set(record.features)


def test_code_that_answers_otherwise_each_time_is_skew(tmp_path: Path) -> None:
    """A function that counts its calls gives other values online than in training: refused, nothing published."""
    code = CODE.replace("import numpy as np", "import itertools\n\nimport numpy as np\n\nCALLS = itertools.count()")
    repo = request_project(tmp_path / "repo", code.replace("len(text)", "next(CALLS)"))
    with pytest.raises(PolicyRefusal, match=r"features.max_skew: .* note_length of"):
        featurise(request_recipe(repo), clean_folder(tmp_path / "clean", parcels()), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_a_row_that_the_function_cannot_take_stops_the_step_without_quoting_it(tmp_path: Path) -> None:
    """One line with the function, the row and the kind of error; not the value, which may be personal."""
    frame = parcels()
    frame.loc[2, "kg"] = "4 of Anna Secret's"
    repo = request_project(tmp_path / "repo")
    with pytest.raises(UserError, match=r"^on_demand.py: parcel_request\(\) failed for entity row \d+ \(ValueError\)$"):
        featurise(request_recipe(repo), clean_folder(tmp_path / "clean", frame), tmp_path / "set")


def test_feast_computes_the_same_from_the_published_registry(
    made: tuple[Path, Path, TrainingSetRef], tmp_path: Path
) -> None:
    """The folder, moved, opened with plain Feast in a process that never saw the project: the test rows again."""
    _, folder, record = made
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    code = f"""
import pandas as pd
from feast import FeatureStore
rows = pd.read_parquet("test.parquet")
asked = rows[["event_timestamp", "carrier_code", "origin", "destination", "text"]]
asked = asked.assign(depot_name=rows["request:depot_name"], weight=rows["request:weight"])
store = FeatureStore(".")
found = store.get_historical_features(asked, store.get_feature_service("parcels_v3"), filter_by_created_timestamp=True)
names = {[*record.features]!r}
pd.testing.assert_frame_equal(found.to_df()[names].astype(float), rows[names])
view = store.get_on_demand_feature_view("parcel_request")
assert (view.owner, view.description, view.tags["sent_hour.unit"]) == ("post", "Of the parcel.", "some")
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=moved, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_the_shipped_view_says_what_a_complaint_says(tmp_path: Path) -> None:
    """complaint_triage_v2 on rows with, without and with masked narratives, against counts by hand."""
    frame = complaints(many_complaints(420, days=300)).assign(Product="Loan")
    texts = ["On XX/XX/XXXX I paid {$12.00} to XXXX, twice.", "", "They owe me 30 dollars"]
    frame["Consumer complaint narrative"] = [texts[at % 3] for at in range(len(frame))]
    names = ("narrative_words", "narrative_masked_share", "narrative_digit_share", "received_weekday")
    recipe = complaint_recipe(features={"service": "complaint_triage_v2", "model_inputs": list(names)})
    record = featurise(recipe, clean_folder(tmp_path / "clean", frame), tmp_path / "set")
    rows = rows_of(tmp_path / "set")
    by_hand = {texts[0]: (8, 3 / 8, 4 / 45), texts[1]: (math.nan,) * 3, texts[2]: (5, 0, 2 / 22)}
    assert (record.on_demand, set(rows["text"])) == (names, set(texts))
    for row in rows.to_dict("records"):
        assert [row[name] for name in names[:3]] == pytest.approx(by_hand[row["text"]], nan_ok=True)
        assert row["received_weekday"] == (row["event_timestamp"].toordinal() + 6) % 7
