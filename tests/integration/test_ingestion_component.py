"""The ingest and validate components under Kubeflow's local runner, which reads real annotations."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kfp import dsl, local

from components.contract.component import validate
from components.core.paths import PROJECT_ROOT
from components.core.publish import verify
from components.core.records import ContractVerdict, SnapshotRef
from components.ingestion.component import ingest
from tests.fakes.ingestion_case import complaints_recipe


class OUTPUTS(NamedTuple):
    digest: str
    held: bool
    clean: dsl.Dataset
    page: dsl.HTML


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubeflow's local runner with a root of its own."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT_ROOT), os.environ.get("PYTHONPATH", "")]))
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"), raise_on_error=True)


def chain(home: Path, recipe: str, run_id: str) -> dict[str, Any]:
    """Both components as a pipeline; its outputs by name."""

    @dsl.pipeline
    def both() -> OUTPUTS:
        about = {"home": str(home), "run_id": run_id, "recipe": recipe, "code_version": "0"}
        read = ingest(expected_digest="", **about)
        held = validate(snapshot=read.outputs["snapshot"], **about).outputs
        return OUTPUTS(read.outputs["Output"], held["Output"], held["clean"], held["page"])

    outputs: dict[str, Any] = both().outputs
    return outputs


def test_ingest_and_validate_run_as_components(tmp_path: Path) -> None:
    """The digest comes out, metadata carry digests for the cache key, records and the page are kept."""
    home = tmp_path / "home"
    made = chain(home, complaints_recipe("generator://complaints?rows=700&seed=5").to_json(), "r1")
    folder = home / "runs" / "r1" / "records"
    kept = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("ingest", "validate")}
    snapshot, verdict = SnapshotRef.from_dict(kept["ingest"]), ContractVerdict.from_dict(kept["validate"])
    assert made["digest"] == snapshot.digest == verdict.snapshot_digest
    verify(home / "snapshots" / snapshot.digest)
    assert made["held"] is True
    clean = Path(made["clean"].path)
    verify(clean)
    assert ContractVerdict.read(clean) == verdict
    assert made["clean"].metadata["digest"] == verdict.record_digest
    assert "holds" in Path(made["page"].path).read_text()


def test_a_refused_batch_is_an_answer(tmp_path: Path) -> None:
    """A broken contract gives false, and its artifacts all the same."""
    recipe = complaints_recipe("generator://complaints?rows=700&schema_break=drop:Company").to_json()
    made = chain(tmp_path / "home", recipe, "r2")
    assert made["held"] is False
    verify(Path(made["clean"].path))
    assert "is broken" in Path(made["page"].path).read_text()


def test_a_bad_source_leaves_its_reason(tmp_path: Path) -> None:
    """The local runner only says that a step failed; the step's note says why."""
    home = tmp_path / "home"
    recipe = complaints_recipe("/none/rows.csv").to_json()
    with pytest.raises(RuntimeError):
        ingest(home=str(home), run_id="r3", recipe=recipe, code_version="0", expected_digest="")
    note = json.loads((home / "runs" / "r3" / "steps" / "ingest.json").read_text())
    assert note["kind"] == "bad_input"
    assert "no such file" in note["error"]
