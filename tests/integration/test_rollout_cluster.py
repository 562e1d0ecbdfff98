"""A whole rollout in a cluster: the same controller, an API double, real traffic through gateway and service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.serving.control import CANARY, STABLE
from tests.fakes.cluster_case import NAMESPACE, Cluster, open_cluster_case, publish_versions, roll


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Up, with two versions published and none served."""
    publish_versions(tmp_path)
    with open_cluster_case(tmp_path) as found:
        yield found


def test_an_equal_version_passes_in_a_cluster_and_goes_on_serving(cluster: Cluster) -> None:
    """Shadow, 50 %, all traffic; not one request failed; both Deployments stay, the candidate has every draw."""
    report = roll(cluster.root, cluster.recipe(shadow_requests=20), cluster.api.client(), "run-1")
    assert report.outcome == "passed", report.reason
    assert report.failed_requests == 0
    assert report.requests > 60
    state = cluster.state
    assert (state.arms[CANARY].version, state.arms[STABLE].version, state.weight) == ("2", "1", 1.0)
    assert len(cluster.deployments()) == 2
    assert all(cluster.gateway.served.get(name, 0) > 20 for name in cluster.deployments())


@pytest.mark.full
@pytest.mark.parametrize("fault", ["", "error"])
def test_a_first_version_serves_alone_or_nobody(tmp_path: Path, fault: str) -> None:
    """Within its limits it is stable with all traffic; where it fails them nothing of it is left."""
    publish_versions(tmp_path, champion=False)
    with open_cluster_case(tmp_path) as cluster:
        cluster.kubelet.faults["tiny-v2"] = (fault, 20)
        report = roll(cluster.root, cluster.recipe(), cluster.api.client(), "run-1")
        assert report.outcome == ("rolled_back" if fault else "passed"), report.reason
        assert {arm: about.version for arm, about in cluster.state.arms.items()} == ({} if fault else {STABLE: "2"})
        assert len(cluster.deployments()) == (0 if fault else 1)


@pytest.mark.full
@pytest.mark.parametrize("fault", ["", "error"])
def test_recreate_ends_the_champion_first_and_starts_it_again_where_the_candidate_fails(
    cluster: Cluster, fault: str
) -> None:
    """One Deployment at a time: for a cluster without a spare GPU."""
    most: list[int] = []
    act = cluster.api.on_change

    def watch(event: str, item: dict[str, Any]) -> None:
        if item["kind"] == "Pod":
            most.append(len(cluster.api.list("v1", "pods", NAMESPACE)))
        assert act is not None
        act(event, item)

    cluster.api.on_change = watch
    cluster.kubelet.faults["tiny-v2"] = (fault, 20)
    report = roll(cluster.root, cluster.recipe(strategy="recreate"), cluster.api.client(), "run-1")
    assert report.outcome == ("rolled_back" if fault else "passed"), report.reason
    assert {arm: about.version for arm, about in cluster.state.arms.items()} == {STABLE: "1" if fault else "2"}
    assert max(most) == 1
