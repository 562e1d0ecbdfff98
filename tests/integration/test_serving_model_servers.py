"""Model servers keep the same promises: the fake, the reference engine, and vLLM where it is installed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest

from components.core.home import Home
from components.models.files import model_digest
from components.models.spec import spec_for
from components.serving.engines import Choice, choose
from components.serving.scoring import label_logprobs, scoring_request
from components.serving.stack import LocalStack
from tests.fakes.fake_model_server import FakeEngine
from tests.fakes.serving_case import make_model, rows, tiny_recipe

ENGINES = ["fake", pytest.param("reference", marks=pytest.mark.slow), pytest.param("vllm", marks=[pytest.mark.vllm])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights."""
    return make_model(tmp_path_factory.mktemp("model") / "m", seed=5)


@pytest.fixture(scope="module", params=ENGINES)
def stack(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalStack]:
    """A stack with this model as stable."""
    root = tmp_path_factory.mktemp(request.param)
    choice = Choice(FakeEngine(), "fake") if request.param == "fake" else choose(request.param)
    with LocalStack(
        recipe=tiny_recipe(serving={"request_timeout_seconds": 30.0, "start_timeout_seconds": 300.0}),
        home=Home.at(root / "home"),
        run_id="run-1",
        training_set=root,
        choice=choice,
        service_module="tests.fakes.serving_case",
    ) as opened:
        opened.start("stable", model, "7", model_digest(model))
        yield opened


@pytest.fixture(scope="module")
def url(stack: LocalStack) -> str:
    """The model server itself, behind no router."""
    return stack.served("stable").url


def test_scores_through_the_router_are_those_of_transformers(stack: LocalStack, model: Path) -> None:
    """64 rows, within 1e-4, by the golden path and by decisions; the fake has no model to agree with."""
    given = rows(64, words=20)
    found = stack.score_arm("stable", given)
    if stack.choice.engine.name == "fake":
        assert None not in found
        return
    frame = pd.DataFrame([row["features"] | {"text": row["text"]} for row in given])
    expected = spec_for("causal_lm").scorer(model).score(frame)
    assert np.ptp(expected) > 0.05
    assert found == pytest.approx(list(expected), abs=1e-4)
    decided = stack.decide(given[:20], 10.0)
    assert [d.score for d in decided] == pytest.approx(list(expected[:20]), abs=1e-4)


def test_a_scoring_answer_has_the_labels_and_the_unique_name(url: str, model: Path) -> None:
    """Two finite log probabilities, whatever the most likely token is; the first served name answers."""
    renderer = spec_for("causal_lm").renderer(model)
    ids = renderer.token_ids({"count": 2.0, "rate": None}, "my card")
    answer = httpx.post(
        f"{url}/v1/completions", json=scoring_request("tiny-v7", ids, renderer.label_token_ids), timeout=60
    )
    no, yes = label_logprobs(answer.json(), "tiny-v7", renderer.label_token_ids)
    assert 0 < math.exp(no) + math.exp(yes) <= 1.0001
    choice = answer.json()["choices"][0]
    assert choice["logprobs"]["tokens"][0].startswith("token_id:")
    assert choice["finish_reason"] in {"length", "stop"}
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)


def test_the_alias_is_answered_under_the_unique_name(url: str) -> None:
    """Pass-through callers need not know the version; the answer tells it."""
    asked = {"model": "tiny", "prompt": "my card", "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
    assert (answer.status_code, answer.json()["model"]) == (200, "tiny-v7")
    names = [entry["id"] for entry in httpx.get(f"{url}/v1/models").json()["data"]]
    assert names == ["tiny-v7", "tiny"]


@pytest.mark.parametrize(("body", "status"), [
    (b"{", 400),
    (b'{"model": "nobody", "prompt": [1], "max_tokens": 1}', 404),
    (b'{"model": "tiny", "prompt": [], "max_tokens": 1}', 400),
    (b'{"model": "tiny", "prompt": [999999], "max_tokens": 1}', 400),
    (b'{"model": "tiny", "prompt": [' + b"5," * 5000 + b'5], "max_tokens": 1}', 400),
])  # fmt: skip
def test_requests_that_do_not_fit_are_refused_as_the_callers_fault(url: str, body: bytes, status: int) -> None:
    """Never a 500, and the server goes on."""
    headers = {"content-type": "application/json"}
    assert httpx.post(f"{url}/v1/completions", content=body, headers=headers, timeout=60).status_code == status
    assert httpx.get(f"{url}/health").status_code == 200


def test_metrics_carry_vllms_names_and_count_requests(url: str) -> None:
    """What a dashboard of one engine shows, it shows of the others."""

    def finished() -> float:
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("vllm:request_success_total") and "length" in line]
        return sum(float(line.split()[-1]) for line in found)

    before = finished()
    httpx.post(
        f"{url}/v1/completions",
        json={"model": "tiny", "prompt": [1, 20], "max_tokens": 1, "temperature": 0},
        timeout=60,
    )
    assert finished() == before + 1
    text = httpx.get(f"{url}/metrics").text
    for name in (
        "vllm:time_to_first_token_seconds_count", "vllm:e2e_request_latency_seconds_count", "vllm:num_requests_running",
        "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "http_requests_total",
    ):  # fmt: skip
        assert name in text


def test_tokenize_tells_the_ids_of_a_label(stack: LocalStack, url: str, model: Path) -> None:
    """Each label is one token."""
    if stack.choice.engine.name == "fake":
        pytest.skip("the fake has no vocabulary")
    for label, token in zip(("no", "yes"), spec_for("causal_lm").renderer(model).label_token_ids, strict=True):
        found = httpx.post(f"{url}/tokenize", json={"model": "tiny-v7", "prompt": f"<{label}>"}, timeout=60).json()
        assert found["tokens"] == [token]


def test_generation_goes_on_token_by_token(stack: LocalStack, url: str) -> None:
    """Free text passes through serving: greedy, repeatable, as long as asked or until the end token."""
    if stack.choice.engine.name == "fake":
        pytest.skip("the fake says one word")
    asked = {"model": "tiny", "prompt": "my card was", "max_tokens": 8, "temperature": 0, "seed": 1}
    first, second = (httpx.post(f"{url}/v1/completions", json=asked, timeout=120).json() for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert 1 <= first["usage"]["completion_tokens"] <= 8
