"""The HTTPRoute adapter against an API server that conflicts, stumbles, refuses and reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from components.core.errors import IntegrityError, PilotlineError, PolicyRefusal, TransientError, UserError
from components.serving.cluster import FIELD_MANAGER
from components.serving.control import ARMS
from components.serving.router.gateway import TRIES, HttpRoute
from components.serving.router.gateway_rules import Split, rules_of, split_of
from components.serving.router.interface import ALL_ON_STABLE, Backend
from tests.fakes.gateway_rules import accepting, new_route, report
from tests.fakes.kubernetes_api import KubernetesApi

ROUTE = ("gateway.networking.k8s.io/v1", "httproutes", "pilotline-model")
BACKENDS = {arm: Backend(f"triage-{arm}", 8000) for arm in ARMS}
STEP = {"stable": 90, "canary": 10}
ROLE = {"apiGroups": ["gateway.networking.k8s.io"], "resources": ["httproutes"], "verbs": ["get", "patch"],
        "resourceNames": ["pilotline-model"]}  # fmt: skip


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    """A cluster with the route and a gateway that accepts it; the account has what the manifests give it."""
    with KubernetesApi(namespaces=("serving",)) as opened:
        opened.on_change = accepting(opened)
        opened.create(new_route(), "serving", writer="kubectl-client-side-apply")
        opened.rules = [ROLE]
        yield opened


def _router(api: KubernetesApi, name: str = "pilotline-model") -> HttpRoute:
    return HttpRoute(api.client(), "serving", name, "http://gateway.test", 6.5, accept_seconds=0.3)


def _ready(api: KubernetesApi) -> HttpRoute:
    router = _router(api)
    for arm, backend in BACKENDS.items():
        router.set_arm(arm, backend)
    return router


def _route(api: KubernetesApi) -> dict[str, Any]:
    return api.get(*ROUTE, "serving")


def _labelled(api: KubernetesApi) -> None:
    """A change that is none of ours to mind: another version of the object, the same rules."""
    api.patch(*ROUTE, {"metadata": {"labels": {"team": str(api.version)}}}, "serving", writer="labeller")


def test_a_write_in_between_that_leaves_the_rules_alone_is_retried(api: KubernetesApi) -> None:
    """The patch conflicts, the route is read again, and the weight is set."""
    router = _ready(api)
    for _ in range(3):
        api.interrupt("PATCH", "/httproutes/", lambda: _labelled(api))
    router.set_weights(STEP)
    assert router.weights() == STEP
    assert _route(api)["metadata"]["labels"]


def test_conflicts_without_end_are_given_up_after_so_many_tries(api: KubernetesApi) -> None:
    """A transient error that says so; each try was one patch."""
    router = _ready(api)
    for _ in range(50):
        api.interrupt("PATCH", "/httproutes/", lambda: _labelled(api))
    before = len([1 for verb, _ in api.requests if verb == "PATCH"])
    with pytest.raises(TransientError, match=f"in {TRIES} tries"):
        router.set_weights(STEP)
    assert len([1 for verb, _ in api.requests if verb == "PATCH"]) - before == TRIES
    api.faults.clear()
    assert router.weights() == ALL_ON_STABLE


def test_another_weight_set_between_look_and_patch_is_not_overwritten(api: KubernetesApi) -> None:
    """The race that resourceVersion is for: the other writer's rules stand, and it is named."""
    router = _ready(api)
    theirs = rules_of(Split(BACKENDS, {"stable": 40, "canary": 60}), 6.5)
    api.interrupt("PATCH", "/httproutes/", lambda: api.patch(
        *ROUTE, {"spec": {"rules": theirs}}, "serving", writer="argocd-controller"))  # fmt: skip
    with pytest.raises(PolicyRefusal, match=r"argocd-controller.*canary 0 %.*canary 60 %"):
        router.set_weights(STEP)
    assert router.weights() == {"stable": 40, "canary": 60}
    router.set_weights({"stable": 100})
    assert router.weights() == ALL_ON_STABLE


def test_a_patch_whose_answer_was_lost_is_found_done(api: KubernetesApi) -> None:
    """It arrived, the connection broke: looking again sees our own rules, no other writer."""
    router = _ready(api)
    ours = rules_of(Split(BACKENDS, STEP), 6.5)
    api.interrupt("PATCH", "/httproutes/", lambda: api.patch(
        *ROUTE, {"spec": {"rules": ours}}, "serving", writer=FIELD_MANAGER))  # fmt: skip
    router.set_weights(STEP)
    assert router.weights() == STEP


def test_an_api_server_that_stumbles_is_asked_again(api: KubernetesApi) -> None:
    """503 twice on reading, 500 once on writing."""
    router = _ready(api)
    api.fail("GET", "/httproutes/", 503, times=2)
    api.fail("PATCH", "/httproutes/", 500)
    router.set_weights(STEP)
    assert router.weights() == STEP


def test_a_gateway_that_refuses_the_route_is_an_error_in_its_own_words(api: KubernetesApi) -> None:
    """Accepted False of this generation."""
    router = _ready(api)
    api.on_change = lambda event, item: report(api, item, "False", "NoMatchingListenerHostname")
    with pytest.raises(TransientError, match=r"example.test/gateway says Accepted False \(NoMatchingListener"):
        router.set_weights(STEP)
    assert not router.health().ok


def test_an_acceptance_of_an_older_generation_does_not_count(api: KubernetesApi) -> None:
    """The gateway stopped looking: the change is not in force, and that is said."""
    router = _ready(api)
    api.on_change = None
    with pytest.raises(TransientError, match="has not yet looked at generation"):
        router.set_weights(STEP)
    assert "not yet looked" in router.health().reason


def test_without_any_gateway_the_route_is_set_but_never_healthy(api: KubernetesApi) -> None:
    """No report is no acceptance."""
    api.on_change = None
    api.set_status(*ROUTE, {"parents": []}, "serving")
    router = _ready(api)
    router.set_weights(STEP)
    assert router.weights() == STEP
    assert router.health() == type(router.health())(
        False, "HTTPRoute serving/pilotline-model: no gateway reports on it; stable 90 %, canary 10 %"
    )


def test_the_next_controller_takes_over_what_it_finds(api: KubernetesApi) -> None:
    """Killed at any step: a new adapter reads arms and weights from the route and goes on."""
    _ready(api).set_weights(STEP)
    successor = _router(api)
    assert successor.weights() == STEP
    assert successor.arms() == BACKENDS
    successor.set_weights({"stable": 50, "canary": 50})
    assert successor.weights() == {"stable": 50, "canary": 50}


def test_two_controllers_at_once_never_mix_their_changes(api: KubernetesApi) -> None:
    """Whatever the order, the route is one that one of them set, and the loser was told."""
    routers = [_ready(api), _router(api)]
    routers[1].weights()
    told: list[PilotlineError] = []

    def drive(router: HttpRoute, weights: list[int]) -> None:
        for weight in weights:
            try:
                router.set_weights({"stable": 100 - weight, "canary": weight})
            except PilotlineError as error:
                told.append(error)

    threads = [threading.Thread(target=drive, args=(router, list(range(1 + start, 20, 2))))
               for start, router in enumerate(routers)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    split = split_of(_route(api)["spec"]["rules"])
    assert split.arms == BACKENDS
    assert sum(split.weights.values()) == 100
    assert told
    assert all(isinstance(error, PolicyRefusal | TransientError) for error in told)


def test_an_absent_route_and_a_forbidden_one_say_what_to_apply(api: KubernetesApi) -> None:
    """The caller's to mend: no retries."""
    with pytest.raises(PolicyRefusal, match="this account may not"):
        _router(api, "another").set_weights(STEP)
    api.rules = None
    before = len(api.requests)
    with pytest.raises(UserError, match="apply deploy/kubernetes/serving"):
        _router(api, "another").set_weights(STEP)
    assert len(api.requests) - before == 1


def test_only_the_rules_are_written(api: KubernetesApi) -> None:
    """Parents, host names and labels stay as the manifests have them."""
    api.patch(*ROUTE, {"spec": {"hostnames": ["model.example.test"]}}, "serving")
    _labelled(api)
    before = _route(api)
    _ready(api).set_weights(STEP)
    after = _route(api)
    assert {key: value for key, value in after["spec"].items() if key != "rules"} == {
        key: value for key, value in before["spec"].items() if key != "rules"
    }
    assert after["metadata"]["labels"] == before["metadata"]["labels"]


def test_rules_of_another_shape_are_not_guessed_at(api: KubernetesApi) -> None:
    """Who knew the arms goes back to stable over them; who did not, leaves them: stable's place is unknown."""
    router = _ready(api)
    rules = [{"name": "mine", "backendRefs": [{"group": "", "kind": "Service", "name": "x", "port": 1, "weight": 1}]}]
    api.patch(*ROUTE, {"spec": {"rules": rules}}, "serving", writer="kubectl-edit")
    stranger = _router(api)
    for refused in (stranger.weights, lambda: stranger.set_weights(STEP), lambda: stranger.set_weights(ALL_ON_STABLE)):
        with pytest.raises(IntegrityError, match="not those of a rollout"):
            refused()
    assert _route(api)["spec"]["rules"] == rules
    router.set_weights(ALL_ON_STABLE)
    assert (router.weights(), router.arms()) == (ALL_ON_STABLE, BACKENDS)
