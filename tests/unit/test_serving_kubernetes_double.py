"""The Kubernetes API double behaves as a server does, seen through the real client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from tests.fakes.kubernetes_api import KubernetesApi

ROUTE = ("gateway.networking.k8s.io", "v1", "serving", "httproutes")


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    """A server with one namespace."""
    with KubernetesApi(namespaces=("serving",)) as opened:
        yield opened


def _deployment(name: str = "one", **labels: str) -> dict[str, Any]:
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    about = {"name": name, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": spec}


def _route(weight: int = 1, **about: Any) -> dict[str, Any]:
    refs = [{"name": "a", "weight": weight}]
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r", **about},
            "spec": {"rules": [{"backendRefs": refs}]}}  # fmt: skip


def _refused(call: Any, *args: Any, **options: Any) -> int:
    with pytest.raises(ApiException) as error:
        call(*args, **options)
    return int(error.value.status)


def test_absent_objects_namespaces_and_kinds_are_not_found_and_names_are_taken_once(api: KubernetesApi) -> None:
    """404, 404, 404 and 409."""
    apps, custom = client.AppsV1Api(api.client()), client.CustomObjectsApi(api.client())
    assert _refused(apps.read_namespaced_deployment, "one", "serving") == 404
    assert _refused(apps.create_namespaced_deployment, "elsewhere", _deployment()) == 404
    assert _refused(custom.get_namespaced_custom_object, "no.such", "v1", "serving", "things", "one") == 404
    assert apps.create_namespaced_deployment("serving", _deployment()).metadata.generation == 1
    assert _refused(apps.create_namespaced_deployment, "serving", _deployment()) == 409


def test_a_write_with_an_old_resource_version_is_refused_and_one_without_goes_through(api: KubernetesApi) -> None:
    """Optimistic concurrency for replace and for merge patch; the generation counts changes of the spec."""
    custom = client.CustomObjectsApi(api.client())
    made = custom.create_namespaced_custom_object(*ROUTE, _route())
    old = made["metadata"]["resourceVersion"]
    changed = custom.patch_namespaced_custom_object(*ROUTE, "r", {"metadata": {"resourceVersion": old}} | {
        "spec": {"rules": [{"backendRefs": [{"name": "a", "weight": 5}]}]}})  # fmt: skip
    assert changed["metadata"]["generation"] == 2
    assert _refused(custom.replace_namespaced_custom_object, *ROUTE, "r", _route(7, resourceVersion=old)) == 409
    stale = {"metadata": {"resourceVersion": old, "labels": {"a": "b"}}}
    assert _refused(custom.patch_namespaced_custom_object, *ROUTE, "r", stale) == 409
    assert custom.replace_namespaced_custom_object(*ROUTE, "r", _route(7))["metadata"]["generation"] == 3


def test_status_is_written_through_its_subresource_only(api: KubernetesApi) -> None:
    """Neither does a status write touch the spec, nor the other way round, and status leaves the generation."""
    custom = client.CustomObjectsApi(api.client())
    custom.create_namespaced_custom_object(*ROUTE, _route() | {"status": {"parents": [1]}})
    assert "status" not in custom.get_namespaced_custom_object(*ROUTE, "r")
    body: dict[str, Any] = {"status": {"parents": []}, "spec": {"rules": []}}
    custom.patch_namespaced_custom_object_status(*ROUTE, "r", body)
    custom.patch_namespaced_custom_object(*ROUTE, "r", {"status": {"parents": [2]}, "metadata": {"labels": {"x": "y"}}})
    found = custom.get_namespaced_custom_object(*ROUTE, "r")
    assert (found["status"], len(found["spec"]["rules"]), found["metadata"]["generation"]) == ({"parents": []}, 1, 1)


def test_a_watch_tells_what_happens_after_its_resource_version_in_order(api: KubernetesApi) -> None:
    """Created, changed and deleted, seen by a client that was waiting; other kinds and labels are not."""
    apps = client.AppsV1Api(api.client())
    start = apps.list_namespaced_deployment("serving").metadata.resource_version

    def work() -> None:
        apps.create_namespaced_deployment("serving", _deployment("other"))
        apps.create_namespaced_deployment("serving", _deployment("one", of="me"))
        apps.patch_namespaced_deployment("one", "serving", {"spec": {"replicas": 3}})
        apps.delete_namespaced_deployment("one", "serving")

    threading.Timer(0.1, work).start()
    seen = []
    for event in watch.Watch().stream(
        apps.list_namespaced_deployment, "serving", resource_version=start, label_selector="of=me", timeout_seconds=10
    ):
        seen.append((event["type"], event["object"].spec.replicas))
        if event["type"] == "DELETED":
            break
    assert seen == [("ADDED", 1), ("MODIFIED", 3), ("DELETED", 3)]


def test_a_watch_from_forgotten_history_is_gone(api: KubernetesApi) -> None:
    """410, as after etcd's compaction."""
    api.create(_deployment(), "serving")
    api.compact()
    apps = client.AppsV1Api(api.client())
    events = watch.Watch().stream(
        apps.list_namespaced_deployment, "serving", resource_version="101", timeout_seconds=2
    )  # fmt: skip
    assert _refused(list, events) == 410


def test_what_an_object_owns_is_deleted_with_it(api: KubernetesApi) -> None:
    """By uid, so that a successor of the same name owns nothing of it."""
    owner = api.create(_deployment(), "serving")["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "one", "uid": owner["uid"]}
    for name, references in (("mine", [reference]), ("free", [])):
        about = {"name": name, "ownerReferences": references}
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {}}, "serving")
    core, apps = client.CoreV1Api(api.client()), client.AppsV1Api(api.client())
    options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    assert _refused(apps.delete_namespaced_deployment, "one", "serving", body=options) == 409
    apps.delete_namespaced_deployment("one", "serving")
    assert [one.metadata.name for one in core.list_namespaced_config_map("serving").items] == ["free"]


def test_planted_failures_interruptions_and_rules_apply_to_calls(api: KubernetesApi) -> None:
    """A 503 once, another writer in between, and a 403 beyond a Role's rules."""
    apps = client.AppsV1Api(api.client())
    api.create(_deployment(), "serving")
    api.fail("GET", "/deployments/one", 503)
    assert _refused(apps.read_namespaced_deployment, "one", "serving") == 503
    api.interrupt("GET", "/deployments/one", lambda: api.delete("apps/v1", "deployments", "one", "serving"))
    assert _refused(apps.read_namespaced_deployment, "one", "serving") == 404
    api.rules = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"], "resourceNames": ["one"]}]
    assert _refused(apps.read_namespaced_deployment, "one", "serving") == 404
    assert _refused(apps.read_namespaced_deployment, "two", "serving") == 403
    assert _refused(apps.list_namespaced_deployment, "serving") == 403
