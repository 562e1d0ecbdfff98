"""The whole local stack on fake model servers: service, Envoy, draw, shadow, log and driver are real."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from components.core.errors import UserError
from components.core.processes import wait_until
from components.core.protocols import Decision
from components.serving.decision_log import read_decisions
from components.serving.stack import LocalStack
from tests.fakes.serving_case import expected_score, open_fake, rows, start_arm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Home and models of this file's stack."""
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[LocalStack]:
    """Stable on version 1, canary on version 2."""
    with open_fake(folder) as opened:
        start_arm(opened, folder, "stable", "1")
        start_arm(opened, folder, "canary", "2")
        yield opened


def logged_by_now(stack: LocalStack, found: Sequence[Decision]) -> dict[str, dict[str, Any]]:
    """Rows of the log by id, once all of these are there: the log is written behind the answer."""
    rows: dict[str, dict[str, Any]] = {}

    def there() -> bool:
        rows.update({row["id"]: row for row in read_decisions(stack.decision_log, "run-1")})
        return {decision.decision_id for decision in found} <= set(rows)

    assert wait_until(there, 2.0, every=0.02)
    return rows


def test_weight_zero_draws_only_stable_and_every_score_is_the_models(stack: LocalStack, folder: Path) -> None:
    """Answers carry version, arm, weight and the score that the model server gives for these features and this text."""
    stack.set_weight(0)
    given = rows(30)
    found = stack.decide(given, 100.0)
    assert {(d.status, d.drawn, d.answered_by, d.model_version, d.weight) for d in found} == {
        ("ok", "stable", "stable", "1", 0.0)
    }
    scores = [expected_score(folder / "model-1", row) for row in given]
    assert [d.score for d in found] == pytest.approx(scores, abs=1e-12)
    assert [d.label for d in found] == ["yes" if score >= 0.5 else "no" for score in scores]


def test_the_draw_follows_the_weight_and_ignores_the_content(stack: LocalStack) -> None:
    """At 30 % of 400 the canary's share is within five standard deviations; one entity is not always on one arm."""
    stack.set_weight(30)
    found = stack.decide(rows(400), 150.0)
    share = sum(d.drawn == "canary" for d in found) / len(found)
    assert {d.weight for d in found} == {0.3}
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / 400) ** 0.5
    assert {d.model_version for d in found if d.drawn == "canary"} == {"2"}
    assert len({d.drawn for d in found[::37]}) == 2


def test_a_weight_is_in_force_at_both_places_when_set_weight_returns(stack: LocalStack) -> None:
    """The very next decision has it, and Envoy reads it back for callers that name no arm."""
    for percent in (100, 0, 50, 7):
        stack.set_weight(percent)
        assert stack.decide(rows(1), 50.0)[0].weight == percent / 100
        assert httpx.get(f"{stack.url}/healthz").json()["weight"] == percent / 100
        routes = stack.router.routes()
        assert (routes["stable"], routes["canary"]) == (100 - percent, percent)


def test_traffic_without_an_arm_is_split_by_weight(stack: LocalStack) -> None:
    """Pass-through callers use the model's alias and are answered by the version that Envoy's weight chooses."""
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 1}
    for percent, version in ((0, "tiny-v1"), (100, "tiny-v2")):
        stack.set_weight(percent)
        found = {httpx.post(f"{stack.router_url}/v1/completions", json=body).json()["model"] for _ in range(10)}
        assert found == {version}


def test_shadow_asks_the_canary_every_question_and_answers_from_stable(stack: LocalStack, folder: Path) -> None:
    """Each pair holds both versions' scores of the same prompt; the caller never sees the canary."""
    stack.set_weight(0)
    stack.set_shadow(True)
    given = rows(60)
    seen: list[int] = []

    def look(decisions: Sequence[Decision]) -> bool:
        assert all(d.shadow_ok is not None for d in decisions)
        seen.append(len(decisions))
        return False

    found = stack.decide(given, 100.0, look)
    stack.set_shadow(False)
    assert {(d.drawn, d.answered_by, d.shadow_ok) for d in found} == {("stable", "stable", True)}
    assert [d.shadow_score for d in found] == pytest.approx([expected_score(folder / "model-2", row) for row in given])
    assert all(d.shadow_seconds and d.model_seconds for d in found)
    assert seen[-1] > 0
    assert stack.decide(rows(1), 50.0)[0].shadow_ok is None


def test_score_arm_renders_the_given_features_for_each_arm(stack: LocalStack, folder: Path) -> None:
    """The golden path uses exactly the features of the row, not those of the online store."""
    given = [row | {"features": {"count": 3.0, "rate": None}} for row in rows(12)]
    for arm, version in (("stable", "1"), ("canary", "2")):
        expected = [expected_score(folder / f"model-{version}", row) for row in given]
        assert stack.score_arm(arm, given) == pytest.approx(expected, abs=1e-12)


def test_every_answer_is_in_the_decision_log_with_its_true_status(stack: LocalStack) -> None:
    """Joined by id: drawn, answered by, version, weight, score and the features with their times."""
    stack.set_weight(50)
    found = stack.decide(rows(50), 100.0)
    logged = logged_by_now(stack, found)
    for decision, row in zip(found, rows(50), strict=True):
        kept = logged[decision.decision_id]
        told = (kept["drawn"], kept["answered_by"], kept["version"], kept["weight"], kept["score"], kept["label"])
        assert told[:3] == (decision.drawn, decision.answered_by, decision.model_version)
        assert told[3:] == (decision.weight, decision.score, decision.label)
        assert kept["entities"] == row["entities"]
        assert {name: about["value"] for name, about in kept["features"].items()} == row["features"]
        assert kept["features"]["count"]["as_of"].startswith("2026-01-01")
        assert kept["digest"]


def test_feedback_reaches_the_decision(stack: LocalStack) -> None:
    """Recorded once; another label is a conflict; an unknown id is not found."""
    decision_id = stack.decide(rows(1), 50.0)[0].decision_id
    told = {"decision_id": decision_id, "label": "yes", "observed_at": datetime.now(UTC).isoformat()}
    url = f"{stack.url}/v1/feedback"
    assert [httpx.post(url, json=told).status_code for _ in range(2)] == [200, 200]
    assert httpx.post(url, json=told | {"label": "no"}).status_code == 409
    assert httpx.post(url, json=told | {"decision_id": "0" * 32}).status_code == 404
    assert httpx.post(url, json=told | {"label": "maybe"}).status_code == 422
    kept = {row["id"]: row for row in read_decisions(stack.decision_log)}[decision_id]  # feedback is answered when kept
    assert kept["feedback_label"] == "yes"


def test_items_are_decided_together_and_keep_their_order(stack: LocalStack) -> None:
    """A batch of rows comes back in order, each with an id of its own."""
    given = [{"entities": row["entities"], "input": {"text": row["text"]}} for row in rows(20)]
    answer = httpx.post(f"{stack.url}/v1/decisions", json={"items": given}, timeout=10).json()["items"]
    single = [httpx.post(f"{stack.url}/v1/decisions", json=item).json() for item in given[:3]]
    assert len({item["decision_id"] for item in answer}) == 20
    assert [item["features"] for item in answer[:3]] == [item["features"] for item in single]


def test_ready_metrics_and_docs_answer(stack: LocalStack) -> None:
    """Readiness is a scored request; metrics count by drawn arm and answering arm."""
    assert httpx.get(f"{stack.url}/readyz").json() == {"status": "ready"}
    metrics = httpx.get(f"{stack.url}/metrics").text
    assert 'pilotline_decisions_total{answered_by="stable",drawn="stable",status="ok",version="1"}' in metrics
    schema = httpx.get(f"{stack.url}/openapi.json").json()
    assert {"/v1/decisions", "/v1/feedback"} <= set(schema["paths"])
    assert '"shop"' in json.dumps(schema)


def test_a_weight_needs_a_canary_and_a_percentage(tmp_path: Path) -> None:
    """Traffic is never sent to nobody."""
    with open_fake(tmp_path) as opened:
        start_arm(opened, tmp_path, "stable", "1")
        with pytest.raises(UserError, match="no canary"):
            opened.set_weight(50)
        with pytest.raises(UserError, match="percentage"):
            opened.set_weight(101)
        opened.set_weight(0)
        assert opened.decide(rows(3), 50.0)[0].status == "ok"


def test_a_killed_canary_costs_no_request(tmp_path: Path) -> None:
    """SIGKILL in traffic at 50 %: every decision is answered, later canary draws by stable, and it is said."""
    with open_fake(tmp_path, serving={"request_timeout_seconds": 20.0}) as opened:
        start_arm(opened, tmp_path, "stable", "1")
        canary = start_arm(opened, tmp_path, "canary", "2")
        opened.set_weight(50)
        threading.Timer(1.5, os.kill, (canary.pid, signal.SIGKILL)).start()
        found = opened.decide(rows(200), 50.0)
        assert not opened.alive("canary")
        assert opened.alive("stable")
    assert {d.http_status for d in found} == {200}
    assert {d.answered_by for d in found[150:]} == {"stable"}
    fell = [d for d in found if d.status == "fallback"]
    assert fell
    assert {(d.drawn, d.answered_by, d.model_version) for d in fell} == {("canary", "stable", "1")}
    assert {d.failure for d in fell} <= {"http_503", "timeout"}, [d.failure for d in fell]
    logged = {row["id"]: row["status"] for row in read_decisions(opened.decision_log)}
    assert [logged[d.decision_id] for d in found] == [d.status for d in found]


def test_stopping_an_arm_lets_its_long_request_finish(tmp_path: Path) -> None:
    """Drain first: a canary request of 1.5 s in flight when the arm is stopped is answered by the canary."""
    with open_fake(tmp_path, {"canary": "slow:1.5"}) as opened:
        start_arm(opened, tmp_path, "stable", "1")
        start_arm(opened, tmp_path, "canary", "2")
        opened.set_weight(100)
        answers: list[httpx.Response] = []
        body = {"entities": {"shop": "shop-1"}, "input": {"text": "my card"}}
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{opened.url}/v1/decisions", json=body, timeout=10))
        )
        asking.start()
        time.sleep(0.5)
        opened.stop("canary")
        asking.join()
        assert (answers[0].json()["answered_by"], answers[0].json()["status"]) == ("canary", "ok")
        assert not opened.alive("canary")
        assert opened.decide(rows(2), 50.0)[0].drawn == "stable"


def test_leaving_ends_every_process_also_after_an_error(tmp_path: Path) -> None:
    """Nothing of the stack outlives its context."""
    import psutil

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(RuntimeError, match="rollout broke"), open_fake(tmp_path) as opened:
        start_arm(opened, tmp_path, "stable", "1")
        assert len({child.pid for child in psutil.Process().children(recursive=True)} - before) >= 3
        raise RuntimeError("rollout broke")
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before
