"""What a cluster serves after the ledger, what it refuses, and what its control port takes."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from components.core.errors import IntegrityError, PolicyRefusal, UserError
from components.core.ledger import Ledger
from components.serving.control import CANARY, STABLE
from pipelines.cluster_serving import control_of, open_cluster, settle
from pipelines.serving_versions import Servable
from tests.fakes.cluster_case import Cluster, open_cluster_case
from tests.fakes.serving_case import rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests here."""
    with open_cluster_case(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def cluster(whole: Cluster) -> Iterator[Cluster]:
    """Nothing is served when a test begins."""
    yield whole
    whole.clear()


def test_what_cannot_be_served_here_is_refused_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """Another model in the namespace, a version without a registered score, a home off the share, an unknown key."""
    with cluster.stack() as stack:
        model, version, digest, _ = cluster.version("1")
        with pytest.raises(IntegrityError, match="no score of it was registered"):
            stack.start(STABLE, model, version, digest, None)
        stack.start(STABLE, *cluster.version("1"))
    recipe = cluster.recipe()
    other = recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": "other"})})
    with pytest.raises(UserError, match="serves model tiny as stable"), cluster.stack(other):
        pass
    away = replace(cluster.home, root=tmp_path)
    with pytest.raises(UserError, match="the scoring service has not run on this home"):
        control_of(recipe, away)
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "control.key").write_text("k" * 64)
    with closing(control_of(recipe, away)) as control, pytest.raises(PolicyRefusal, match="mount the same home"):
        control.state()


def test_the_control_port_takes_nothing_without_the_key_and_nothing_that_is_no_state(cluster: Cluster) -> None:
    """Health alone is told without the key; what does not fit is a 4xx, and changes nothing."""
    url = cluster.recipe().serving.cluster.control_url
    key = (cluster.home.root / "serving" / "control.key").read_text()
    with cluster.stack() as stack:
        stack.set_shadow(False)
    before = cluster.state
    mine = {"authorization": f"Bearer {key}"}
    state = {"generation": before.generation + 1, "weight": 2.0, "shadow": False, "arms": {}}
    with httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/healthz").status_code == 200
        for headers in ({}, {"authorization": "Bearer"}, {"authorization": f"Bearer {key[:-1]}x"}):
            assert client.get("/state", headers=headers).status_code == 401
            assert client.put("/state", headers=headers, json={}).status_code == 401
        bodies: list[Any] = [{}, [], 3, {"state": 1, "after": 0}, {"state": state, "after": before.generation}]
        for body in bodies:
            assert client.put("/state", headers=mine, json=body).status_code == 422, body
        assert client.put("/state", headers=mine, content=b"{").status_code == 422
        assert client.put("/service", headers=mine, json={"recipe": "{}"}).status_code == 422
        assert client.get("/../state.json", headers=mine).status_code == 404
        assert client.get("/shadows?after=x", headers=mine).status_code == 422
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)) as raw:
        raw.request("PUT", "/state", headers=mine | {"content-length": "99999999"})
        assert raw.getresponse().status == 413
    assert cluster.state == before


def test_the_cluster_follows_the_ledgers_champion_and_serves_nobody_without_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate with all draws and no champion in the ledger ends; promoted, it becomes stable; rolled back, the one
    before it answers again."""
    monkeypatch.setattr("components.registry.trust.check_before_serving", lambda _: lambda _: None)

    def servable(_home: Any, name: str, version: str, digest: str) -> Servable:
        model, _, _, golden = cluster.version(version)
        return Servable(name, version, digest, f"run-{version}", cluster.recipe(), model, cluster.root, golden)

    monkeypatch.setattr("pipelines.serving_versions.servable", servable)
    client = cluster.api.client()
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
    assert "no version of tiny is champion" in settle(cluster.home, cluster.recipe(), client)
    assert (dict(cluster.state.arms), cluster.deployments()) == ({}, [])
    with closing(Ledger(cluster.home.ledger_url)) as ledger:
        for event, version in (("promoted", "1"), ("promoted", "2"), ("rollback", "1")):
            told = {"name": "tiny", "version": version, "digest": cluster.version(version)[2], "event": event}
            ledger.append("promotion", f"{event} {version}", told | {"reason": "test"})
            assert f"version {version} of tiny answers" in settle(cluster.home, cluster.recipe(), client)
            assert {arm: about.version for arm, about in cluster.state.arms.items()} == {STABLE: version}
            assert len(cluster.deployments()) == 1


def test_a_model_that_nobody_signed_gets_no_deployment(cluster: Cluster) -> None:
    """The check of signatures by the ledger's keys comes before any object of the cluster."""
    with open_cluster(cluster.recipe(), cluster.home, "run-1", cluster.root, cluster.api.client()) as stack:
        with pytest.raises(IntegrityError, match="sign"):
            stack.start(STABLE, *cluster.version("1"))
        assert cluster.deployments() == []


@pytest.mark.full
def test_labels_and_shadows_reach_the_controller_through_the_port(cluster: Cluster) -> None:
    """Of decisions made since it began, and of no earlier ones; the canary's answers to mirrored requests too."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        before = stack.decide(rows(2), 50.0)
    with cluster.stack() as stack:
        stack.start(CANARY, *cluster.version("2"))
        stack.set_shadow(True)
        mirrored = stack.decide(rows(6), 50.0)
        assert [one.shadow_score for one in mirrored] == [one.score for one in mirrored]
        url = f"{stack.url}/v1/feedback"
        for one, label in ((before[0], "yes"), (mirrored[0], "no"), (mirrored[1], "yes")):
            told = {"decision_id": one.decision_id, "label": label, "observed_at": datetime.now(UTC).isoformat()}
            assert httpx.post(url, json=told, trust_env=False).status_code == 200
        found = stack.labels(0)
        assert [(one.decision_id, one.label) for one in found] == [
            (mirrored[0].decision_id, "no"), (mirrored[1].decision_id, "yes"),
        ]  # fmt: skip
        assert found[0].shadow_score == mirrored[0].shadow_score
        assert [one.seq for one in stack.labels(found[0].seq)] == [found[1].seq]
        stack.stop(CANARY)
