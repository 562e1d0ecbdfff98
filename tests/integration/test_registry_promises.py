"""What registration and promotion rely on, held by the real tracking adapter and by its fake alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import PolicyRefusal, UserError
from components.registry.history import history
from components.registry.promote import promote
from components.tracking.mlflow_tracking import Tracking
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import ledger_of, registered, rollout_report, version_ref

MAKERS: dict[str, Callable[[Path], Any]] = {
    "fake": lambda root: FakeTracking(root / "models"),
    "mlflow": lambda root: Tracking(f"sqlite:///{root / 'mlflow.db'}", root / "mlartifacts"),
}


@pytest.fixture(scope="module", params=MAKERS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A registry and its root; tests use model names of their own."""
    root = tmp_path_factory.mktemp(request.param)
    (root / "models" / "a").mkdir(parents=True)
    return MAKERS[request.param](root), root


def test_a_version_is_made_once_for_a_digest_and_key(place: tuple[Any, Path]) -> None:
    """Numbers count up; the same digest and key return the number that is there."""
    tracking, root = place
    folder = root / "models" / "a"
    asked = [("d1", "k1"), ("d1", "k1"), ("d1", "k2"), ("d2", "k1"), ("d1", "k1")]
    found = [tracking.ensure_version("once", d, folder, "", {"pilotline.key": k, "x": "y"}) for d, k in asked]
    assert found == ["1", "1", "2", "3", "1"]
    listed = tracking.versions("once")
    assert [(item["version"], item["digest"]) for item in listed] == [("1", "d1"), ("2", "d1"), ("3", "d2")]
    assert listed[0]["tags"] == {"pilotline.digest": "d1", "pilotline.key": "k1", "x": "y"}
    assert Path(listed[0]["source"]) == folder.resolve()


def test_aliases_are_set_moved_listed_and_removed(place: tuple[Any, Path]) -> None:
    """One version an alias; removing what is not there is no error."""
    tracking, root = place
    assert tracking.alias("aliased", "champion") is None
    for key in ("k1", "k2"):
        tracking.ensure_version("aliased", "d", root / "models" / "a", "", {"pilotline.key": key})
    tracking.set_alias("aliased", "champion", "1")
    tracking.set_alias("aliased", "champion", "2")
    tracking.set_alias("aliased", "challenger", "2")
    assert tracking.alias("aliased", "champion") == "2"
    assert [item["aliases"] for item in tracking.versions("aliased")] == [[], ["challenger", "champion"]]
    for _ in range(2):
        tracking.delete_alias("aliased", "champion")
    assert tracking.alias("aliased", "champion") is None
    with pytest.raises(UserError):
        tracking.set_alias("aliased", "champion", "9")


def test_tags_can_be_added(place: tuple[Any, Path]) -> None:
    """They show beside the first ones."""
    tracking, root = place
    tracking.ensure_version("tagged", "d", root / "models" / "a", "", {"one": "1"})
    tracking.set_tags("tagged", "1", {"two": "2"})
    assert {"one": "1", "two": "2"}.items() <= tracking.versions("tagged")[0]["tags"].items()


def test_an_unknown_model_has_no_versions(place: tuple[Any, Path]) -> None:
    """An empty list, no error."""
    assert place[0].versions("unknown") == []


@pytest.mark.parametrize("name", ["a/b", "a\nb", "..", "%2e%2e", "", "a' OR name != 'b"])
def test_names_that_are_no_plain_names_are_refused(place: tuple[Any, Path], name: str) -> None:
    """By every call that takes one."""
    tracking, root = place
    for call in (
        lambda: tracking.ensure_version(name, "d", root / "models" / "a", "", {}),
        lambda: tracking.versions(name),
        lambda: tracking.alias(name, "champion"),
        lambda: tracking.set_alias(name, "champion", "1"),
        lambda: tracking.set_alias("triage", name, "1"),
    ):
        with pytest.raises(UserError):
            call()


def test_a_source_outside_of_the_models_folder_is_refused(place: tuple[Any, Path]) -> None:
    """No version points at other files of the machine, also not through a link or dots."""
    tracking, root = place
    link = root / "models" / "link"
    if not link.is_symlink():
        link.symlink_to("/etc")
    for source in (Path("/etc"), root / "models" / ".." / "..", link, root / "models" / "absent"):
        with pytest.raises(UserError, match="must be a folder inside"):
            tracking.ensure_version("outside", "d", source, "", {})
    assert tracking.versions("outside") == []


def test_runs_are_reopened_by_key_and_keep_metrics_and_files(place: tuple[Any, Path], tmp_path: Path) -> None:
    """The same key is the same run; a metric that is no finite number is refused."""
    tracking, _ = place
    first = tracking.start("experiment", "run", "key1", {"a": 1}, {"t": "u"})
    assert tracking.start("experiment", "run", "key1", {"a": 1}, {"t": "u"}) == first
    assert tracking.start("experiment", "run", "key2", {}, {}) != first
    tracking.log_metrics(first, {"auc": 0.8}, 3)
    assert tracking.metrics(first)["auc"] == 0.8
    with pytest.raises(UserError):
        tracking.log_metrics(first, {"auc": float("nan")}, 4)
    (tmp_path / "card.md").write_text("# card")
    tracking.log_artifacts(first, tmp_path)
    tracking.finish(first, "FINISHED")


def test_the_story_of_three_versions(place: tuple[Any, Path]) -> None:
    """Promoted, promoted, stopped by the canary: aliases and history agree in the real registry as in the fake."""
    tracking, root = place
    ledger = ledger_of(root / "story")
    registered(tracking, "3")
    for number, before in (("1", ""), ("2", "1")):
        tracking.set_alias("triage", "challenger", number)
        version = version_ref(number, before)
        assert promote(version, rollout_report(version), ledger, tracking, f"run-{number}").outcome == "promoted"
    tracking.set_alias("triage", "challenger", "3")
    third = version_ref("3", "2")
    stopped = rollout_report(third, outcome="rolled_back", reason="score shift 0.21 above 0.05")
    assert promote(third, stopped, ledger, tracking, "run-3").outcome == "rolled_back"
    with pytest.raises(PolicyRefusal):
        stale = version_ref("3", "1")
        promote(stale, rollout_report(stale), ledger, tracking, "run-4")
    assert [item["aliases"] for item in tracking.versions("triage")] == [[], ["champion"], []]
    assert [item["text"].split(":")[0] for item in history("triage", ledger)] == [
        "v1 promoted",
        "v2 promoted",
        "v3 stopped by the canary",
        "v3 refused at promotion",
    ]
