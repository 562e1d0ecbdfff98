"""Rollouts on two real vLLM servers, which are started once: a good canary, a killed one, and bad ones by a proxy."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest
from scipy.stats import binomtest

from components.core.home import Home
from components.core.processes import wait_until
from components.core.recipe import Recipe
from components.core.records import RolloutReport
from components.models.spec import spec_for
from components.serving.decision_log import find_decision
from components.serving.engines import Choice, choose
from components.serving.replica import WARM_UP_REQUESTS
from components.serving.router.interface import ALLOWED, ARM_HEADER
from components.serving.scoring import COMPLETIONS, label_logprobs, scoring_request
from components.serving.stack import LocalStack
from tests.fakes.serving_case import tiny_recipe
from tests.fakes.vllm_endpoints import AccessLog, raw_status, routes_of, spellings
from tests.fakes.vllm_fault_proxy import SAME_PROMPT, SpoilingEngine
from tests.fakes.vllm_judged import Ended, logged
from tests.fakes.vllm_pair import SAME, Caller, Pair, WarmStack

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

# Two servers, Envoy, the service and this test share two cores: only a large fault is one here.
GOLDEN = 8
TOLERANT = {
    "golden_requests": GOLDEN, "golden_tolerance": SAME, "requests_per_second": 25.0, "error_margin": 0.2,
    "score_shift": 0.1, "slo_p95_ms": 60_000.0, "deadline_seconds": 150.0,
}  # fmt: skip
GOOD = TOLERANT | {"shadow_requests": 60, "steps": [10, 50], "min_canary_requests": 30, "latency_ratio": 20.0,
                   "alpha": 0.1, "extend_seconds": 150.0}  # fmt: skip
ENDLESS = GOOD | {"shadow_requests": 0, "steps": [50], "min_canary_requests": 100_000, "latency_ratio": 1000.0}
BAD = TOLERANT | {"shadow_requests": 0, "steps": [50], "min_canary_requests": 100_000, "latency_ratio": 3.0}
PROBES = 1 + WARM_UP_REQUESTS + 1 + GOLDEN  # what a canary is asked before traffic: ready, warm, golden, golden set
ERRORS, SLOW = {"errors", "failures_in_a_row"}, {"latency_p50", "latency_p95"}
ABORTED_WITHIN = 15.0  # seconds, of a busy machine too; alone it is one to five
CALLER_RATE = 5.0


@dataclass
class Rolled:
    """The first rollout's end, on a stack that is still open with both versions up."""

    pair: Pair
    stack: LocalStack
    report: RolloutReport
    caller: Caller
    log: list[dict[str, Any]]
    everything: ExitStack


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rolled]:
    """Version 2 rolled out beside version 1 by 0, 10, 50 and 100 %, a caller asking all the time."""
    pair = Pair(tmp_path_factory.mktemp("vllm"))
    recipe = tiny_recipe(rollout=GOOD, serving={"request_timeout_seconds": 20.0, "start_timeout_seconds": 400.0})
    with ExitStack() as everything:
        stack = everything.enter_context(
            LocalStack(
                recipe=recipe,
                home=pair.home,
                run_id="run-1",
                training_set=pair.root / "set",
                choice=choose("vllm"),
                service_module="tests.fakes.serving_case",
            )
        )
        with Caller(stack.url, pair.rows, CALLER_RATE, 21.0) as caller:
            report = pair.roll_out(stack, recipe, "run-1")
            wait_until(lambda: report.outcome != "passed" or caller.answered(1.0) >= 40, 60.0)
        log = logged(stack, 0.0, report.requests + len(caller.decisions))
        yield Rolled(pair, stack, report, caller, log, everything)


def test_two_real_vllm_servers_a_whole_rollout_and_no_failed_request(rolled: Rolled) -> None:
    """Passed by real vLLM on both arms; neither the replayed nor the caller's requests failed, none is missing."""
    report, caller = rolled.report, rolled.caller
    assert report.outcome == "passed", report.reason
    assert report.engine.startswith("vllm ")
    assert report.failed_requests == 0
    assert {(decision.http_status, decision.label in ("no", "yes")) for decision in caller.decisions} == {(200, True)}
    assert len(rolled.log) == report.requests + len(caller.decisions)
    assert {row["status"] for row in rolled.log} <= {"ok", "fallback"}


def test_observed_shares_are_within_binomial_error_of_the_weights(rolled: Rolled) -> None:
    """Counted in the decision log alone; the exact test at 1e-4 a step, and at 0 and 100 % not one exception."""
    drawn: dict[float, list[bool]] = {}
    for row in sorted(rolled.log, key=lambda row: row["id"]):  # an id begins with its time
        drawn.setdefault(row["weight"], []).append(row["drawn"] == "canary")
    assert list(drawn) == [0.0, 0.1, 0.5, 1.0]
    for weight, canary in drawn.items():
        found = binomtest(sum(canary), len(canary), weight)
        low, high = found.proportion_ci(0.95)
        print(f"weight {weight:.0%}: {sum(canary)} of {len(canary)}, {low:.3f} to {high:.3f}, p {found.pvalue:.3f}")
        assert found.pvalue > 1e-4, (weight, sum(canary), len(canary))
        others = set(drawn) - {weight}
        assert all(binomtest(sum(canary), len(canary), other).pvalue < 1e-4 for other in others), "too few to tell"


def test_callers_log_and_models_agree_who_answered(rolled: Rolled) -> None:
    """Draw, weight and version are the same to the caller and in the log; each score is that version's of the row."""
    logged = {row["id"]: row for row in rolled.log}
    for decision in rolled.caller.decisions:
        row = logged[decision.decision_id]
        told = (row["drawn"], row["weight"], row["version"], row["score"])
        assert told == (decision.drawn, decision.weight, decision.model_version, decision.score)
    for row in rolled.log:
        assert row["score"] == pytest.approx(rolled.pair.scores[row["version"]][row["entities"]["shop"]], abs=SAME)
        assert (row["answered_by"] == "canary") == (row["version"] == "2")


def test_a_stream_of_vllm_passes_event_by_event(rolled: Rolled) -> None:
    """Six tokens by the pass-through: several events of the version that has all traffic, then the end."""
    asked = {"model": "tiny", "prompt": "my card was", "max_tokens": 6, "stream": True, "temperature": 0}
    answer = httpx.post(f"{rolled.stack.url}{COMPLETIONS}", json=asked, timeout=60)
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert len(events) > 2
    assert events[-1] == "[DONE]"
    assert {json.loads(event)["model"] for event in events[:-1]} == {"tiny-v2"}


OTHERS = ("/metrics", "/docs", "/redoc", "/openapi.json", "/health", "/ping", "/load", "/version", "/invocations",
          "/tokenize", "/generative_scoring", "/scale_elastic_ep", "/v1/load_lora_adapter")  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE")
ARM_HEADERS: tuple[dict[str, str], ...] = ({}, {ARM_HEADER: "stable"}, {ARM_HEADER: "canary"})
LISTED = {path for path, _ in ALLOWED}


def test_no_endpoint_of_vllm_but_those_listed_is_reached_through_the_router(rolled: Rolled) -> None:
    """Every route that vLLM tells of, by every method, arm and spelling: refused, and vLLM's own log saw none of it."""
    stack = rolled.stack
    urls = {arm: stack.served(arm).url for arm in ("stable", "canary")}
    logs = {
        arm: AccessLog(url, rolled.pair.home.run("run-1") / "logs" / f"vllm-{arm}.log") for arm, url in urls.items()
    }
    told = routes_of(urls["stable"])
    assert len(told) > 15
    assert told >= LISTED
    routes, asked = told | set(OTHERS), 0
    assert httpx.post(f"{urls['stable']}/tokenize", json={"prompt": "my card"}).status_code == 200
    with httpx.Client(base_url=stack.router_url, trust_env=False) as client:
        for path, method, arm in itertools.product(routes, METHODS, ARM_HEADERS):
            if (path, method) not in ALLOWED:
                status = client.request(method, path, headers=arm, json={}).status_code
                assert status in ((400, 404) if path in LISTED else (403, 404)), (method, path, arm, status)
                asked += 1
    for path, method in itertools.product(routes - LISTED, ("GET", "POST")):
        for spelling in spellings(path):
            status = raw_status(stack.router.port, method, spelling)
            assert status in (400, 403, 404), (method, spelling, status)
            asked += 1
    print(f"{len(routes)} routes, {asked} requests refused")
    assert logs["stable"].seen() == [("GET", "/openapi.json"), ("POST", "/tokenize")]  # asked of vLLM itself, above
    assert logs["canary"].seen() == []


@pytest.fixture(scope="module")
def spoiled(rolled: Rolled) -> tuple[LocalStack, SpoilingEngine]:
    """A stack before the same two vLLM servers, a proxy in front of each."""
    urls = {rolled.stack.served(arm).served_name: rolled.stack.served(arm).url for arm in ("stable", "canary")}
    engine = SpoilingEngine(urls, rolled.stack.choice.engine.label)
    stack = LocalStack(
        recipe=tiny_recipe(serving={"request_timeout_seconds": 8.0}),
        home=Home.at(rolled.pair.root / "spoiled"),
        run_id="run-1",
        training_set=rolled.pair.root / "set",
        choice=Choice(engine, "real vLLM behind a proxy"),
        service_module="tests.fakes.serving_case",
    )
    return rolled.everything.enter_context(stack), engine


@dataclass(frozen=True)
class Spoilt:
    """A canary before which the proxy does `fault` after `healthy` requests; one of `rules` names it.

    `failures`: what the log says of draws that stable answered in its place.
    """

    fault: str
    rules: set[str]
    failures: set[str]
    healthy: int = PROBES
    shadow_requests: int = 0
    registered: str = "as-evaluated"


CONSTANT = {"auc", "log_loss", "label_flips", "score_up", "score_down"}
BAD_CANARIES = {
    "answers 500": Spoilt("error", ERRORS, {"http_500"}),
    "is slow": Spoilt("slow:2", SLOW, set()),
    "hangs in the middle of its answer": Spoilt("stall", ERRORS | SLOW, {"timeout"}),
    "answers malformed JSON": Spoilt("garbage", {"invalid", "failures_in_a_row"}, {"invalid"}),
    "answers as another model": Spoilt("wrong_model", {"version"}, {"wrong_model"}),
    "gives constant scores": Spoilt("same_prompt", CONSTANT, set(), 0, shadow_requests=1000, registered="constant"),
    "gives constant scores, others registered": Spoilt("same_prompt", {"ready"}, set(), 0),
    "is healthy, then answers 500": Spoilt("error", ERRORS, {"http_500"}, healthy=PROBES + 40),
    "is healthy, then gives constant scores": Spoilt(
        "same_prompt", {"golden_parity", *CONSTANT}, set(), healthy=PROBES + 40
    ),
}


def _rolled_out(rolled: Rolled, stack: LocalStack, name: str, recipe: Recipe, registered: str) -> Ended:
    """Version 2 beside version 1 on this stack, to its end; afterwards stable alone answers."""
    began = time.time()
    report = rolled.pair.roll_out(stack, recipe, name.replace(" ", "-"), registered)
    ended = Ended(report, logged(stack, began, report.requests))
    ended.told(name)
    assert len(ended.log) == report.requests
    assert stack.router.weights() == {"stable": 100, "canary": 0}
    assert not stack.alive("canary")
    assert {decision.answered_by for decision in stack.decide(rolled.pair.rows[:5], 25.0)} == {"stable"}
    return ended


@pytest.mark.parametrize("name", BAD_CANARIES)
def test_a_bad_canary_on_vllm_is_aborted_by_the_rule_that_names_it(
    rolled: Rolled, spoiled: tuple[LocalStack, SpoilingEngine], name: str
) -> None:
    """One failed rule, of the kind; no failed request; what the canary failed stable answered, with its own score."""
    stack, engine = spoiled
    bad = BAD_CANARIES[name]
    if bad.registered == "constant":
        rolled.pair.register("constant", [_constant_score(rolled)] * len(rolled.pair.rows))
    engine.faults["canary"], engine.healthy["canary"] = bad.fault, bad.healthy
    recipe = tiny_recipe(rollout=BAD | {"shadow_requests": bad.shadow_requests})
    ended = _rolled_out(rolled, stack, name, recipe, bad.registered)
    ended.aborted_by(bad.rules)
    ended.unharmed(rolled.pair, bad.failures)
    assert ended.seconds_to_abort < ABORTED_WITHIN
    well = sum(row["answered_by"] == "canary" for row in ended.log)
    assert well >= (bad.healthy - PROBES) // 2  # the golden rows asked again in between are healthy ones too


def test_a_frozen_vllm_is_aborted_and_stable_answers(
    rolled: Rolled, spoiled: tuple[LocalStack, SpoilingEngine]
) -> None:
    """SIGSTOP at 50 %: no connection breaks, nothing comes any more; its draws are answered by stable in time."""
    stack, engine = spoiled
    engine.faults["canary"] = ""
    frozen = psutil.Process(rolled.stack.served("canary").pid)

    def freeze() -> None:
        if wait_until(lambda: rolled.pair.state("is-frozen") == "step 50 %", 60.0, every=0.1):
            time.sleep(1.5)
            frozen.suspend()

    freezing = threading.Thread(target=freeze)
    freezing.start()
    try:
        ended = _rolled_out(rolled, stack, "is frozen", tiny_recipe(rollout=BAD), "as-evaluated")
    finally:
        freezing.join()
        frozen.resume()
    ended.aborted_by(ERRORS | SLOW)
    ended.unharmed(rolled.pair, {"timeout"})
    assert ended.seconds_to_abort < ABORTED_WITHIN


def test_a_stream_that_hangs_ends_with_an_error_event(
    rolled: Rolled, spoiled: tuple[LocalStack, SpoilingEngine]
) -> None:
    """After the first event of real vLLM nothing comes: in the time for an answer the caller is told, and the log."""
    stack, engine = spoiled
    engine.faults["canary"], engine.healthy["canary"] = "stall", PROBES
    stack.start("canary", rolled.pair.root / "model-2", "2", rolled.pair.digests["candidate"])
    engine.faults["canary"] = ""
    stack.set_weight(100)
    for _ in range(PROBES - 1 - WARM_UP_REQUESTS):
        assert stack.decide(rolled.pair.rows[:1], 10.0)[0].answered_by == "canary"
    asked = {"model": "tiny", "prompt": "my card was", "max_tokens": 6, "stream": True, "temperature": 0}
    began = time.monotonic()
    answer = httpx.post(f"{stack.url}{COMPLETIONS}", json=asked, timeout=60)
    assert time.monotonic() - began < 20
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert json.loads(events[0])["model"] == "tiny-v2"
    assert json.loads(events[-1])["error"]["code"] == "broken_stream"
    time.sleep(0.5)  # the log is written behind the answer
    row = find_decision(stack.decision_log, answer.headers["x-request-id"])
    assert row is not None
    assert (row["status"], row["failure"], row["drawn"]) == ("refused", "timeout", "canary")
    stack.stop("canary")


def test_a_killed_vllm_at_half_the_traffic_costs_nobody_a_request(rolled: Rolled) -> None:
    """SIGKILL with requests under way: stable answers them, its draws are told as failed, rolled back, no process."""
    pair, stack = rolled.pair, rolled.stack
    recipe = tiny_recipe(rollout=ENDLESS, serving={"request_timeout_seconds": 20.0, "start_timeout_seconds": 400.0})
    canary = psutil.Process(stack.served("canary").pid)
    family = [canary, *canary.children(recursive=True)]
    seconds: list[float] = []

    def kill() -> None:
        assert wait_until(lambda: pair.state("killed") == "step 50 %", 120.0, every=0.1)
        time.sleep(2.0)
        canary.suspend()  # so that the kill meets requests under way
        wait_until(lambda: stack.router.active("canary") >= 3, 10.0, every=0.01)
        canary.kill()
        killed = time.monotonic()
        wait_until(lambda: not stack.router.weights().get("canary"), 30.0, every=0.01)
        seconds.append(time.monotonic() - killed)

    began = time.time()
    killing = threading.Thread(target=kill)
    killing.start()
    with Caller(stack.url, pair.rows, CALLER_RATE, 21.0) as caller:
        report = pair.roll_out(WarmStack(stack), recipe, "killed")
        killing.join()
        after = len(caller.decisions)
        wait_until(lambda: len(caller.decisions) >= after + 15, 30.0)
    ended = Ended(report, logged(stack, began, report.requests + len(caller.decisions)))
    ended.told(f"is killed (0 % after {seconds[0]:.2f} s)")
    ended.aborted_by({"alive"})
    ended.unharmed(pair, {"http_503", "connect"})
    assert seconds[0] < 10.0
    assert {(decision.http_status, decision.label in ("no", "yes")) for decision in caller.decisions} == {(200, True)}
    assert len(ended.log) == report.requests + len(caller.decisions)
    assert len(ended.fell) >= 3
    assert {(row["drawn"], row["answered_by"], row["version"]) for row in ended.fell} == {("canary", "stable", "1")}
    assert {decision.answered_by for decision in caller.decisions[-10:]} == {"stable"}
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
    assert not stack.alive("canary")
    assert stack.alive("stable")


def test_nothing_outlives_the_stack(rolled: Rolled) -> None:
    """Envoy, the service and the vLLM that is left end with their stacks."""
    left = psutil.Process().children(recursive=True)
    assert len(left) >= 3
    rolled.everything.close()
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive


def _constant_score(rolled: Rolled) -> float:
    """What version 2 makes of the one prompt that `same_prompt` asks, of vLLM itself."""
    served, renderer = rolled.stack.served("canary"), spec_for("causal_lm").renderer(rolled.pair.root / "model-2")
    labels = renderer.label_token_ids
    asked = scoring_request(served.served_name, SAME_PROMPT, labels)
    answer = httpx.post(f"{served.url}{COMPLETIONS}", json=asked, timeout=60).json()
    return renderer.score(*label_logprobs(answer, served.served_name, labels))
