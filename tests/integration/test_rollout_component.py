"""The roll-out component under Kubeflow's local runner; it reads real annotations, so none are postponed here."""

import json
import os
from pathlib import Path

import pytest
from kfp import dsl, local

from components.core.paths import PROJECT_ROOT
from components.core.publish import verify
from components.core.records import RolloutReport
from components.core.wiring import wired
from components.rollout.component import rollout
from tests.fakes.fake_serving import FakeServing
from tests.fakes.rollout_case import make_case


@pytest.mark.parametrize("champion", [True, False])
def test_the_component_gives_the_functions_outcome_and_leaves_report_page_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, champion: bool
) -> None:
    """The report verifies, its digest is in the metadata, the run keeps the record, the page is there."""
    case = make_case(tmp_path, champion=champion)
    expected = case.run(FakeServing())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT_ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PILOTLINE_WIRING", "tests.fakes.fake_serving")
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "kfp"), raise_on_error=True)

    @dsl.pipeline
    def alone() -> dsl.Artifact:
        version = dsl.importer(artifact_uri=str(case.version), artifact_class=dsl.Artifact)
        rows = dsl.importer(artifact_uri=str(case.training_set), artifact_class=dsl.Dataset)
        evidence = dsl.importer(artifact_uri=str(case.evidence), artifact_class=dsl.Artifact)
        met = rollout(
            home=str(tmp_path / "home"),
            run_id="r1",
            recipe=case.recipe.to_json(),
            code_version="0",
            engine="reference",
            version=version.output,
            training_set=rows.output,
            evidence=evidence.output,
        )
        return met.outputs["report"]

    output = alone().output
    verify(Path(output.path))
    report = RolloutReport.read(Path(output.path))
    assert report.outcome == expected.outcome == "passed"
    assert [rule.rule for rule in report.rules] == [rule.rule for rule in expected.rules]
    assert output.metadata["digest"] == report.record_digest
    assert output.metadata["engine"] == "fake"
    kept = json.loads((tmp_path / "home" / "runs" / "r1" / "records" / "rollout.json").read_text())
    assert kept == report.to_dict()
    (page,) = (tmp_path / "kfp").rglob("page")
    assert page.read_text().startswith("# Rollout: passed")


def test_the_wiring_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """$PILOTLINE_WIRING names the module; by default the pipelines' own has what the step asks for."""
    assert callable(wired("open_stack"))
    monkeypatch.setenv("PILOTLINE_WIRING", "tests.fakes.fake_serving")
    with wired("open_stack")(None, "auto", Path()) as stack:
        assert isinstance(stack, FakeServing)
