"""The serving stack of a cluster, call by call: what is adopted, what is switched, what a stale controller may do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from components.core.errors import PilotlineError, TransientError
from components.core.protocols import GoldenRow
from components.models.files import model_digest
from components.serving.cluster import ConflictError
from components.serving.control import ARMS, CANARY, STABLE
from components.serving.load import Drive
from components.serving.router.gateway_rules import Split, rules_of, split_of
from components.serving.router.interface import Backend
from pipelines.cluster_serving import to_stable
from tests.fakes.cluster_case import NAMESPACE, ROUTE, ROW, Cluster, open_cluster_case, users
from tests.fakes.serving_case import expected_score, rows


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


def test_the_next_controller_adopts_what_runs_and_asks_todays_golden_request(cluster: Cluster) -> None:
    """The same Deployment, nothing restarted; another golden row is asked through the gateway, and one that does not
    hold is refused."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
    before = cluster.api.list("apps/v1", "deployments", NAMESPACE)[0]["metadata"]["uid"]
    with cluster.stack() as stack:
        assert stack.alive(STABLE)
        model, version, digest, golden = cluster.version("1")
        other = {"features": {"count": 50.0, "rate": 0.1}, "text": "late fees"}
        asked = GoldenRow(other["features"], str(other["text"]), expected_score(model, other), 0.001)  # type: ignore[arg-type]
        assert stack.start(STABLE, model, version, digest, asked).version == "1"
        with pytest.raises(TransientError, match="registered is"):
            stack.start(STABLE, model, version, digest, replace(asked, score=asked.score / 2))
        assert stack.score_arm(STABLE, [ROW])[0] == pytest.approx(golden.score, abs=1e-9)
    assert [one["metadata"]["uid"] for one in cluster.api.list("apps/v1", "deployments", NAMESPACE)] == [before]


def test_a_new_champion_takes_over_under_traffic_without_a_failed_request(cluster: Cluster) -> None:
    """`settle` starts it beside the old one, moves draws and route, and ends the old one; all answers are from the one
    or the other, and in the end from the new one alone."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        with users(stack) as decisions:
            stack.decide(rows(3), 30.0)
            stack.settle(*cluster.version("2"))
            time.sleep(0.5)
    assert {one.status for one in decisions} == {"ok"}
    assert {one.model_version for one in decisions} == {"1", "2"}
    assert decisions[-1].model_version == "2"
    assert (set(cluster.state.arms), cluster.state.weight) == ({STABLE}, 0.0)
    assert len(cluster.deployments()) == 1


@pytest.mark.full
def test_a_canary_that_became_champion_becomes_stable_without_a_start(cluster: Cluster) -> None:
    """The Deployment that passed the rollout is the one that stays."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        stack.start(CANARY, *cluster.version("2"))
        stack.set_weight(100)
        passed = {one["metadata"]["name"]: one["metadata"]["uid"]
                  for one in cluster.api.list("apps/v1", "deployments", NAMESPACE)}  # fmt: skip
        with users(stack) as decisions:
            stack.settle(*cluster.version("2"))
            time.sleep(0.5)
        assert {one.status for one in decisions} == {"ok"}
        assert {one.model_version for one in decisions} == {"2"}
    (left,) = cluster.api.list("apps/v1", "deployments", NAMESPACE)
    assert passed[left["metadata"]["name"]] == left["metadata"]["uid"]
    assert left["metadata"]["annotations"]["pilotline.dev/digest"] == model_digest(cluster.root / "model-2")


@pytest.mark.full
def test_a_candidate_that_nobody_promoted_loses_its_traffic_when_the_cluster_is_settled(cluster: Cluster) -> None:
    """It had every draw; the champion answers again, the candidate's Deployment is gone."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        stack.start(CANARY, *cluster.version("2"))
        stack.set_weight(100)
    with cluster.stack() as stack:
        stack.settle(*cluster.version("1"))
        assert {one.model_version for one in stack.decide(rows(10), 50.0)} == {"1"}
    assert len(cluster.deployments()) == 1


@pytest.mark.full
def test_what_a_controller_left_that_died_before_it_was_routed_is_removed(cluster: Cluster) -> None:
    """A Deployment that no arm names holds a GPU, and an arm of the route that the state does not know has no place."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        stack.launch(CANARY, *cluster.version("2"))
        stack.router.set_arm(CANARY, Backend("m-nobody", 8000))
    assert len(cluster.deployments()) == 2
    with cluster.stack() as stack:
        assert split_of(cluster.route["spec"]["rules"]).arms[CANARY] is None
        assert stack.alive(STABLE)
        deadline = time.monotonic() + 10
        while len(cluster.deployments()) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_stale_controller_changes_nothing(cluster: Cluster) -> None:
    """Paused while another took over: its next change is in conflict, draws and route stay as the other set them."""
    with cluster.stack() as stale:
        stale.start(STABLE, *cluster.version("1"))
        with cluster.stack() as stack:
            stack.start(CANARY, *cluster.version("2"))
            stack.set_weight(30)
            for act in (lambda: stale.set_weight(0), lambda: stale.set_shadow(True), lambda: stale.stop(STABLE)):
                with pytest.raises(ConflictError, match="another controller"):
                    act()
            assert (cluster.state.weight, cluster.state.shadow, set(cluster.state.arms)) == (0.3, False, set(ARMS))
            assert split_of(cluster.route["spec"]["rules"]).weights == {STABLE: 70, CANARY: 30}
            stack.stop(CANARY)


def test_a_state_that_names_another_version_than_the_route_never_answers_from_it(cluster: Cluster) -> None:
    """Somebody moves the route's arm to another version's Service: requests fail, none is answered as version 1."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        stack.start(CANARY, *cluster.version("2"))
        other = stack._arms[CANARY].replica.backend
        moved = rules_of(Split({STABLE: other, CANARY: other}, {STABLE: 100, CANARY: 0}), 5.0)
        before = cluster.route["spec"]["rules"]
        cluster.api.patch(*ROUTE, {"spec": {"rules": moved}}, NAMESPACE, writer="kubectl-edit")
        decisions = Drive(stack.url, rows(10), 50.0, 5.0).run()
        assert {(one.status, one.score) for one in decisions} == {("refused", None)}
        cluster.api.patch(*ROUTE, {"spec": {"rules": before}}, NAMESPACE, writer="kubectl-edit")
        assert {one.status for one in Drive(stack.url, rows(10), 50.0, 5.0).run()} == {"ok"}


def test_the_way_back_sets_the_draws_also_where_the_clusters_api_is_away(cluster: Cluster) -> None:
    """Users are on stable at once; that the gateway's weights are not is said."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        stack.start(CANARY, *cluster.version("2"))
        stack.set_weight(50)
        cluster.api.fail("GET PATCH", "/httproutes/", 503, times=1000)
        found = cluster.route
        cluster.gateway.route = lambda: found
        with pytest.raises(TransientError, match="not changed in"):
            stack.set_weight(0)
        assert cluster.state.weight == 0.0
        assert {one.drawn for one in Drive(stack.url, rows(20), 100.0, 5.0).run()} == {STABLE}
        cluster.api.faults.clear()
        cluster.gateway.route = lambda: cluster.api.get(*ROUTE, NAMESPACE)
        stack.set_weight(0)


@pytest.mark.full
def test_an_api_server_that_stumbles_does_not_kill_a_replica(cluster: Cluster) -> None:
    """503 on two looks at its Deployment; one that stays away says nothing about it."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        cluster.api.fail("GET", "/deployments/", 503, times=2)
        assert stack.alive(STABLE)
        stack._lives.clear()
        cluster.api.fail("GET", "/deployments/", 503, times=100)
        with pytest.raises(TransientError):
            stack.alive(STABLE)
        cluster.api.faults.clear()


@pytest.mark.full
def test_a_pod_that_comes_back_serves_what_was_served(cluster: Cluster) -> None:
    """The scoring service's pod is replaced: arms, weight and generation are those of before."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        stack.start(CANARY, *cluster.version("2"))
        stack.set_weight(40)
        before = cluster.state
        cluster.end_pod()
        cluster.start_pod()
        stack.set_shadow(True)
        assert cluster.state == replace(before, shadow=True, generation=before.generation + 1)
        assert {one.status for one in stack.decide(rows(5), 50.0)} == {"ok"}


@pytest.mark.full
def test_a_dead_controllers_traffic_goes_back_to_a_stable_that_lives(cluster: Cluster) -> None:
    """From outside of any rollout; where stable does not live no traffic is sent to it, and that is said."""
    with cluster.stack() as stack:
        stack.start(STABLE, *cluster.version("1"))
        stack.start(CANARY, *cluster.version("2"))
        stack.set_weight(50)
    said = to_stable(cluster.home, cluster.recipe(), first=False, api=cluster.api.client())
    assert "version 1 alone" in said
    assert (cluster.state.weight, set(cluster.state.arms)) == (0.0, {STABLE})
    assert len(cluster.deployments()) == 1
    cluster.kubelet.kill(cluster.deployments()[0])
    with pytest.raises(TransientError, match="stable does not live"):
        to_stable(cluster.home, cluster.recipe(), first=False, api=cluster.api.client())


def test_a_replica_ended_while_it_starts_says_so_at_once(cluster: Cluster) -> None:
    """By the way back, or by somebody with kubectl: nobody waits for the start's time-out."""
    cluster.kubelet.faults["tiny-v3"] = ("unready", 0)
    with cluster.stack() as stack:
        for end in (lambda: stack.stop(CANARY), lambda: cluster.api.delete(
                "apps/v1", "deployments", cluster.deployments()[0], NAMESPACE)):  # fmt: skip
            stack.launch(CANARY, *cluster.version("3"))
            timer = threading.Timer(1.0, end)
            timer.start()
            began = time.monotonic()
            with pytest.raises(TransientError, match="before it was ready"):
                stack.start(CANARY, *cluster.version("3"))
            timer.join()
            assert time.monotonic() - began < 15  # of 30


def test_an_error_of_the_stack_is_one_of_ours(cluster: Cluster) -> None:
    """Weights that are none, and a canary that is not there."""
    with cluster.stack() as stack:
        for percent in (-1, 101, 50):
            with pytest.raises(PilotlineError, match=f"weight {percent}"):
                stack.set_weight(percent)
