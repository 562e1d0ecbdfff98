"""`pilotline features`: apply, materialize and parity on a home, alone and many at once."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from components.core.home import Home
from components.features.featurise import featurise
from components.features.latest.entries import key_of
from components.features.latest.sqlite import SqliteLatest
from components.features.online import OnlineFeatures
from pipelines.cli import main
from tests.fakes.feature_rows import clean_folder, complaint_recipe, complaints, many_complaints
from tests.fakes.redis_server import redis_server

ROWS = complaints(many_complaints(600, seed=3))
RECIPE = complaint_recipe()


@pytest.fixture(scope="module")
def training_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published training set."""
    folder = tmp_path_factory.mktemp("command")
    featurise(RECIPE, clean_folder(folder / "clean", ROWS), folder / "set")
    return folder / "set"


def said(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and the JSON of a command; what writes to a store names the home's where the words name none."""
    if words[0] in ("materialize", "push") and not any("features.online=" in word for word in words):
        words = (*words, "--set", f"features.online={_place(home)}")
    status = main(["features", *words, "--home", str(home), "--json"])
    out = capsys.readouterr().out.strip().splitlines()
    return status, json.loads(out[-1]) if out else {}


def test_what_is_materialized_is_what_the_recipe_then_reads(
    training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two steps of time, into the home's store; a recipe that names it reads what the training set's own holds."""
    words = ["materialize", "--training-set", str(training_set)]
    status, first = said(capsys, tmp_path, *words, "--until", "2023-06-30")
    assert status == 0
    assert all(view["rows"] > 0 for view in first["views"])
    status, second = said(capsys, tmp_path, *words)
    assert status == 0
    assert second["until"] > first["until"]
    named = complaint_recipe(features={"online": str(tmp_path / "features" / "online.db")})
    with OnlineFeatures(training_set, RECIPE) as own, OnlineFeatures(training_set, named) as shared:
        for at in range(25):
            asked = {"company": f"Company {at}", "state": "TX"}
            assert shared.read(asked) == own.read(asked)
    assert [view["rows"] for view in said(capsys, tmp_path, *words)[1]["views"]] == [0, 0]


@pytest.mark.redis
def test_redis_by_a_recipe_whose_password_is_in_the_environment(
    training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is read from the environment and stands nowhere in the home."""
    with redis_server(tmp_path) as url:
        monkeypatch.setenv("FEATURES_AT", url.removeprefix("redis://"))
        online = "redis://${FEATURES_AT}"
        words = ["--set", f"features.online={online}"]
        status, done = said(capsys, tmp_path / "home", "materialize", "--training-set", str(training_set), *words)
        assert (status, done["online"]) == (0, online)
        assert said(capsys, tmp_path / "home", "apply", *words)[0] == 0
        named = complaint_recipe(features={"online": online})
        with OnlineFeatures(training_set, RECIPE) as own, OnlineFeatures(training_set, named) as shared:
            asked = {"company": "Company 1", "state": "TX"}
            assert shared.read(asked) == own.read(asked)
        for path in (tmp_path / "home").rglob("*"):
            if path.is_file():
                assert url.removeprefix("redis://").encode() not in path.read_bytes(), path.name


def test_parity_says_equal_or_where_not(training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal is exit 0; with other training rows the same command is exit 3 and names a value."""
    status, found = said(capsys, tmp_path, "parity", "--training-set", str(training_set))
    assert (status, found["differing"], found["passed"]) == (0, 0, True)
    assert found["values"] > 200
    other = tmp_path / "other"
    featurise(RECIPE, clean_folder(tmp_path / "clean", complaints(many_complaints(600, seed=4))), other)
    from components.core.publish import MANIFEST, publishing

    with publishing(tmp_path / "mixed") as staging:
        for path in other.rglob("*"):
            if path.is_file() and path.name != MANIFEST:
                place = staging / path.relative_to(other)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(path.read_bytes())
        for path in (training_set / "history").iterdir():
            (staging / "history" / path.name).write_bytes(path.read_bytes())
    status, found = said(capsys, tmp_path, "parity", "--training-set", str(tmp_path / "mixed"))
    assert (status, found["passed"]) == (3, False)
    assert found["differing"] > 0
    assert found["examples"][0]["feature"] in found["by_feature"]


def test_pushed_rows_are_served_and_not_taken_for_skew(
    training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the home's store from a file and from standard input; later than the history, so parity leaves them out.

    A push that says something else of what the history tells is skew.
    """
    given = ["--training-set", str(training_set)]
    assert said(capsys, tmp_path, "materialize", *given)[0] == 0
    rates = {"company_relief_rate": 0.5, "company_untimely_rate": 0.25, "company_days_to_send": None}
    row = {"view": "company_history", "company": "Company 1", "company_complaint_count": 400} | rates
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps(row | {"event_timestamp": "2024-05-01T10:00:00+02:00"}) + "\n")
    assert said(capsys, tmp_path, "push", str(events), *given) == (
        0,
        {"online": _place(tmp_path), "rows": 1, "older": 0, "rejected": 0},
    )
    older = json.dumps(row | {"event_timestamp": "2024-04-01", "company_complaint_count": 3})
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(f"{older}\nnonsense\n".encode())))
    status, done = said(capsys, tmp_path, "push", "-", "--skip-bad", "--batch", "1", *given)
    assert (status, done["rows"], done["older"], done["rejected"]) == (0, 0, 1, 1)
    named = complaint_recipe(features={"online": _place(tmp_path)})
    with OnlineFeatures(training_set, named) as shared:
        found = shared.read({"company": "Company 1", "state": "TX"})["company_complaint_count"]
    assert found == {"value": 400.0, "as_of": "2024-05-01T08:00:00+00:00", "fresh": True}
    status, compared = said(capsys, tmp_path, "parity", *given)
    own, home = compared["served"]
    assert (status, own["differing"], home["differing"], own["ahead"]) == (0, 0, 0, 0)
    states = set(ROWS.loc[ROWS["Company"] == "Company 1", "State"])
    assert home["ahead"] == 4 * len(states), "the company's four features, beside each state"
    history = pd.read_parquet(training_set / "history" / "company_history.parquet")
    last = history[history["company"] == "Company 2"]["event_timestamp"].max().isoformat()
    events.write_text(json.dumps(row | {"company": "Company 2", "event_timestamp": last}) + "\n")
    assert said(capsys, tmp_path, "push", str(events), *given)[0] == 0
    status, compared = said(capsys, tmp_path, "parity", *given)
    assert status == 3
    assert [one["differing"] > 0 for one in compared["served"]] == [False, True]
    assert compared["examples"][0]["entities"]["company"] == "Company 2"


def test_a_bad_push_writes_nothing_and_says_each_row(
    training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a bad row on standard error, one that says what to do, and exit 2."""
    events = tmp_path / "events.jsonl"
    good: dict[str, Any] = {"view": "state_history", "state": "TX", "event_timestamp": "2024-05-01"}
    good |= {"state_complaint_count": 1, "state_relief_rate": None, "state_untimely_rate": None}
    events.write_text("\n".join([json.dumps(good), json.dumps(good | {"state": 3}), "[]"]))
    named = ["--set", f"features.online={_place(tmp_path)}"]
    given = ["--training-set", str(training_set), "--home", str(tmp_path), *named]
    assert main(["features", "push", str(events), *given]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == [
        "line 2: join key 'state' is no text",
        "line 3: is no JSON object",
        "pilotline: push: 2 bad rows, and nothing was written; mend them and push again, or give --skip-bad",
    ]
    store = SqliteLatest(_online(tmp_path))
    assert store.read([("complaints:state_history", key_of(["TX"]))]) == [None]
    store.close()


def test_what_nobody_would_read_is_not_written(
    training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No store is named, or one that cannot be made: exit 2 and one line, and no file."""
    (tmp_path / "file").write_text("")
    for verb in (["materialize"], ["push", os.devnull]):
        words = ["features", *verb, "--training-set", str(training_set), "--home", str(tmp_path / "home")]
        assert main(words) == 2
        assert "features.online is empty" in capsys.readouterr().err
        assert main([*words, "--set", f"features.online={tmp_path / 'file' / 'below' / 'x.db'}"]) == 2
        assert "its folder cannot be made" in capsys.readouterr().err
    assert not Path(_place(tmp_path / "home")).exists()


def test_parity_says_nothing_of_a_store_that_it_cannot_compare(
    training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never filled, or filled with later values of most entities: exit 3; a rebuild mends the latter."""
    given = ["--training-set", str(training_set), "--set", f"features.online={_place(tmp_path)}"]
    status, found = said(capsys, tmp_path, "parity", *given)
    assert (status, found["differing"]) == (3, 0)
    assert "was never filled" in found["insufficient"][0]
    assert said(capsys, tmp_path, "materialize", *given)[0] == 0
    assert said(capsys, tmp_path, "parity", *given)[0] == 0
    with closing(sqlite3.connect(_place(tmp_path))) as store, store:
        store.execute("UPDATE latest SET event = event + 100000000000000")
    status, found = said(capsys, tmp_path, "parity", *given)
    assert (status, found["passed"]) == (3, False)
    assert "holds later events" in found["insufficient"][0]
    status, done = said(capsys, tmp_path, "materialize", *given, "--whole")
    assert all(view["rows"] == 0 < view["older"] for view in done["views"])
    status, done = said(capsys, tmp_path, "materialize", *given, "--rebuild")
    assert all(view["older"] == 0 < view["rows"] for view in done["views"])
    assert said(capsys, tmp_path, "parity", *given)[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["materialize"], "holds no training set; run the pipeline first, or give --training-set DIR"),
        (["parity", "--training-set", "nowhere"], "nowhere"),
        (["apply", "--set", "features.service=complaint_triage_v9"], "did you mean 'complaint_triage_v"),
        (["apply", "--set", 'features.entities={company="Company"}'], "joins on 'state'"),
        (["materialize", "--training-set", "."], "was not published by a step"),
        (["push", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["push", "-", "--batch", "few"], "'few' is no whole number"),
        (["apply", "--set", "features.online=redis://:hunter2@host/0"], "features.online holds a password"),
    ],
)
def test_bad_usage_is_one_line(words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what is wrong; a password is not repeated."""
    assert main(["features", *words, "--home", str(tmp_path)]) in (2, 3)
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilotline:")]
    assert len(err) == 1
    assert says in err[0]
    assert "hunter2" not in err[0]


def test_a_time_that_is_none_is_refused(training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--until` names the form it wants."""
    words = ["materialize", "--training-set", str(training_set), "--until", "June"]
    assert main(["features", *words, "--home", str(tmp_path)]) == 2
    assert "--until 'June': write a time as" in capsys.readouterr().err


@pytest.mark.slow
def test_apply_materialize_and_reads_at_once_lose_nothing(training_set: Path, tmp_path: Path) -> None:
    """Two processes apply different services, two materialize, one reads throughout: all of it is there at the end."""
    call = [str(Path(sys.executable).with_name("pilotline"))]
    home = ["--home", str(tmp_path)]
    fill = [*call, "features", "materialize", *home, "--training-set", str(training_set)]
    fill += ["--set", f"features.online={_place(tmp_path)}"]
    commands = [
        [*call, "features", "apply", *home],
        [*call, "features", "apply", *home, "--set", "features.service=complaint_triage_v2"],
        fill,
        [*fill, "--whole"],
    ]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    reads = 0
    store = SqliteLatest(_online(tmp_path))
    while any(process.poll() is None for process in running):
        store.read([("complaints:company_history", b"s9:Company 1")])
        reads += 1
        time.sleep(0.02)
    store.close()
    told = [(process.communicate(timeout=500)[1], process.returncode) for process in running]
    assert [status for _, status in told] == [0, 0, 0, 0], told
    assert reads > 10
    from feast import FeatureStore

    shared = FeatureStore(repo_path=str(tmp_path / "features"))
    names = {"company_history", "state_history", "company_windows", "state_windows"}
    assert {view.name for view in shared.list_feature_views()} == names
    services = {service.name for service in shared.list_feature_services()}
    assert services == {"complaint_triage_v1", "complaint_triage_v2"}
    named = complaint_recipe(features={"online": str(_online(tmp_path))})
    history = pd.read_parquet(training_set / "history" / "company_history.parquet")
    with OnlineFeatures(training_set, RECIPE) as own, OnlineFeatures(training_set, named) as now:
        for company in sorted(set(history["company"])):
            asked = {"company": company, "state": "CA"}
            assert now.read(asked) == own.read(asked)
    served = shared.get_online_features(
        features=["company_history:company_complaint_count"], entity_rows=[{"company": "Company 1"}]
    ).to_dict()
    last = history[history["company"] == "Company 1"].sort_values("event_timestamp").iloc[-1]
    assert served["company_complaint_count"] == [last["company_complaint_count"]]


def _online(home: Path) -> Path:
    place = Home.at(home).features
    place.mkdir(parents=True, exist_ok=True)
    return place / "online.db"


def _place(home: Path) -> str:
    return str(Home.at(home).features / "online.db")
