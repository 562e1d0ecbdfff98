"""A leak in the source ends the compiled pipeline before anything is learned from it."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.chain import none_left, pilotline, records

SOURCE = "generator://complaints?rows=3000&seed=7&leak=1"


def test_a_leaking_source_is_refused_before_training(tmp_path: Path) -> None:
    """Exit 3 with the column and its AUC, a report, no model; the same run again returns the stored outcome."""
    home = tmp_path / "home"
    code, told, err = pilotline("run", "--source", SOURCE, "--engine", "reference", home=home)
    assert (code, told["outcome"]) == (3, "refused"), err
    assert told["reason"].startswith("training set: Amount refunded")
    assert "AUC" in told["reason"]
    assert [step["name"] for step in told["steps"]] == ["ingest", "validate", "featurise", "guard"]
    assert told["model"] is None
    kept = records(home, told["run_id"])
    assert kept["guard"]["training_set_digest"] == kept["featurise"]["digest"]
    assert kept["guard"]["contract"] == "Complaint training rows"
    assert "Amount refunded" in Path(told["report"]).read_text()
    assert none_left(home)
    again, stored, _ = pilotline("run", "--source", SOURCE, "--engine", "reference", home=home)
    assert (again, stored) == (3, told)
