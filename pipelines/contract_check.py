"""`pilotline contract check`: the verdict on a file, in the shape that programs rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def check(contract: Path, data: Path) -> dict[str, Any]:
    """The verdict as {"passed", "rows", "clean", "quarantined", "checks", "engine", "reason"}."""
    from components.contract.validate import check as judge

    verdict = judge(contract, data)
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
        "reason": verdict.reason,
    }
