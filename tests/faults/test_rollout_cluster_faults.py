"""A rollout in a cluster where something breaks: the same ends as on one machine, and no user without an answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from components.core.ledger import Ledger
from components.core.paths import PROJECT_ROOT
from components.core.publish import write_atomic
from components.core.records import RolloutReport
from components.rollout import journal as book
from components.serving.control import CANARY, STABLE
from components.serving.router.gateway_rules import split_of
from pipelines.cluster_serving import NOTE
from pipelines.rollouts import abort
from tests.fakes.cluster_case import NAMESPACE, ROUTE, Cluster, open_cluster_case, publish_versions, roll

HALF = "step 50 %"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Up, with two versions published and none served."""
    publish_versions(tmp_path)
    with open_cluster_case(tmp_path) as found:
        yield found


def _state(cluster: Cluster, run: str = "run-1") -> str:
    with closing(Ledger(cluster.home.ledger_url)) as ledger:
        entries = [entry for entry in ledger.entries(book.KIND) if entry.payload["rollout"].startswith(f"{run}/")]
        return book.state_of(entries) or "" if entries else ""


def _when(cluster: Cluster, state: str, act: Callable[[], object]) -> threading.Thread:
    """Act from another thread, a moment after the rollout entered a state."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while _state(cluster) != state:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        time.sleep(0.7)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def _deployment(cluster: Cluster, version: str) -> str:
    (name,) = [name for name in cluster.deployments() if f"-v{version}-" in name]
    return name


def _delete(cluster: Cluster, version: str) -> None:
    cluster.api.delete("apps/v1", "deployments", _deployment(cluster, version), NAMESPACE)


def _only_stable(cluster: Cluster, report: RolloutReport) -> None:
    assert report.failed_requests == 0
    assert (set(cluster.state.arms), cluster.state.weight, cluster.state.shadow) == ({STABLE}, 0.0, False)
    assert cluster.deployments() == [_deployment(cluster, "1")]
    assert split_of(cluster.route["spec"]["rules"]).weights == {STABLE: 100, CANARY: 0}


@pytest.mark.parametrize(("fault", "rules"), [
    ("error", {"failures_in_a_row", "errors"}),
    pytest.param("wrong_model", {"version"}, marks=pytest.mark.full),
    pytest.param("garbage", {"failures_in_a_row", "invalid"}, marks=pytest.mark.full),
])  # fmt: skip
def test_a_canary_that_breaks_after_its_golden_set_is_rolled_back(
    cluster: Cluster, fault: str, rules: set[str]
) -> None:
    """Well for its probe, the golden set and twenty users, then bad: stable alone is left, and everybody was
    answered."""
    cluster.kubelet.faults["tiny-v2"] = (fault, 29)
    report = roll(cluster.root, cluster.recipe(min_canary_requests=1000), cluster.api.client(), "run-1")
    assert report.outcome == "rolled_back", report.reason
    assert rules & {rule.rule for rule in report.rules if rule.outcome == "fail"}, report.reason
    _only_stable(cluster, report)


@pytest.mark.full
def test_a_version_that_scores_otherwise_than_registered_never_gets_a_request(cluster: Cluster) -> None:
    """Its start-up probe never succeeds; nothing of it is left."""
    cluster.kubelet.faults["tiny-v2"] = ("nan", 0)
    recipe = cluster.recipe()
    serving = recipe.serving.model_copy(update={"start_timeout_seconds": 8.0})
    report = roll(cluster.root, recipe.model_copy(update={"serving": serving}), cluster.api.client(), "run-1")
    assert report.outcome == "rolled_back"
    assert "did not become ready" in report.reason
    assert not [name for name in cluster.gateway.served if "-v2-" in name]
    _only_stable(cluster, report)


@pytest.mark.full
def test_a_canary_whose_deployment_is_deleted_is_rolled_back(cluster: Cluster) -> None:
    """Behind the controller's back, at 50 %: the rule that names it, and stable answers for it."""
    acting = _when(cluster, HALF, lambda: _delete(cluster, "2"))
    report = roll(cluster.root, cluster.recipe(min_canary_requests=1000), cluster.api.client(), "run-1")
    acting.join()
    assert report.outcome == "rolled_back"
    assert "died" in report.reason or "failures" in report.reason or "failed" in report.reason
    _only_stable(cluster, report)


@pytest.mark.full
def test_a_stable_whose_deployment_is_deleted_is_made_again(cluster: Cluster) -> None:
    """Nothing was shown about the canary; users have stable again when it ends."""
    acting = _when(cluster, HALF, lambda: _delete(cluster, "1"))
    report = roll(cluster.root, cluster.recipe(min_canary_requests=1000), cluster.api.client(), "run-1")
    acting.join()
    assert report.outcome == "inconclusive", report.reason
    assert (set(cluster.state.arms), cluster.state.weight) == ({STABLE}, 0.0)
    with cluster.stack() as stack:
        assert stack.alive(STABLE)
        assert stack.version(STABLE) == "1"


@pytest.mark.full
def test_another_writer_of_the_route_ends_the_rollout_and_the_way_back_overrules_it(cluster: Cluster) -> None:
    """A label is retried; other weights are refused with the writer's name, and traffic is on stable."""
    client = cluster.api.client()

    def label() -> None:
        labels = {"metadata": {"labels": {"team": str(cluster.api.version)}}}
        cluster.api.patch(*ROUTE, labels, NAMESPACE, writer="labeller")

    for _ in range(3):
        cluster.api.interrupt("PATCH", "/httproutes/", label)
    cluster.api.fail("GET", "/httproutes/", 503, times=2)

    def meddle() -> None:
        found = cluster.route
        found["spec"]["rules"][-1]["backendRefs"][0]["weight"] = 1
        cluster.api.replace(found, NAMESPACE, writer="kubectl-edit")

    acting = _when(cluster, "shadow", meddle)
    with pytest.raises(Exception, match="kubectl-edit"):
        roll(cluster.root, cluster.recipe(shadow_requests=60), client, "run-1")
    acting.join()
    assert cluster.state.weight == 0.0
    assert split_of(cluster.route["spec"]["rules"]).weights == {STABLE: 100, CANARY: 0}
    report = roll(cluster.root, cluster.recipe(shadow_requests=20), cluster.api.client(), "run-1")
    assert report.outcome == "passed", report.reason


def _controller(cluster: Cluster, canary_requests: int) -> subprocess.Popen[bytes]:
    """A controller as a process of its own."""
    command = [sys.executable, "-m", "tests.fakes.cluster_case", "--root", str(cluster.root), "--run", "run-1"]
    return subprocess.Popen(
        [*command, "--canary-requests", str(canary_requests)], cwd=PROJECT_ROOT, stdout=subprocess.PIPE
    )


def _killed_at(cluster: Cluster, state: str) -> None:
    """A controller that is killed a moment after it entered a state."""
    controller = _controller(cluster, 1000)
    deadline = time.monotonic() + 90
    while _state(cluster) != state:
        assert time.monotonic() < deadline
        assert controller.poll() is None
        time.sleep(0.05)
    time.sleep(1.0)
    controller.kill()
    controller.wait()
    assert controller.stdout is not None
    controller.stdout.close()


@pytest.mark.full
def test_a_controller_killed_in_traffic_is_followed_by_one_that_adopts_stable_and_passes(cluster: Cluster) -> None:
    """SIGKILL at 50 %: users go on being answered by both versions, and the next controller reaches the same end on the
    same stable Deployment."""
    from components.serving.load import Drive
    from tests.fakes.serving_case import rows

    _killed_at(cluster, HALF)
    assert cluster.state.weight == 0.5
    stable = cluster.api.get("apps/v1", "deployments", _deployment(cluster, "1"), NAMESPACE)["metadata"]["uid"]
    users = Drive(f"http://127.0.0.1:{cluster.ports[0]}", rows(60), 60.0, 5.0).run()
    assert {one.status for one in users} == {"ok"}
    assert {one.model_version for one in users} == {"1", "2"}
    second = _controller(cluster, 1000)  # the recipe is the same, so it is the same rollout
    over = threading.Event()
    answered: list[Any] = []
    drive = Drive(f"http://127.0.0.1:{cluster.ports[0]}", rows(6000), 20.0, 5.0, lambda _: over.is_set())
    asking = threading.Thread(target=lambda: answered.extend(drive.run()))
    asking.start()
    time.sleep(8.0)
    second.terminate()
    second.wait()
    assert second.stdout is not None
    second.stdout.close()
    over.set()
    asking.join()
    assert {one.http_status for one in answered} == {200}
    third = _controller(cluster, 30)
    told, _ = third.communicate(timeout=120)
    assert json.loads(told.splitlines()[-1])["outcome"] == "passed"
    found = cluster.api.get("apps/v1", "deployments", _deployment(cluster, "1"), NAMESPACE)["metadata"]["uid"]
    assert found == stable


@pytest.mark.full
def test_an_abort_after_the_controllers_death_returns_the_clusters_traffic(cluster: Cluster) -> None:
    """Asked for from another terminal: draws, route and Deployments are as after a retreat, and the end is written."""
    _killed_at(cluster, HALF)
    recipe = cluster.recipe(min_canary_requests=1000)
    write_atomic(cluster.home.run("run-1") / NOTE, recipe.to_json())  # as the step does when it opens the cluster
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.root / "kubeconfig"))
        told = abort(cluster.home, "too slow", "alice")
    assert told["outcome"] == "rolled_back"
    assert "version 1 alone" in told["reason"]
    assert (set(cluster.state.arms), cluster.state.weight) == ({STABLE}, 0.0)
    assert cluster.deployments() == [_deployment(cluster, "1")]
