"""The standard's own tool, `datacontract test`, and our verdict agree on the shipped contract wherever it can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from components.contract.validate import check
from components.core.paths import PROJECT_ROOT
from pipelines.generators import GENERATORS

Change = Callable[[pd.DataFrame], pd.DataFrame]
ROWS = GENERATORS["complaints"](rows=1200, seed=5)
CONTRACT = PROJECT_ROOT / "data_contracts" / "complaints.odcs.yaml"


def setting(column: str, count: int, value: str) -> Change:
    """The first rows get a value."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[frame.index[:count], column] = value
        return frame

    return change


# What was done to the rows, and the columns that must be named ("" = the batch as a whole).
CASES: dict[str, tuple[Change, set[str]]] = {
    "nothing": (lambda frame: frame, set()),
    "rows twice": (lambda frame: pd.concat([frame, frame.head(30)]), {"Complaint ID"}),
    "blank company": (setting("Company", 200, ""), {"Company"}),
    "unknown channel": (setting("Submitted via", 5, "Pigeon"), {"Submitted via"}),
    "too few rows": (lambda frame: frame.head(100), {""}),
    "column gone": (lambda frame: frame.drop(columns="Product"), {"Product"}),
    "too long": (setting("Product", 2, "x" * 200), {"Product"}),
    "no number": (setting("Complaint ID", 1, "12a"), {"Complaint ID"}),
}


@pytest.mark.parametrize("name", CASES)
def test_both_name_the_same_columns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both pass or both fail, and the columns that fail are the same."""
    monkeypatch.chdir(tmp_path)  # the contract's server is ./complaints.csv
    change, columns = CASES[name]
    change(ROWS.copy()).to_csv("complaints.csv", index=False)
    verdict = check(CONTRACT, tmp_path / "complaints.csv")
    ours = {result.subject for result in verdict.checks if result.outcome in ("fail", "insufficient")}
    theirs, evaluated = judged_by_datacontract()
    assert evaluated > 50, "it looked at almost nothing"
    assert ours == theirs == columns
    assert verdict.passed == (not columns)


def judged_by_datacontract() -> tuple[set[str], int]:
    """The columns in which `datacontract test` fails ("" for the table), and how many checks have a result.

    A key that it finds not unique it reports on the table too; that is the same finding.
    """
    from datacontract.data_contract import DataContract

    run: Any = DataContract(data_contract_file=str(CONTRACT), server="local").test()
    results = [(str(one.result).rpartition(".")[2], one.type, one.field or "") for one in run.checks]
    failed = {
        field for result, kind, field in results if result in ("failed", "error") and kind != "model_duplicate_values"
    }
    return failed, sum(result in ("passed", "failed", "warning") for result, _, _ in results)
