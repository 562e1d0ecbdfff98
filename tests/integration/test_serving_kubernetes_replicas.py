"""What every replica has to do: processes of this machine, and Deployments of a cluster (an API double)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import IntegrityError, PilotlineError, TransientError
from components.models.files import model_digest
from components.models.spec import spec_for
from components.serving.replica import ReplicaSpec
from components.serving.replicas.interface import Golden, Replicas, RunningReplica
from components.serving.replicas.kubernetes import KubernetesReplicas
from components.serving.replicas.local import LocalReplicas
from components.serving.replicas.manifests import ClusterServing, Placement, replica_name
from tests.fakes.fake_model_server import FakeEngine
from tests.fakes.kubelet import Kubelet
from tests.fakes.kubernetes_api import KubernetesApi
from tests.fakes.serving_case import expected_score, make_shell, tiny_recipe

ROW = {"features": {"count": 3.0, "rate": 0.2}, "text": "my card"}


@dataclass
class Place:
    """Where replicas run, and their world."""

    replicas: Replicas
    folder: Path
    kubelet: Kubelet | None
    engine: FakeEngine

    def fault(self, kind: str) -> None:
        """The next servers have it."""
        self.engine.faults = {"canary": kind}
        if self.kubelet:
            self.kubelet.fault = kind

    def spec(self, version: str = "2", seconds: float = 20.0) -> ReplicaSpec:
        """A version on a model of its own."""
        model = self.folder / f"model-{version}"
        if not model.exists():
            make_shell(model, note=version)
        settings = tiny_recipe(serving={"start_timeout_seconds": seconds}).serving
        return ReplicaSpec("canary", "tiny", "causal_lm", model, version, model_digest(model), settings)

    def golden(self, spec: ReplicaSpec, shift: float = 0.0) -> Golden:
        """The row and its registered score."""
        return Golden(ROW["features"], str(ROW["text"]), expected_score(spec.model_dir, ROW) + shift, 0.001)  # type: ignore[arg-type]

    def running(self) -> int:
        """Deployments or other objects that are left; 0 for processes, which `alive` tells about."""
        if self.kubelet is None:
            return 0
        kinds = (("apps/v1", "deployments"), ("v1", "services"), ("v1", "configmaps"),
                 ("policy/v1", "poddisruptionbudgets"), ("v1", "pods"))  # fmt: skip
        return sum(len(self.kubelet.api.list(*kind, "serving")) for kind in kinds)


def cluster_of(folder: Path) -> ClusterServing:
    """A cluster's serving settings; the home claim is mounted where the home is here."""
    return ClusterServing("serving", "vllm/vllm-openai:v0.32.0", "pilotline/pilotline-python:0.1.0", "pilotline-home",
                          str(folder), Placement(1, "8", "64Gi", "8Gi"), 6.0)  # fmt: skip


@pytest.fixture(params=["local", "kubernetes"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Nothing runs yet."""
    engine = FakeEngine()
    with ExitStack() as stack:
        if request.param == "local":
            yield Place(LocalReplicas(engine, tmp_path), tmp_path, None, engine)
            return
        api = stack.enter_context(KubernetesApi(namespaces=("serving",)))
        kubelet = Kubelet(api, tmp_path / "node")
        api.on_change = kubelet
        replicas = KubernetesReplicas(api.client(), cluster_of(tmp_path), look_seconds=0.05)
        yield Place(replicas, tmp_path, kubelet, engine)


@pytest.fixture
def started(place: Place) -> Iterator[tuple[Place, RunningReplica]]:
    """A replica that is ready."""
    spec = place.spec()
    replica = place.replicas.launch(spec, place.golden(spec))
    replica.wait_ready()
    yield place, replica
    replica.stop(lambda: 0)


def test_a_replica_is_ready_once_it_scored_the_golden_request_as_registered(
    started: tuple[Place, RunningReplica],
) -> None:
    """Its record names version, digest and a served name of this version alone."""
    place, replica = started
    spec = place.spec()
    assert replica.alive
    assert (replica.served.version, replica.served.digest, replica.served.arm) == ("2", spec.digest, "canary")
    assert replica.served.served_name == "tiny-v2"


@pytest.mark.parametrize("shift", [0.01, -0.01])
def test_a_replica_that_scores_otherwise_is_never_ready_and_nothing_of_it_is_left(place: Place, shift: float) -> None:
    """Ten times the tolerance, above or below."""
    spec = place.spec(seconds=4.0)
    replica = place.replicas.launch(spec, place.golden(spec, shift))
    with pytest.raises(TransientError):
        replica.wait_ready()
    assert not replica.alive
    assert place.running() == 0


@pytest.mark.parametrize("fault", ["unready", "nan", "wrong_model", "no_labels", "garbage", "error"])
def test_a_replica_that_is_up_but_does_not_score_is_never_ready(place: Place, fault: str) -> None:
    """It listens and says healthy; that is not enough."""
    place.fault(fault)
    spec = place.spec(seconds=2.0)
    replica = place.replicas.launch(spec, place.golden(spec))
    with pytest.raises(TransientError):
        replica.wait_ready()
    assert not replica.alive
    assert place.running() == 0


def test_files_that_are_not_those_registered_start_nothing(place: Place) -> None:
    """The digest is checked before anything is created."""
    spec = place.spec()
    with pytest.raises(IntegrityError):
        place.replicas.launch(replace(spec, digest="0" * 64), place.golden(spec))
    assert place.running() == 0


def test_a_golden_request_that_shows_nothing_is_refused(place: Place) -> None:
    """No score, or a tolerance that everything meets: no evidence never passes."""
    spec = place.spec()
    for score, tolerance in ((float("nan"), 0.001), (0.5, float("nan")), (0.5, 0.0), (0.5, 1.0), (-1.0, 0.1)):
        replica = None
        with pytest.raises(PilotlineError):
            replica = place.replicas.launch(spec, Golden(ROW["features"], "", score, tolerance))  # type: ignore[arg-type]
            replica.wait_ready()
        if replica is not None:
            replica.stop(lambda: 0)
    assert place.running() == 0


def test_a_replica_is_drained_at_the_router_before_it_ends_and_may_be_stopped_twice(place: Place) -> None:
    """Two requests in flight, then one, then none: only then it ends."""
    spec = place.spec()
    replica = place.replicas.launch(spec, place.golden(spec))
    replica.wait_ready()
    seen: list[tuple[int, bool]] = []

    def in_flight() -> int:
        left = max(0, 2 - len(seen))
        seen.append((left, replica.alive))
        return left

    replica.stop(in_flight)
    assert [left for left, _ in seen][:3] == [2, 1, 0]
    assert all(alive for _, alive in seen)
    assert not replica.alive
    replica.stop(lambda: None)
    assert place.running() == 0


def test_a_replica_that_dies_is_not_alive(started: tuple[Place, RunningReplica]) -> None:
    """Seen within seconds."""
    place, replica = started
    if place.kubelet is None:
        import os
        import signal

        os.kill(replica.served.pid, signal.SIGKILL)
    else:
        place.kubelet.kill(replica_name(place.spec()))
    until = time.monotonic() + 5
    while replica.alive:
        assert time.monotonic() < until
        time.sleep(0.02)


# Only in a cluster.


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[KubernetesApi, Kubelet, Place]]:
    """The API double with its kubelet."""
    with KubernetesApi(namespaces=("serving",)) as api:
        kubelet = Kubelet(api, tmp_path / "node")
        api.on_change = kubelet
        replicas = KubernetesReplicas(api.client(), cluster_of(tmp_path), look_seconds=0.05)
        yield api, kubelet, Place(replicas, tmp_path, kubelet, FakeEngine())


Cluster = tuple[KubernetesApi, Kubelet, Place]


def test_a_model_that_changed_after_the_launch_is_never_loaded(cluster: Cluster) -> None:
    """The init container copies, checks the copy, and says which files: no server was started."""
    api, kubelet, place = cluster
    spec = place.spec()
    golden = place.golden(spec)

    def spoil(event: str, item: Mapping[str, Any]) -> None:
        if (event, item["kind"]) == ("ADDED", "Deployment"):
            path = spec.model_dir / "pilotline.json"
            path.write_text(path.read_text().replace('"note": "2"', '"note": "3"'))
        kubelet(event, dict(item))

    api.on_change = spoil
    replica = place.replicas.launch(spec, golden)
    with pytest.raises(IntegrityError, match="its files have digest"):
        replica.wait_ready()
    assert kubelet.said == []
    assert place.running() == 0


def test_launching_a_version_again_takes_over_what_runs(cluster: Cluster) -> None:
    """The controller that was killed after creating comes back: the same objects, nothing twice."""
    api, _, place = cluster
    spec = place.spec()
    place.replicas.launch(spec, place.golden(spec)).wait_ready()
    before = {(one["kind"], one["metadata"]["uid"]) for one in api.list("apps/v1", "deployments", "serving")}
    again = place.replicas.launch(spec, place.golden(spec))
    again.wait_ready()
    assert {(one["kind"], one["metadata"]["uid"]) for one in api.list("apps/v1", "deployments", "serving")} == before
    other = place.golden(replace(spec), 0.0)
    with pytest.raises(TransientError, match="other settings"):
        place.replicas.launch(spec, replace(other, tolerance=0.01))
    again.stop(lambda: 0)


def test_a_launch_that_was_killed_half_way_is_finished_by_the_next(cluster: Cluster) -> None:
    """The API fails after the Deployment, after the ConfigMap and after the Service."""
    api, _, place = cluster
    for version, path in (("3", "/configmaps"), ("4", "/services"), ("5", "/poddisruptionbudgets")):
        spec = place.spec(version)
        api.fail("POST", path, 500)
        with pytest.raises(TransientError):
            place.replicas.launch(spec, place.golden(spec))
        replica = place.replicas.launch(spec, place.golden(spec))
        assert replica.wait_ready().version == version
        replica.stop(lambda: 0)
    assert place.running() == 0


def test_two_versions_live_side_by_side_under_names_of_their_own(cluster: Cluster) -> None:
    """Stopping one leaves the other."""
    _, _, place = cluster
    replicas = [place.replicas.launch(place.spec(v), place.golden(place.spec(v))) for v in ("2", "3")]
    assert len({replica.wait_ready().served_name for replica in replicas}) == 2
    assert len({replica.served.url for replica in replicas}) == 2
    replicas[0].stop(lambda: 0)
    assert not replicas[0].alive
    assert replicas[1].alive
    replicas[1].stop(lambda: 0)


def test_a_pod_that_finds_no_gpu_is_told_in_the_clusters_words(cluster: Cluster) -> None:
    """The time-out names the reason, and nothing is left waiting for a GPU."""
    _, kubelet, place = cluster
    kubelet.stuck = "Unschedulable"
    spec = place.spec(seconds=1.0)
    replica = place.replicas.launch(spec, place.golden(spec))
    kubelet_pods = place.running
    with pytest.raises(TransientError, match="0/3 nodes: no GPU free"):
        replica.wait_ready()
    assert kubelet_pods() == 0


def test_the_pod_drains_itself_before_it_ends(cluster: Cluster) -> None:
    """The preStop script asks the server's own counters, from the replica's own ConfigMap."""
    _, kubelet, place = cluster
    spec = place.spec()
    replica = place.replicas.launch(spec, place.golden(spec))
    replica.wait_ready()
    replica.stop(lambda: None)
    assert kubelet.said[-1] == "drain: idle"


def test_an_api_server_that_is_gone_says_nothing_about_the_replica(cluster: Cluster) -> None:
    """Neither alive nor dead: a transient error."""
    api, _, place = cluster
    spec = place.spec()
    replica = place.replicas.launch(spec, place.golden(spec))
    replica.wait_ready()
    api.fail("GET", "/deployments/", 503, times=1)
    with pytest.raises(TransientError):
        replica.alive  # noqa: B018
    assert replica.alive
    replica.stop(lambda: 0)


def test_renderers_and_probe_agree_on_the_score(tmp_path: Path) -> None:
    """The stdlib script computes what the calibrated renderer does, for odds from very small to very large."""
    from components.serving.replicas.probes import ready

    model = make_shell(tmp_path / "model")
    renderer = spec_for("causal_lm").renderer(model)
    for odds in (-300.0, -5.0, -0.1, 0.0, 0.3, 4.0, 300.0):
        score = renderer.score(-1.0, odds - 1.0)
        golden = Golden(ROW["features"], "", score, 1e-9).request(renderer, "m", "http://nowhere")  # type: ignore[arg-type]
        labels = golden["body"]["logprob_token_ids"]
        top = {f"token_id:{labels[0]}": -1.0, f"token_id:{labels[1]}": odds - 1.0}
        answer = {"model": "m", "choices": [{"logprobs": {"top_logprobs": [top]}}]}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ready, "_post", lambda *_, said=answer: said)
            assert ready.problem(golden) == ""
            assert ready.problem(golden | {"score": score + 1e-6 if score < 0.5 else score - 1e-6}) != ""


def test_the_rollouts_role_is_all_that_replicas_and_route_need_and_no_more(cluster: Cluster) -> None:
    """Under the manifests' own Role a rollout goes through, twice over; every right in it was used."""
    import yaml

    from components.core.paths import PROJECT_ROOT
    from components.serving.router.gateway import HttpRoute, gateway_url
    from components.serving.router.interface import ALL_ON_STABLE
    from tests.fakes.gateway_rules import accepting, new_route

    api, kubelet, place = cluster
    text = (PROJECT_ROOT / "deploy" / "kubernetes" / "serving" / "base" / "access.yaml").read_text()
    role = next(one for one in yaml.safe_load_all(text) if one["kind"] == "Role")
    gateway = accepting(api)

    def both(event: str, item: dict[str, Any]) -> None:
        gateway(event, item)
        kubelet(event, item)

    api.on_change = both
    api.create(new_route(), "serving")
    listeners = [{"name": "models", "protocol": "HTTP", "port": 8000}]
    name = "pilotline-models"
    api.create({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": name},
                "spec": {"gatewayClassName": "test", "listeners": listeners}}, "serving")  # fmt: skip
    api.set_status("gateway.networking.k8s.io/v1", "gateways", name, {"addresses": [{"value": "10.0.0.7"}]},
                   "serving")  # fmt: skip
    api.rules = role["rules"]
    settings, spec = replace(cluster_of(place.folder), most_replicas=3), place.spec()
    for autoscaler in ("keda", "hpa"):
        replicas = KubernetesReplicas(api.client(), replace(settings, autoscaler=autoscaler), look_seconds=0.05)
        for _ in range(2):
            replica = replicas.launch(spec, place.golden(spec))
            replica.wait_ready()
        assert replicas.names() == [replica.name]
        if autoscaler == "keda":
            replica.stop(lambda: 0)
            assert not api.list("keda.sh/v1alpha1", "scaledobjects", "serving")
    assert gateway_url(api.client(), "serving", name, "models") == "http://10.0.0.7:8000"
    router = HttpRoute(api.client(), "serving", "pilotline-model", "http://gateway.test", 6.0)
    router.set_arm("stable", replica.backend)
    router.set_arm("canary", replica.backend)
    router.set_weights({"stable": 90, "canary": 10})
    router.set_weights(ALL_ON_STABLE)
    replica.stop(lambda: router.active("canary"))
    granted = {(group, resource, verb) for rule in role["rules"] for group in rule["apiGroups"]
               for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip
    assert api.used == granted


def test_a_replica_of_the_same_name_that_another_controller_made_is_left_alone(cluster: Cluster) -> None:
    """A stale controller's stop, or its waiting, takes nothing from the one that followed it."""
    api, _, place = cluster
    spec = place.spec()
    stale = place.replicas.launch(spec, place.golden(spec))
    api.delete("apps/v1", "deployments", replica_name(spec), "serving")
    until = time.monotonic() + 10
    while api.list("v1", "pods", "serving"):
        assert time.monotonic() < until
        time.sleep(0.05)
    fresh = place.replicas.launch(spec, place.golden(spec))
    with pytest.raises(TransientError, match="deleted before it was ready"):
        stale.wait_ready()
    stale.stop(lambda: 0)
    assert fresh.wait_ready().version == "2"
    fresh.stop(lambda: 0)
    assert place.running() == 0
