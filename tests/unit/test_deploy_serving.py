"""deploy/kubernetes/serving and the objects of a replica: valid, locked down, and all that the rollout needs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.core.paths import PROJECT_ROOT
from components.serving.replica import ReplicaSpec
from components.serving.replicas.manifests import ClusterServing, Placement, grace_seconds, render, replica_name
from tests.fakes.serving_case import tiny_recipe

ROOT = PROJECT_ROOT / "deploy" / "kubernetes" / "serving"
VALIDATOR = PROJECT_ROOT.parent / "shared" / "tools" / "validate_manifests.py"
KUSTOMIZED = ("base", "overlays/monitoring", "overlays/production")
CUSTOM = ("gateway.networking.k8s.io", "monitoring.coreos.com", "keda.sh")
NO_SCHEMA = "gateway.envoyproxy.io/v1alpha1"  # one object, of which a test asserts each field

Object = dict[str, Any]


def _read(path: Path) -> list[Object]:
    return [body for body in yaml.safe_load_all(path.read_text()) if body]


def _written() -> list[Object]:
    files = sorted(path for path in ROOT.rglob("*.yaml") if path.name != "kustomization.yaml")
    return [body for path in files for body in _read(path) if body["apiVersion"] != NO_SCHEMA]


def _replica(gpus: int = 2, most: int = 1, longest: float = 6.0, autoscaler: str = "hpa") -> list[Object]:
    tolerations = ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)
    place = Placement(gpus, "8", "64Gi", "16Gi", node_selector={"nvidia.com/gpu.product": "X"}, tolerations=tolerations)
    cluster = ClusterServing("pilotline-serving", "vllm/vllm-openai:v0.32.0", "pilotline/pilotline-python:0.1.0",
                             "pilotline-home", "/pilotline", place, longest, most_replicas=most,
                             autoscaler=autoscaler, prometheus_url="http://prometheus:9090")  # fmt: skip
    spec = ReplicaSpec("canary", "triage", "causal_lm", Path("/pilotline/models/x"), "7", "ab" * 32,
                       tiny_recipe(serving={"start_timeout_seconds": 600.0}).serving)  # fmt: skip
    return render(cluster, spec, ("triage-v7", "triage"), 512, {"score": 0.5})


def _kind(objects: list[Object], kind: str, name: str = "") -> Object:
    found = [one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    assert len(found) == 1, (kind, name)
    return found[0]


def _render(folder: str) -> list[Object]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed here, so the overlays are not rendered")
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=True)
    return [body for body in yaml.safe_load_all(done.stdout) if body and body["apiVersion"] != NO_SCHEMA]


def _core_problems(body: Object) -> list[str]:
    import kubernetes_validate

    if body["apiVersion"].split("/")[0] in CUSTOM:
        return []
    try:
        kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{body['kind']} {body['metadata']['name']}: {error.message}"]
    return []


def _custom_problems(objects: list[Object], folder: Path) -> str:
    if not VALIDATOR.is_file():
        pytest.skip("the schemas of custom kinds are not beside the repository (../shared)")
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    done = subprocess.run([sys.executable, str(VALIDATOR), str(path)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout


@pytest.mark.parametrize("folder", KUSTOMIZED)
def test_a_kustomization_lists_what_is_there_and_all_of_it(folder: str) -> None:
    """Each listed resource exists, and no file beside it is forgotten."""
    listed = yaml.safe_load((ROOT / folder / "kustomization.yaml").read_text())["resources"]
    for name in listed:
        path = ROOT / folder / name
        assert path.is_file() or (path / "kustomization.yaml").is_file(), name
    here = {path.name for path in (ROOT / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert here == {name for name in listed if name.endswith(".yaml")}


def test_core_objects_are_valid_as_written_and_as_made_for_a_version() -> None:
    """Strictly: no unknown field. By kubernetes-validate's schemas."""
    objects = [*_written(), *_replica(), *_replica(gpus=0, most=4)]
    assert len(objects) > 20
    assert [problem for body in objects for problem in _core_problems(body)] == []


@pytest.mark.parametrize("folder", KUSTOMIZED)
def test_what_kustomize_renders_is_valid(folder: str, tmp_path: Path) -> None:
    """Core and custom kinds, by the real schemas; one namespace for all."""
    objects = _render(folder)
    assert _custom_problems(objects, tmp_path) == ""
    assert {one["metadata"].get("namespace", "pilotline-serving") for one in objects} == {"pilotline-serving"}


def test_custom_objects_are_valid_as_written(tmp_path: Path) -> None:
    """Gateway, HTTPRoute, PodMonitor and PrometheusRule by the schemas that their projects publish."""
    objects = [*_written(), *_replica(most=3), *_replica(most=3, autoscaler="keda")]
    assert _custom_problems(objects, tmp_path) == ""
    trigger = _kind(_replica(most=3, autoscaler="keda"), "ScaledObject")["spec"]["triggers"][0]
    broken = _kind(objects, "ScaledObject") | {"spec": {"scaleTargetRef": {}, "triggers": trigger}}
    assert "INVALID" in _custom_problems([broken], tmp_path)


def test_the_validation_can_fail(tmp_path: Path) -> None:
    """An unknown field and a wrong type are found, in a core and in a custom kind."""
    route = _kind([one for one in _written() if one["metadata"]["name"] == "pilotline-model"], "HTTPRoute")
    broken = json.loads(json.dumps(_replica()[0]))
    broken["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
    assert _core_problems(broken)
    assert "INVALID" in _custom_problems([route | {"spec": {"parentRefs": "pilotline"}}], tmp_path)


def _pods() -> Iterator[tuple[str, Object]]:
    for body in [*_written(), *_replica()]:
        if body["kind"] == "Deployment":
            yield body["metadata"]["name"], body["spec"]["template"]["spec"]


def test_every_pod_is_locked_down() -> None:
    """The restricted Pod Security Standard, and more: read-only root, no token, no service links, memory limits."""
    seen = 0
    for name, pod in _pods():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False
        assert pod["serviceAccountName"] in {"pilotline-model", "pilotline-scoring"}
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "memory" in container["resources"]["limits"]
            assert not container["image"].endswith(":latest")
            assert ":" in container["image"]
            seen += 1
        kinds = {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]}
        assert kinds <= {"persistentVolumeClaim", "emptyDir", "configMap"}
    assert seen == 3


def test_a_replica_asks_for_the_pools_gpus_and_goes_where_they_are() -> None:
    """Request and limit agree; without GPUs none are named, and tensors are parallel over all of them."""
    pod = _replica(gpus=2)[0]["spec"]["template"]["spec"]
    server = pod["containers"][0]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == server["resources"]["requests"]["nvidia.com/gpu"] == "2"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "X"}
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert server["command"][-2:] == ["--tensor-parallel-size", "2"]
    assert (
        "nvidia.com/gpu" not in _replica(gpus=0)[0]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    )


@pytest.mark.parametrize("longest", [0.5, 6.0, 600.0])
def test_the_grace_period_is_longer_than_forgetting_and_the_longest_request(longest: float) -> None:
    """preStop waits at most so long, and SIGTERM still has time after it."""
    pod = _replica(longest=longest)[0]["spec"]["template"]["spec"]
    command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    forget, drain = float(command[-2]), float(command[-1])
    assert drain >= longest
    assert pod["terminationGracePeriodSeconds"] >= forget + drain + 10


def test_no_probe_but_the_golden_request_makes_a_replica_ready_first() -> None:
    """The start-up probe runs the script on the golden request, as often as the recipe's time allows."""
    server = _replica()[0]["spec"]["template"]["spec"]["containers"][0]
    start = server["startupProbe"]
    assert start["exec"]["command"] == ["python3", "/pilotline/probe/ready.py", "/pilotline/probe/golden.json"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 600
    data = _kind(_replica(), "ConfigMap")["data"]
    assert set(data) == {"ready.py", "drain.py", "golden.json"}
    compile(data["ready.py"], "ready.py", "exec")


def test_the_model_is_verified_before_the_server_and_the_server_reads_the_copy_only() -> None:
    """The init container alone sees the shared home, read-only; the server cannot write what it loads."""
    pod = _replica()[0]["spec"]["template"]["spec"]
    fetch, server = pod["initContainers"][0], pod["containers"][0]
    assert fetch["command"][fetch["command"].index("--digest") + 1] == "ab" * 32
    mounts = {mount["name"]: mount for mount in server["volumeMounts"]}
    assert "home" not in mounts
    assert mounts["model"]["readOnly"] is True
    assert next(mount for mount in fetch["volumeMounts"] if mount["name"] == "home")["readOnly"] is True


def test_each_version_has_names_of_its_own() -> None:
    """Served name and object names differ by version and by digest, and are DNS labels whatever the model's name."""
    settings = tiny_recipe().serving
    specs = [ReplicaSpec("canary", name, "causal_lm", Path("/m"), version, digest * 32, settings)
             for name in ("Triage_Model." + "x" * 80, "t")
             for version in ("1", "12") for digest in ("ab", "cd")]  # fmt: skip
    names = [replica_name(spec) for spec in specs]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and name.replace("-", "").isalnum() and name[-1] != "-" for name in names)


def test_only_the_gateway_and_prometheus_reach_a_model_server() -> None:
    """By the labels that replicas really have; the namespace's own pods do not, and model servers reach nobody."""
    labels = _replica()[0]["spec"]["template"]["metadata"]["labels"]
    policies = [one for one in _written() if one["kind"] == "NetworkPolicy" and _selects(one, labels)]
    assert {one["metadata"]["name"] for one in policies} == {"nothing-else", "models", "metrics"}
    sources = [source for one in policies for rule in one["spec"].get("ingress", []) for source in rule["from"]]
    assert {source["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for source in sources} == {
        "envoy-gateway-system", "monitoring",
    }  # fmt: skip
    assert all(source["podSelector"]["matchLabels"] for source in sources)
    assert not [one for one in policies if one["spec"].get("egress")]
    assert any("Egress" in one["spec"]["policyTypes"] for one in policies)
    ports = {port["port"] for one in policies for rule in one["spec"].get("ingress", []) for port in rule["ports"]}
    assert ports == {"http"}


def test_only_the_steps_that_say_what_is_served_reach_the_control_port(tmp_path: Path) -> None:
    """The policy's pod labels are those that a compiled pipeline gives its roll-out and last step, and no other."""
    from components.core.recipe import Resources
    from pipelines.compile import compile_pipeline, read_package
    from pipelines.gpu_pools import SERVING_LABEL
    from pipelines.retrain import pipeline

    policy = _kind(_written(), "NetworkPolicy", "scoring")
    (control,) = [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "control"]
    (source,) = control["from"]
    asked = source["podSelector"]["matchLabels"]
    assert asked == {"pipelines.kubeflow.org/v2_component": "true", SERVING_LABEL: "true"}
    out = compile_pipeline(pipeline("gpu-pool", Resources(accelerator="l4")), tmp_path / "p.yaml", "gpu-pool")
    labelled = {
        step
        for step, settings in read_package(out).kubernetes.items()
        if settings.get("podMetadata", {}).get("labels", {}).get(SERVING_LABEL) == "true"
    }
    assert labelled == {"exec-rollout", "exec-finish"}
    ports = {port["name"] for port in _kind(_written(), "Service", "pilotline-scoring-control")["spec"]["ports"]}
    assert ports == {"control"}


def _selects(policy: Object, labels: dict[str, str]) -> bool:
    selector = policy["spec"]["podSelector"]
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    return all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", []))


def test_a_service_finds_its_pods_and_a_disruption_budget_keeps_the_last_one() -> None:
    """Selectors equal the pod's labels; one replica may not be evicted while it is well, one of several may."""
    for objects, budget in ((_replica(), {"minAvailable": 1}),):
        labels = objects[0]["spec"]["template"]["metadata"]["labels"]
        assert _kind(objects, "Service")["spec"]["selector"] == labels
        found = _kind(objects, "PodDisruptionBudget")["spec"]
        assert found["selector"]["matchLabels"] == labels
        assert found.items() >= budget.items()
    scaled = _kind(_replica(most=4), "HorizontalPodAutoscaler")["spec"]
    assert scaled["metrics"][0]["pods"]["metric"]["name"] == "vllm:num_requests_waiting"
    assert (scaled["minReplicas"], scaled["maxReplicas"]) == (1, 4)
    by_keda = _kind(_replica(most=4, autoscaler="keda"), "ScaledObject")
    assert by_keda["spec"]["scaleTargetRef"]["name"] == by_keda["metadata"]["name"]
    assert (by_keda["spec"]["minReplicaCount"], by_keda["spec"]["maxReplicaCount"]) == (1, 4)
    told = by_keda["spec"]["triggers"][0]["metadata"]
    name = by_keda["metadata"]["name"]
    assert told["query"] == f'sum(vllm:num_requests_waiting{{namespace="pilotline-serving",pod=~"{name}-.*"}})'


def test_the_rollouts_account_may_do_nothing_at_large() -> None:
    """No wildcard, no Secret, no exec, no rights over rights; the route by name; nothing in other namespaces."""
    kinds = {one["kind"] for one in _written()}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}
    role = _kind(_written(), "Role")
    for rule in role["rules"]:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        assert not {"secrets", "pods/exec", "roles", "rolebindings", "serviceaccounts"} & set(rule["resources"])
        if "gateways" in rule["resources"]:
            assert (rule["resourceNames"], rule["verbs"]) == (["pilotline-models"], ["get"])
        if "httproutes" in rule["resources"]:
            assert (rule["resourceNames"], rule["verbs"]) == (["pilotline-model"], ["get", "patch"])


def test_models_have_a_gateway_of_their_own_that_is_not_reached_from_outside() -> None:
    """No listener of the callers' gateway has a route to a model; the models' proxies have an inner address only."""
    parents = {
        one["metadata"]["name"]: [(ref["name"], ref["sectionName"]) for ref in one["spec"]["parentRefs"]]
        for one in _written()
        if one["kind"] == "HTTPRoute"
    }
    assert parents == {
        "pilotline-scoring": [("pilotline", "decisions")], "pilotline-model": [("pilotline-models", "models")],
    }  # fmt: skip
    for name, listener in (("pilotline", "decisions"), ("pilotline-models", "models")):
        listeners = _kind(_written(), "Gateway", name)["spec"]["listeners"]
        assert [one["name"] for one in listeners] == [listener]
    (proxy,) = _read(ROOT / "overlays" / "production" / "internal.yaml")
    assert proxy == {
        "apiVersion": NO_SCHEMA, "kind": "EnvoyProxy", "metadata": {"name": "pilotline-internal"},
        "spec": {"provider": {"type": "Kubernetes", "kubernetes": {"envoyService": {"type": "ClusterIP"}}}},
    }  # fmt: skip
    patches = yaml.safe_load((ROOT / "overlays" / "production" / "kustomization.yaml").read_text())["patches"]
    (patch,) = [one for one in patches if one["target"].get("name") == "pilotline-models"]
    assert yaml.safe_load(patch["patch"]) == [{
        "op": "add", "path": "/spec/infrastructure",
        "value": {"parametersRef": {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy",
                                    "name": "pilotline-internal"}},
    }]  # fmt: skip
    policies = {one["metadata"]["name"]: one["spec"] for one in _written() if one["kind"] == "NetworkPolicy"}
    assert _gateways(policies["models"]["ingress"], "from") == {"pilotline-models"}
    assert _gateways(policies["scoring"]["egress"], "to") == {"pilotline-models"}
    assert _gateways(policies["scoring"]["ingress"], "from") == {"pilotline"}


def _gateways(rules: list[Object], side: str) -> set[str]:
    owner = "gateway.envoyproxy.io/owning-gateway-name"
    labels = [one["podSelector"]["matchLabels"] for rule in rules for one in rule.get(side, [])]
    return {found[owner] for found in labels if owner in found}


def test_the_gateway_lets_callers_to_the_scoring_services_answers_only() -> None:
    """Health, metrics and documentation of the service are not routed."""
    route = _kind(_written(), "HTTPRoute", "pilotline-scoring")
    matches = [match for rule in route["spec"]["rules"] for match in rule["matches"]]
    assert {(match["path"]["value"], match["path"]["type"], match["method"]) for match in matches} == {
        ("/v1/decisions", "Exact", "POST"), ("/v1/feedback", "Exact", "POST"),
        ("/v1/completions", "Exact", "POST"), ("/v1/chat/completions", "Exact", "POST"),
    }  # fmt: skip
    backends = [backend for rule in route["spec"]["rules"] for backend in rule["backendRefs"]]
    assert {(backend["kind"], backend["name"]) for backend in backends} == {("Service", "pilotline-scoring")}
    assert "rules" not in _kind(_written(), "HTTPRoute", "pilotline-model")["spec"]


@pytest.mark.promtool
def test_prometheus_accepts_the_alerts(tmp_path: Path) -> None:
    """By promtool."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(_kind(_written(), "PrometheusRule")["spec"]))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_grace_is_told_in_whole_seconds() -> None:
    """Kubernetes takes no fractions."""
    place = Placement(1, "1", "1Gi", "1Gi")
    assert isinstance(grace_seconds(ClusterServing("n", "i", "t", "c", "/m", place, 0.25)), int)
