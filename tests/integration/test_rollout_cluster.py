"""A whole rollout in a cluster: the same controller, an API double, real traffic through gateway and service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from components.serving.control import CANARY, STABLE
from tests.fakes.cluster_case import Cluster, open_cluster_case, publish_versions, roll


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
