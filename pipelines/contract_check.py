"""`pilotline contract check`: the verdict on a file, in the shape that programs rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components.core.home import Home
from components.core.records import ContractVerdict


def check(contract: Path, data: str, engine: str = "auto", home: str | None = None) -> tuple[dict[str, Any], str]:
    """The verdict as {"passed", "rows", "clean", "quarantined", "checks", "engine"}, and its reason.

    Args:
        contract: an Open Data Contract Standard file.
        data: file, folder, glob or URI.
        engine: great_expectations, duckdb, or auto to go by the number of rows.
        home: where snapshots of the same place may have been accepted; none is made where there is none.
    """
    from components.contract.validate import check as judge

    verdict = judge(contract, data, engine=engine, home=Home.existing(home))
    return shown(verdict), verdict.reason


def shown(verdict: ContractVerdict) -> dict[str, Any]:
    """A verdict as JSON values; a rule that is only told counts as passed."""
    return {
        "passed": verdict.passed,
        "rows": verdict.rows,
        "clean": verdict.clean,
        "quarantined": verdict.quarantined,
        "checks": [
            {
                "rule": result.rule,
                "column": result.subject,
                "passed": result.outcome in ("pass", "info"),
                "observed": result.observed,
                "limit": result.limit,
            }
            for result in verdict.checks
        ],
        "engine": verdict.engine,
    }
