"""Where replicas run is the recipe's choice, and a cluster that is not there is said in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from components.core.errors import IntegrityError, PolicyRefusal, TransientError, UserError
from components.core.home import Home
from components.serving.cluster import NotFoundError, call, configured, connect
from pipelines.wiring import open_stack
from tests.fakes.kubernetes_api import KubernetesApi
from tests.fakes.serving_case import tiny_recipe


def test_a_recipe_that_says_nothing_serves_here() -> None:
    """The default changes nothing for recipes of before."""
    assert tiny_recipe().serving.backend == "local"


def test_a_cluster_that_is_not_configured_is_refused_in_one_line_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says where it looked and what to use instead."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    pool = {"volume": {"claim": "c", "mount": str(tmp_path)}}
    recipe = tiny_recipe(serving={"backend": "kubernetes"}, resources={"pool": pool})
    step: Any = SimpleNamespace(recipe=recipe, home=Home.at(tmp_path / "home"), run_id="run-1")
    with pytest.raises(UserError, match=r"no pod, no \$KUBECONFIG.*local") as error, open_stack(step, "auto", tmp_path):
        pass
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="no cluster configuration"):
        connect()


def test_a_pod_and_a_kubeconfig_are_a_configured_cluster(tmp_path: Path) -> None:
    """Either is enough."""
    config = tmp_path / "config"
    config.write_text("")
    for variables in ({"KUBECONFIG": str(config)}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}):
        assert configured(variables)
    assert not configured({"HOME": str(tmp_path)})


def test_a_kubeconfig_leads_to_its_cluster(tmp_path: Path) -> None:
    """The current context's server answers; a broken file is the user's to mend."""
    from kubernetes import client

    path = tmp_path / "config"
    with KubernetesApi(namespaces=("here",)) as api:
        path.write_text(yaml.safe_dump(api.kubeconfig()))
        found = client.CoreV1Api(connect({"KUBECONFIG": str(path)})).list_namespace()
        assert [one.metadata.name for one in found.items] == ["here"]
    for broken in ("clusters: 3", "{", "", "[]", "current-context: x"):
        path.write_text(broken)
        with pytest.raises(UserError, match="kubectl config view"):
            connect({"KUBECONFIG": str(path)})


@pytest.mark.parametrize(("status", "kind"), [
    (401, PolicyRefusal), (403, PolicyRefusal), (404, NotFoundError), (409, TransientError), (422, IntegrityError),
    (400, IntegrityError), (429, TransientError), (500, TransientError), (503, TransientError),
])  # fmt: skip
def test_each_failure_of_the_api_says_who_has_to_act(status: int, kind: type[Exception]) -> None:
    """By the error's type."""
    from kubernetes import client

    with KubernetesApi(namespaces=("here",)) as api:
        core = client.CoreV1Api(api.client())
        api.fail("GET", "/namespaces", status)
        with pytest.raises(kind, match="planted"):
            call("namespaces", core.list_namespace)


def test_a_server_that_is_gone_is_transient() -> None:
    """Refused connections too."""
    from kubernetes import client

    with KubernetesApi() as api:
        found = api.client()
    found.configuration.retries = 0
    with pytest.raises(TransientError, match="did not answer"):
        call("namespaces", client.CoreV1Api(found).list_namespace)
