"""The main job with real vLLM: a first champion, a canaried successor, a poisoned one that is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo import weekly_recipes
from tests.e2e.chain import none_left, pilotline, records

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, dict[str, Any], str]:
    """The three weeks of `pilotline demo`, in one home."""
    home = tmp_path_factory.mktemp("demo") / "home"
    code, told, err = pilotline("demo", "--engine", "vllm", home=home)
    return home, code, told, err


def test_the_demo_is_promoted_promoted_stopped(demo: tuple[Path, int, dict[str, Any], str]) -> None:
    """Exit 0 says that the three weeks ended as told; the third names its reason."""
    home, code, told, err = demo
    assert [week["told"] for week in told["weeks"]] == ["promoted", "promoted", "stopped"], err
    assert code == 0
    assert "auc" in told["weeks"][2]["reason"].lower()
    assert none_left(home)


def test_vllm_served_and_the_canary_was_compared(demo: tuple[Path, int, dict[str, Any], str]) -> None:
    """Week 2 was proved beside week 1's version under traffic, with no failed request."""
    home, _, told, _ = demo
    kept = [records(home, Path(week["report"]).parent.name) for week in told["weeks"]]
    assert all(run["rollout"]["engine"].startswith("vllm") for run in kept[:2])
    assert kept[1]["rollout"]["stable_version"] == kept[0]["register"]["version"]
    assert kept[1]["rollout"]["failed_requests"] == 0
    assert kept[1]["evaluate"]["champion_version"] == kept[0]["register"]["version"]
    assert "rollout" not in kept[2] or kept[2]["rollout"]["outcome"] != "passed"


def test_history_tells_the_story(demo: tuple[Path, int, dict[str, Any], str]) -> None:
    """Version 1 promoted, version 2 promoted, version 3 stopped with its reason; the chain is intact."""
    home = demo[0]
    code, told, err = pilotline("models", "history", "complaints", home=home)
    assert code == 0, err
    story = [(item["version"], item["event"]) for item in told["items"]]
    promoted = [version for version, event in story if event == "promoted"]
    assert promoted == ["1", "2"]
    assert any(version == "3" and event in ("refused", "rolled_back", "inconclusive") for version, event in story)
    assert pilotline("ledger", "verify", home=home)[0] == 0
    assert pilotline("models", "verify", "complaints", "2", home=home)[0] == 0


def test_mlflow_shows_experiment_runs_model_and_versions(demo: tuple[Path, int, dict[str, Any], str]) -> None:
    """What `mlflow ui` reads is there: asked of MLflow's own client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{demo[0] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("complaints")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 3
    assert str(client.get_model_version_by_alias("complaints", "champion").version) == "2"
    assert len(client.search_model_versions("name='complaints'")) == 3


def test_only_the_training_window_is_poisoned() -> None:
    """Week 3's test rows are those of a clean history of the same weeks."""
    from pipelines.generators import GENERATORS

    clean, poisoned = (recipe.source.uri for recipe in weekly_recipes()[1:])
    frames = []
    for uri in (clean, poisoned):
        query = dict(item.split("=") for item in uri.partition("?")[2].split("&"))
        query = {name: value if "-" in value else json.loads(value) for name, value in query.items()}
        frames.append(GENERATORS["complaints"](**query))
    differs = (frames[0] != frames[1]).any(axis=1)
    assert differs.mean() > 0.02
    later = frames[0].index[frames[0]["Date received"].map(lambda day: day[6:] + day[:2] + day[3:5]) >= "250620"]
    assert not differs.loc[later].any()
