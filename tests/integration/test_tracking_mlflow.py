"""The MLflow adapter on SQLite: idempotent, concurrent, bounded, and stricter than MLflow."""

from __future__ import annotations

import math
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.core.errors import TransientError, UserError
from components.core.home import Home
from components.tracking.mlflow_tracking import Tracking


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """One home for all tests here: making the tables takes seconds."""
    return Home.at(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def tracking(place: Home) -> Tracking:
    """The adapter on it."""
    return Tracking.at(place)


def _model(place: Home, name: str) -> Path:
    folder = place.models / name / "model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_run_is_started_once_a_key(tracking: Tracking) -> None:
    """A second start with the key reopens the run, completes its parameters and adds none twice."""
    first = tracking.start("shop", "first", "key1", {"a": 1}, {"t": "x"})
    tracking.log_curve(first, [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25, "validation_loss": 0.3}])
    tracking.finish(first)
    again = tracking.start("shop", "again", "key1", {"a": 2, "b": [1, 2]}, {"t": "y"})
    other = tracking.start("shop", "other", "key2", {"a": 1}, {})
    assert again == first != other
    run = tracking._client.get_run(first)
    assert run.data.params == {"a": "1", "b": "[1, 2]"}
    assert run.info.status == "RUNNING"
    assert tracking.last_step(first, "loss") == 2
    assert tracking.last_step(first, "none") == -1
    assert tracking.metrics(first) == {"loss": 0.25, "validation_loss": 0.3}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_that_are_no_numbers_are_refused(tracking: Tracking, value: float) -> None:
    """Nothing of a point with NaN or infinity is logged."""
    run = tracking.start("shop", "r", "key-nan", {}, {})
    with pytest.raises(UserError, match="finite"):
        tracking.log_metrics(run, {"good": 1.0, "bad": value}, 1)
    assert tracking.metrics(run) == {}


@pytest.mark.parametrize("name", ["a\nb", "../x", "%2e%2e", "a/b", "", "x" * 200, "' OR name='x"])
def test_names_that_escape_are_refused(tracking: Tracking, place: Home, name: str) -> None:
    """Experiments, models, aliases and keys are plain names."""
    model = _model(place, "m1")
    calls = (
        lambda: tracking.start(name, "r", "k", {}, {}),
        lambda: tracking.start("shop", "r", name, {}, {}),
        lambda: tracking.ensure_version(name, "d", model, "", {}),
        lambda: tracking.versions(name),
        lambda: tracking.set_alias("shop", name, "1"),
    )
    for call in calls:
        with pytest.raises(UserError, match="use letters"):
            call()


def test_sources_outside_the_models_folder_are_refused(tracking: Tracking, place: Home, tmp_path: Path) -> None:
    """Absolute paths, dot-dot, links and percent signs do not lead a version out of the home."""
    link = place.models / "link"
    link.symlink_to(tmp_path)
    for source in (Path("/etc"), place.models / ".." / "mlartifacts", link, _model(place, "a%2e%2e")):
        with pytest.raises(UserError, match="must be a folder inside"):
            tracking.ensure_version("shop", "d", source, "", {})
    assert tracking.versions("shop") == []


def test_versions_are_made_once_a_digest_and_key_also_by_many_at_once(tracking: Tracking, place: Home) -> None:
    """Eight writers with four adapters, two digests: two versions, each writer told the right one."""
    source = _model(place, "m2")
    adapters = [Tracking.at(place) for _ in range(3)] + [tracking]
    for adapter in adapters:
        adapter.versions("race")

    def register(i: int) -> tuple[str, str]:
        digest = f"digest-{i % 2}"
        return digest, adapters[i % 4].ensure_version("race", digest, source, "", {"pilotline.key": "k"})

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(register, range(8)))
    found = tracking.versions("race")
    assert [row["version"] for row in found] == ["1", "2"]
    assert answers == {(row["digest"], row["version"]) for row in found}
    assert {row["source"] for row in found} == {str(source.resolve())}


def test_a_locked_store_is_waited_for(tracking: Tracking, place: Home) -> None:
    """A writer that holds SQLite for a moment delays a write and loses nothing."""
    run = tracking.start("shop", "r", "key-locked", {}, {})
    holder = sqlite3.connect(place.root / "mlflow.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        write = pool.submit(tracking.log_metrics, run, {"x": 1.0}, 1)
        time.sleep(0.5)
        holder.execute("ROLLBACK")
        write.result(timeout=60)
    holder.close()
    assert tracking.metrics(run) == {"x": 1.0}


def test_aliases_point_to_versions_and_go_quietly(tracking: Tracking, place: Home) -> None:
    """Set, read, moved, removed, and removed again."""
    versions = [tracking.ensure_version("alias", d, _model(place, "m3"), "", {}) for d in ("d1", "d2")]
    assert tracking.alias("alias", "champion") is None
    for version in versions:
        tracking.set_alias("alias", "champion", version)
        assert tracking.alias("alias", "champion") == version
    assert [row["aliases"] for row in tracking.versions("alias")] == [[], ["champion"]]
    for _ in range(2):
        tracking.delete_alias("alias", "champion")
    assert tracking.alias("alias", "champion") is None
    with pytest.raises(UserError, match="not found"):
        tracking.set_alias("alias", "champion", "99")


def test_a_dead_server_fails_within_seconds_and_hides_the_password(tmp_path: Path) -> None:
    """No minutes of retries: one line that says who does not answer."""
    began = time.monotonic()
    dead = Tracking("http://user:hunter2@127.0.0.1:9", tmp_path / "mlartifacts")
    with pytest.raises(TransientError, match="does not answer") as failed:
        dead.start("shop", "r", "k", {}, {})
    assert time.monotonic() - began < 60
    assert "hunter2" not in str(failed.value)
