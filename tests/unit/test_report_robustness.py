"""The report's part about what was measured beside rank: robustness, drift, what was not measured."""

from __future__ import annotations

from dataclasses import replace

from components.core.home import Home
from components.core.records import Evidence
from components.core.steps import read_record
from pipelines.report.facts import Facts
from pipelines.report.quality_sections import evaluation, fairness
from pipelines.report.robustness_section import robustness
from tests.fakes.judged import interval
from tests.fakes.sample_run import sample_run


def evidence(home: Home) -> Evidence:
    """That of a made-up run."""
    return Evidence.from_dict(read_record(home, sample_run(home, "promoted"), "evaluate") or {})


def test_an_invalid_answer_makes_the_section_a_warning(home: Home) -> None:
    """None: good, with the number asked. One: not good. Not asked at all: no colour of success."""
    found = evidence(home)
    good = robustness(Facts("r", evidence=found))
    assert good["state"] == "good"
    assert good["summary"].startswith("0 of 1,448 answers")
    bad = replace(found, invalid_rate=interval(0.001, 1448, 1))
    assert robustness(Facts("r", evidence=bad))["state"] == "warn"
    assert robustness(Facts("r", evidence=replace(found, invalid_rate=None)))["state"] == "none"


def test_what_was_not_measured_is_listed_with_its_reason(home: Home) -> None:
    """Every part that is not `measured`, and only those."""
    told = dict(robustness(Facts("r", evidence=evidence(home)))["open"])
    assert told == {"Against the champion": "insufficient: no usable scores", "Cost": "not asked"}


def test_evidence_of_before_has_no_robustness_and_a_missing_step_says_so(home: Home) -> None:
    """An old record has no parts; without evidence the section was not reached."""
    old = robustness(Facts("r", evidence=replace(evidence(home), parts={})))
    assert old["empty"]
    assert robustness(Facts("r"))["empty"]


def test_small_slices_and_reused_test_rows_are_said(home: Home) -> None:
    """Too small is marked, an insufficient attribute has its reason and no figures, a second use is counted."""
    shown = fairness(Facts("r", evidence=evidence(home)))
    assert [row["name"] for row in shown["rows"] if row["small"]] == ["Servicemember"]
    (open_,) = [row for row in shown["differences"] if row["state"] != "measured"]
    assert open_["reason"] == "Servicemember has 38 rows, 3 positive"
    assert {found["value"] for found in open_["cells"]} == {"–"}
    assert "used for 2 candidates so far" in evaluation(Facts("r", evidence=evidence(home)))["summary"]
    once = replace(evidence(home), test_window_uses=1)
    assert "used once" in evaluation(Facts("r", evidence=once))["summary"]
