"""`pilotline run` with a contract that breaks the accepted one: refused by name before anything is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.core.paths import PROJECT_ROOT
from pipelines.cli import main

CONTRACT = PROJECT_ROOT / "data_contracts" / "complaints.odcs.yaml"


def test_a_breaking_contract_without_a_major_version_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3 and the change in the outcome's reason, in the ledger's run and in the report; no step trains."""
    contract, home = tmp_path / "complaints.odcs.yaml", tmp_path / "home"
    contract.write_text(CONTRACT.read_text())
    common = ["--home", str(home), "--engine", "reference", "--json"]
    for given in (
        f"contract.path={contract}",
        "contract.engine=duckdb",
        'source.uri="generator://complaints?rows=900"',
    ):
        common += ["--set", given]

    def told(*argv: str) -> tuple[int, dict[str, Any]]:
        code = main([*argv, *common])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    assert told("step", "ingest", "--out", str(tmp_path / "snapshot"))[0] == 0
    folders = ["--input", f"snapshot={tmp_path / 'snapshot'}", "--out", str(tmp_path / "clean")]
    assert told("step", "validate", *folders)[0] == 0
    shorter = contract.read_text().replace("          - {value: Fax}\n", "")
    assert shorter != contract.read_text()
    contract.write_text(shorter)
    code, outcome = told("run")
    assert (code, outcome["outcome"]) == (3, "refused")
    assert "'Fax' is no longer allowed" in outcome["reason"]
    assert [step["name"] for step in outcome["steps"]] == ["ingest", "validate"]
    assert "no longer allowed" in Path(outcome["report"]).read_text()
