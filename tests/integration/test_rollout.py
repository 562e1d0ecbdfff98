"""Whole rollouts on the fake serving stack: who passes, who is stopped by what, and what users notice (nothing)."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from components.core.errors import IntegrityError, PolicyRefusal, UserError
from components.core.publish import verify
from components.core.records import RolloutReport
from components.rollout.page import page_markdown, timeline_svg
from tests.fakes.fake_serving import Behaviour, FakeServing
from tests.fakes.rollout_case import make_case
from tests.fakes.weights import weights

ROW = {"errors", "failures_in_a_row"}
SLOW = {"latency_p50", "latency_p95"}
BAD_CANARIES = {
    "answers 500 from the start": (Behaviour(error_rate=1.0), {"golden_valid"}),
    "answers 500 in shadow": (Behaviour(error_rate=1.0, healthy_requests=100), ROW),
    "answers 500 in the step": (Behaviour(error_rate=1.0, healthy_requests=300), ROW),
    "answers 500 to a fifth": (Behaviour(error_rate=0.2, healthy_requests=70), ROW),
    "is slow": (Behaviour(latency_factor=3.0), SLOW),
    "is slow in the step": (Behaviour(latency_factor=4.0, healthy_requests=280), SLOW),
    "hangs": (Behaviour(hang=True, healthy_requests=290), ROW | SLOW),
    "answers malformed JSON": (Behaviour(invalid_rate=1.0, healthy_requests=290), {"invalid", "failures_in_a_row"}),
    "is another model by its name": (Behaviour(answers_as="7"), {"version"}),
    "is another model by its digest": (Behaviour(served_digest="0" * 64), {"digest"}),
    "is another model by its scores": (Behaviour(score_shift=0.01), {"golden_parity"}),
    "gives constant scores": (Behaviour(constant_score=0.5), {"golden_parity"}),
    "gives constant scores later": (
        Behaviour(constant_score=0.5, healthy_requests=300),
        {"golden_parity", "score_up", "log_loss"},
    ),
    "shifts its scores later": (
        Behaviour(score_shift=0.2, healthy_requests=70),
        {"score_up", "golden_parity"},
    ),
    "does not start": (Behaviour(refuses_start=True), {"ready"}),
    "dies in shadow": (Behaviour(dies_after=150), {"alive", *ROW}),
    "dies in the step": (Behaviour(dies_after=300), {"alive", *ROW}),
}


def _on_stable(stack: FakeServing) -> bool:
    return stack.weight == 0 and not stack.shadow and "canary" not in stack.replicas and stack.alive("stable")


def _deciding(report: RolloutReport) -> set[str]:
    return {rule.rule for rule in report.rules if rule.outcome == "fail"} - {"harm"}


@pytest.mark.parametrize("name", BAD_CANARIES)
def test_a_bad_canary_is_stopped_by_the_rule_that_names_it_and_no_user_is_harmed(tmp_path, name):
    """Rolled back, one failed rule of the expected kind, no failed request, all traffic on stable, canary stopped."""
    behaviour, rules = BAD_CANARIES[name]
    stack = FakeServing({"canary": behaviour})
    report = make_case(tmp_path).run(stack)
    assert report.outcome == "rolled_back"
    assert len(_deciding(report)) == 1
    assert _deciding(report) <= rules
    assert next(iter(_deciding(report))) in report.reason
    assert report.failed_requests == 0
    assert all(decision.http_status == 200 for decision in stack.answered)
    assert _on_stable(stack)
    assert report.timeline[-1].weight == 0


@pytest.mark.parametrize("seed", range(5))
def test_an_equal_canary_passes_and_gets_all_traffic(tmp_path, seed):
    """A/A: golden set, shadow and step pass, weight 100, no failed request, every rule passes."""
    stack = FakeServing(seed=seed)
    report = make_case(tmp_path, seed=seed).run(stack)
    assert report.outcome == "passed"
    assert stack.weight == 100
    assert report.failed_requests == 0
    assert {rule.outcome for rule in report.rules} == {"pass"}
    assert [event.weight for event in report.timeline if event.verdict == "pass"][-1] == 100
    assert {"golden set", "stable alone", "shadow", "step 50 %", "full"} <= {event.stage for event in report.timeline}
    assert report.requests >= 60 + 200 + 100
    assert report.latency_ms["canary_p95"] > 0


def test_another_weeks_model_passes_though_single_scores_differ(tmp_path):
    """Retrained models differ row by row; stable here scatters by .08 around the candidate's scores."""
    assert make_case(tmp_path).run(FakeServing({"stable": Behaviour(score_noise=0.08)})).outcome == "passed"


def test_steps_are_taken_in_order_and_each_needs_its_own_evidence(tmp_path):
    """10 then 50 %: the weights in force are 0, 10, 50, 100 in that order."""
    stack = FakeServing()
    report = make_case(tmp_path, steps=(10, 50, 100), min_canary_requests=50).run(stack)
    assert report.outcome == "passed"
    weights = [argument for name, argument in stack.calls if name == "set_weight"]
    assert list(dict.fromkeys(weights)) == [0, 10, 50, 100]
    subjects = {rule.subject for rule in report.rules if rule.rule == "errors"}
    assert subjects == {"shadow", "step 10 %", "step 50 %"}


def test_a_shadow_that_never_comes_is_inconclusive_and_not_a_pass(tmp_path):
    """Stable answers all the time, nothing is mirrored: at the deadline not proven bad, back on stable."""
    stack = FakeServing(mirror=False)
    report = make_case(tmp_path, deadline_seconds=20).run(stack)
    assert report.outcome == "inconclusive"
    assert "0 of 200 mirrored pairs" in report.reason
    assert "not proven bad" in report.reason
    assert _on_stable(stack)


def test_a_deadline_that_leaves_too_little_traffic_is_inconclusive(tmp_path):
    """Two seconds give 60 requests."""
    stack = FakeServing()
    report = make_case(tmp_path, deadline_seconds=2, shadow_requests=0).run(stack)
    assert report.outcome == "inconclusive"
    assert _on_stable(stack)


def test_a_stable_that_is_unwell_makes_it_inconclusive_and_does_not_blame_the_canary(tmp_path):
    """Both arms fail a third of requests: no verdict against the canary."""
    unwell = Behaviour(error_rate=0.33, healthy_requests=124)
    report = make_case(tmp_path).run(FakeServing({"stable": unwell, "canary": unwell}, seed=1))
    assert report.outcome == "inconclusive"


def test_a_stable_that_dies_is_started_again_before_traffic_returns_to_it(tmp_path):
    """Inconclusive; in the end stable lives, the canary does not."""
    stack = FakeServing({"stable": Behaviour(dies_after=250)})
    report = make_case(tmp_path).run(stack)
    assert report.outcome == "inconclusive"
    assert "stable" in report.reason
    assert _on_stable(stack)


def test_a_first_version_is_proved_on_golden_set_and_service_level_alone(tmp_path):
    """No champion: the candidate serves as stable; 150 requests, bounds stated; nothing is drawn for a canary."""
    stack = FakeServing()
    report = make_case(tmp_path, champion=False).run(stack)
    assert report.outcome == "passed"
    assert report.stable_version == ""
    assert (report.requests, report.failed_requests, stack.weight) == (150, 0, 0)
    assert "rate below 2.0%" in report.reason
    assert stack.alive("stable")
    assert {rule.rule for rule in report.rules} == {
        "ready", "golden_valid", "golden_parity", "samples", "version", "errors", "invalid", "latency_p95",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("behaviour", "rule"),
    [
        (Behaviour(error_rate=0.1, healthy_requests=70), "errors"),
        (Behaviour(error_rate=1.0), "golden_valid"),
        (Behaviour(latency_factor=100.0), "latency_p95"),
        (Behaviour(constant_score=0.5), "golden_parity"),
        (Behaviour(answers_as="7"), "version"),
        (Behaviour(refuses_start=True), "ready"),
        (Behaviour(hang=True, healthy_requests=100), "errors"),
        (Behaviour(dies_after=100), "alive"),
    ],
)
def test_a_bad_first_version_is_not_served(tmp_path, behaviour, rule):
    """Rolled back by its rule, and nothing is left running."""
    stack = FakeServing({"stable": behaviour})
    report = make_case(tmp_path, champion=False).run(stack)
    assert report.outcome == "rolled_back"
    assert rule in _deciding(report)
    assert stack.replicas == {}


def test_the_report_is_published_whole_and_reads_back_equal(tmp_path):
    """record.json verifies against its manifest and gives the same record; all numbers are finite."""
    case = make_case(tmp_path)
    report = case.run(FakeServing())
    verify(tmp_path / "report")
    assert RolloutReport.read(tmp_path / "report") == report
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_same_seed_and_stack_give_the_same_report(tmp_path):
    """Deterministic but for the clock, which the fake has."""
    case = make_case(tmp_path)
    assert case.run(FakeServing(seed=4)) == case.run(FakeServing(seed=4), "again")


def test_rows_are_sent_without_their_label_and_marked_as_replay(tmp_path):
    """What goes out: id, text, entities, features with None for no history, replay; no label, no group."""
    sent = []

    class Watching(FakeServing):
        def _decide(self, row):
            sent.append(row)
            return super()._decide(row)

    make_case(tmp_path).run(Watching())
    assert {frozenset(row) for row in sent} == {frozenset({"row_id", "text", "entities", "features", "replay"})}
    assert {value for row in sent for value in row["features"].values()} & {None}
    assert len({row["row_id"] for row in sent}) > 50
    json.dumps(sent, allow_nan=False)


def test_a_version_that_the_gate_refused_is_not_rolled_out(tmp_path):
    """PolicyRefusal, and no replica was started."""
    stack = FakeServing()
    with pytest.raises(PolicyRefusal, match="gate"):
        make_case(tmp_path).with_version(gate_passed=False, reason="auc too low").run(stack)
    assert stack.calls == []


@pytest.mark.parametrize("field", ["digest", "evidence_digest", "champion_digest"])
def test_digests_that_do_not_belong_together_are_refused_before_anything_starts(tmp_path, field):
    """IntegrityError, nothing started, nothing published."""
    stack = FakeServing()
    with pytest.raises(IntegrityError, match="do not belong together"):
        make_case(tmp_path).with_version(**{field: "0" * 64}).run(stack)
    assert stack.calls == []
    assert not (tmp_path / "report").exists()


def test_a_model_file_changed_after_registration_is_refused(tmp_path):
    """One byte in the weights: IntegrityError before a server is started."""
    case, stack = make_case(tmp_path), FakeServing()
    (case.model_dirs["candidate"] / "model.safetensors").write_bytes(weights("candidatf"))
    with pytest.raises(IntegrityError, match="candidate"):
        case.run(stack)
    assert stack.calls == []


def test_settings_that_could_show_nothing_are_refused_before_anything_starts(tmp_path):
    """Too few requests for a p95, no step below 100 %."""
    with pytest.raises(UserError, match=r"rollout\.slo_requests"):
        make_case(tmp_path / "first", champion=False, slo_requests=20).run(FakeServing())
    with pytest.raises(UserError, match=r"rollout\.steps"):
        make_case(tmp_path / "next", steps=(100,)).run(FakeServing())


def test_the_page_shows_weights_verdicts_and_rules_and_lets_no_text_out_of_its_cell(tmp_path):
    """The SVG is self-contained and well-formed; a reason with HTML and pipes stays text."""
    report = make_case(tmp_path).run(FakeServing({"canary": Behaviour(error_rate=1, healthy_requests=300)}))
    nasty = replace(report.timeline[-1], text='<script>alert(1)</script> | "x"\nnext', verdict="fail", stage="<b>")
    report = replace(report, timeline=(*report.timeline, nasty), reason="a | b <i>")
    drawn = ElementTree.fromstring(timeline_svg(report))
    assert drawn.tag.endswith("svg")
    page = page_markdown(report)
    assert "<script>" not in page
    assert "<b>" not in page
    assert "a \\| b &lt;i&gt;" in page
    assert "step 50 %" in page
    assert "http" not in timeline_svg(report).replace("http://www.w3.org/2000/svg", "")


def test_the_old_version_stays_warm_and_takes_over_again_from_one_that_fails_at_full_traffic(tmp_path):
    """Well until it has all traffic, then failing: the limits of full traffic take it back, stable is still up."""
    settings = {"bake_seconds": 0.0, "warm_seconds": 20.0}
    good = FakeServing()
    assert make_case(tmp_path / "good", **settings).run(good).outcome == "passed"
    assert "stable" not in good.replicas  # drained when its time was over
    assert good.weight == 100

    class Later(FakeServing):
        starts = 0

        def set_weight(self, percent):
            super().set_weight(percent)
            if percent == 100:
                self.replicas["canary"].behaviour = Behaviour(error_rate=0.3)

        def start(self, arm, model_dir, version, digest, golden=None):
            self.starts += arm == "stable"
            return super().start(arm, model_dir, version, digest, golden)

    bad = Later()
    report = make_case(tmp_path / "bad", **settings).run(bad)
    assert report.outcome == "rolled_back"
    assert "full, errors" in report.reason
    assert _on_stable(bad)
    assert bad.starts == 1  # warm: it was never started again
