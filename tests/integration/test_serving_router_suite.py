"""What every router has to do: the same questions to Envoy and to a Gateway API HTTPRoute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from components.core.errors import PilotlineError, PolicyRefusal, UserError
from components.serving.router.interface import ALL_ON_STABLE, ALLOWED
from tests.fakes.router_places import Place, open_place

POST = ("POST", "/v1/completions")


@pytest.fixture(params=["envoy", "httproute"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A router without an arm."""
    with open_place(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def both(place: Place) -> Place:
    """Stable and canary are behind it, all on stable."""
    for arm, backend in place.backends.items():
        place.router.set_arm(arm, backend)
    return place


def test_a_new_router_has_no_arm_and_all_weight_on_stable(place: Place) -> None:
    """Requests are answered with an error by the router itself."""
    assert place.router.arms() == {"stable": None, "canary": None}
    assert place.router.weights() == ALL_ON_STABLE
    for arm in (None, "stable", "canary"):
        status, by = place.ask(*POST, arm)
        assert status >= 500
        assert by == ""


def test_a_named_arm_answers_whatever_the_weights_are(both: Place) -> None:
    """The header decides; both places and weights are read back."""
    assert both.router.arms() == dict(both.backends)
    for weight in (0, 50, 100):
        both.router.set_weights({"stable": 100 - weight, "canary": weight})
        assert {both.ask(*POST, "stable") for _ in range(3)} == {(200, "stable")}
        assert {both.ask(*POST, "canary") for _ in range(3)} == {(200, "canary")}


def test_weights_are_read_back_and_hold_for_requests_without_an_arm(both: Place) -> None:
    """0 and 100 are exact; 30 % of 400 is within five standard deviations."""
    for weight, seen in ((100, {"canary"}), (0, {"stable"})):
        both.router.set_weights({"stable": 100 - weight, "canary": weight})
        assert both.router.weights() == {"stable": 100 - weight, "canary": weight}
        assert {both.ask(*POST, None)[1] for _ in range(20)} == seen
    both.router.set_weights({"stable": 70, "canary": 30})
    share = sum(both.ask(*POST, None) == (200, "canary") for _ in range(400)) / 400
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / 400) ** 0.5


def test_every_weight_between_nothing_and_all_is_read_back_exactly(both: Place) -> None:
    """No rounding on the way."""
    for weight in (1, 7, 33, 50, 99):
        both.router.set_weights({"canary": weight, "stable": 100 - weight})
        assert both.router.weights() == {"stable": 100 - weight, "canary": weight}


@pytest.mark.parametrize("weights", [
    {"stable": 100, "canary": 1}, {"stable": 50}, {}, {"stable": 101, "canary": -1}, {"stable": 100, "third": 0},
    {"stable": 99.5, "canary": 0.5}, {"stable": True, "canary": 99}, {"stable": float("nan"), "canary": 0},
])  # fmt: skip
def test_weights_that_are_no_percentages_are_refused_and_change_nothing(both: Place, weights: dict[str, int]) -> None:
    """The caller's fault, said as such."""
    both.router.set_weights({"stable": 80, "canary": 20})
    with pytest.raises(UserError):
        both.router.set_weights(weights)
    assert both.router.weights() == {"stable": 80, "canary": 20}


def test_no_weight_for_a_canary_that_is_not_there_and_none_is_left_when_it_goes(place: Place) -> None:
    """Taking the canary away gives its weight back to stable, so that nobody is sent to nobody."""
    place.router.set_arm("stable", place.backends["stable"])
    with pytest.raises(UserError):
        place.router.set_weights({"stable": 90, "canary": 10})
    place.router.set_arm("canary", place.backends["canary"])
    place.router.set_weights({"stable": 0, "canary": 100})
    place.router.set_arm("canary", None)
    assert place.router.weights() == ALL_ON_STABLE
    assert place.router.arms()["canary"] is None
    assert {place.ask(*POST, None) for _ in range(10)} == {(200, "stable")}
    assert place.ask(*POST, "canary")[0] >= 500


def test_an_arm_that_does_not_exist_is_an_error_and_never_another_arm(both: Place) -> None:
    """Neither as a place for a replica nor in a request's header."""
    with pytest.raises(UserError):
        both.router.set_arm("third", both.backends["stable"])
    for arm in ("third", "", "Stable", "stable,canary", "stable-canary"):
        status, by = both.ask(*POST, arm)
        assert status >= 400
        assert by == ""


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/metrics"), ("GET", "/health"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("POST", "/invocations"),
    ("POST", "/generative_scoring"), ("POST", "/scale_elastic_ep"), ("GET", "/docs"), ("GET", "/openapi.json"),
    ("GET", "/version"), ("POST", "/v1/embeddings"), ("POST", "/v1/load_lora_adapter"), ("GET", "/"),
    ("GET", "/v1/models/x"), ("DELETE", "/v1/models"), ("GET", "/v1/completions"), ("POST", "/V1/completions"),
])  # fmt: skip
def test_nothing_but_the_listed_paths_is_served(both: Place, method: str, path: str) -> None:
    """For every arm, and for callers that name none."""
    for arm in (None, "stable", "canary"):
        assert both.ask(method, path, arm) in {(404, ""), (400, "")}


def test_the_listed_paths_are_served(both: Place) -> None:
    """For both arms."""
    for path, method in ALLOWED:
        assert both.ask(method, path, None) == (200, "stable")
        assert both.ask(method, path, "canary") == (200, "canary")


def test_another_writers_change_is_refused_and_named_and_the_way_back_overrules_it(both: Place) -> None:
    """No weight and no arm is set on top of it; all traffic to stable is, and after that all is ours again."""
    both.router.set_weights({"stable": 90, "canary": 10})
    both.router.set_weights(ALL_ON_STABLE)
    named = both.meddle()
    with pytest.raises(PolicyRefusal, match=named):
        both.router.set_weights({"stable": 50, "canary": 50})
    with pytest.raises(PolicyRefusal, match=named):
        both.router.set_arm("stable", both.backends["canary"])
    health = both.router.health()
    assert not health.ok
    assert named in health.reason
    both.router.set_weights(ALL_ON_STABLE)
    assert both.router.weights() == ALL_ON_STABLE
    assert {both.ask(*POST, None) for _ in range(10)} == {(200, "stable")}
    both.router.set_weights({"stable": 50, "canary": 50})
    assert both.router.health().ok


def test_taking_the_canary_away_overrules_another_writer_too(both: Place) -> None:
    """The other half of the way back."""
    both.meddle()
    both.router.set_arm("canary", None)
    assert both.router.weights() == ALL_ON_STABLE
    assert both.router.arms()["canary"] is None


def test_an_engine_that_is_gone_is_a_transient_error_and_not_healthy(both: Place) -> None:
    """Nothing hangs and nothing counts as set; closing twice is no error."""
    assert both.router.health().ok
    both.fail()
    with pytest.raises(PilotlineError):
        both.router.set_weights({"stable": 50, "canary": 50})
    assert not both.router.health().ok
    both.router.close()
    both.router.close()
