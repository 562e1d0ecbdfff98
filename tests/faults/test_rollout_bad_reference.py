"""Every bad canary of the reference engine is aborted by the rule that names it, and its users are answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from components.serving.decision_log import read_decisions
from tests.fakes.reference_rollouts import PROBES, Served2, recipe, served_by_reference

ROW = "failures_in_a_row"
SLOW = {"latency_p50", "latency_p95"}


@dataclass(frozen=True)
class Bad:
    """What the canary does after so many good answers, the rules of which one has to name it, what the log says."""

    fault: str
    rules: set[str]
    failures: set[str]
    healthy: int = PROBES


BAD_CANARIES = {
    "answers 500": Bad("error", {"errors", ROW}, {"http_500"}),
    "is slow": Bad("slow:1", SLOW, set()),
    "hangs in the middle of its answer": Bad("stall", SLOW, {"timeout", "connect", "http_503"}),
    "answers malformed JSON": Bad("garbage", {"invalid", ROW}, {"invalid"}),
    "answers as another model": Bad("wrong_model", {"version"}, {"wrong_model"}),
    "gives constant scores": Bad("same_prompt", {"ready"}, set(), healthy=0),
    "is healthy, then answers 500": Bad("error", {"errors", ROW}, {"http_500"}, healthy=PROBES + 30),
    "is healthy, then gives constant scores": Bad(
        "same_prompt", {"golden_parity", "score_up", "score_down", "log_loss"}, set(), healthy=PROBES + 30
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served2]:
    """Two servers of the reference engine for all tests here."""
    with served_by_reference(tmp_path_factory.mktemp("reference")) as found:
        yield found


@pytest.mark.parametrize("name", BAD_CANARIES)
def test_a_bad_canary_on_the_reference_engine_is_aborted_by_the_rule_that_names_it(served: Served2, name: str) -> None:
    """One failed rule, of its kind, in the reason too; no request failed: stable answered what the canary did not."""
    bad, stack, run_id = BAD_CANARIES[name], served.stack, name.replace(" ", "-")
    served.engine.faults["canary"], served.engine.healthy["canary"] = bad.fault, bad.healthy
    known = {row["id"] for row in read_decisions(stack.decision_log)} if stack.decision_log.exists() else set()
    report = served.pair.roll_out(stack, recipe(), run_id)
    log = [row for row in read_decisions(stack.decision_log) if row["id"] not in known] if report.requests else []
    print(f"{name}: {report.reason}; {report.requests} requests")
    assert report.outcome == "rolled_back", report.reason
    assert report.engine.startswith("reference") or bad.rules == {"ready"}
    (rule,) = {rule.rule for rule in report.rules if rule.outcome == "fail"} - {"harm"}
    assert rule in bad.rules, report.reason
    assert rule in report.reason or rule == "ready"
    assert report.failed_requests == 0
    fell = [row for row in log if row["status"] == "fallback"]
    assert {row["failure"] for row in fell} <= bad.failures
    assert {(row["drawn"], row["answered_by"]) for row in fell} <= {("canary", "stable")}
    assert bool(fell) == bool(bad.failures)
    assert len([row for row in log if row["answered_by"] == "canary"]) >= bad.healthy - PROBES
    assert stack.router.weights() == {"stable": 100, "canary": 0}
    assert not stack.alive("canary")
    assert stack.alive("stable")
