"""`pilotline contract check`: the verdict on a file, in the shape that programs rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.home import Home
from components.core.publish import write_atomic
from components.core.records import ContractVerdict


def check(contract: Path, data: str, engine: str = "auto", home: str | None = None) -> tuple[dict[str, Any], str]:
    """The verdict as {"passed", "rows", "clean", "quarantined", "checks", "engine"}, and its reason."""
    verdict = verdict_on(contract, data, engine, home)
    return shown(verdict), verdict.reason


def verdict_on(
    contract: Path, data: str, engine: str = "auto", home: str | None = None, page: Path | None = None
) -> ContractVerdict:
    """The verdict on a file.

    Args:
        contract: an Open Data Contract Standard file.
        data: file, folder, glob or URI.
        engine: great_expectations, duckdb, or auto to go by the number of rows.
        home: where snapshots of the same place may have been accepted; none is made where there is none.
        page: a file to write the verdict to as one HTML page, rule by rule, with failing rows.

    Raises:
        UserError: the page cannot be written, or what `validate.check` raises.
    """
    from components.contract.validate import check_with_examples

    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise UserError(f"--page {page}: name a file in a folder that is there")
    if page is not None and page.resolve() in (contract.resolve(), Path(data).resolve()):
        raise UserError(f"--page {page}: would overwrite what is checked; name another file")
    verdict, examples = check_with_examples(contract, data, engine=engine, home=Home.existing(home))
    if page is not None:
        from components.contract.page import page_of
        from components.contract.standard.contract import load

        write_atomic(page, page_of(verdict, load(contract), examples))
    return verdict


def broken_lines(verdict: ContractVerdict) -> list[str]:
    """What does not hold, a line a rule; rules that an empty batch gives nothing to look at are one line."""
    from components.contract.judge import NO_ROW, observed_text

    broken = [result for result in verdict.checks if result.outcome not in ("pass", "info")]
    unseen = [result for result in broken if result.reason == NO_ROW]
    lines = []
    for result in broken:
        if result.reason != NO_ROW:
            seen = observed_text(result.observed) or result.reason
            lines.append(f"  {result.subject or 'the batch'}: {result.rule}: {seen} ({result.limit})")
    return [*lines, f"  {len(unseen)} rules were not looked at: {NO_ROW}"] if unseen else lines


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
