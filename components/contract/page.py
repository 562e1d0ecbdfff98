"""The verdict as one HTML page that needs no server and no network."""

from __future__ import annotations

import html
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from components.contract.engines.split import QUARANTINE, REASON, ROW, RULE
from components.contract.standard.contract import load
from components.contract.standard.rules import DataContract
from components.core.records import ContractVerdict, RuleResult

EXAMPLES = 20
SHOWN_CHARACTERS = 80
MASK = "•••"
STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1a7f37; --bad: #c62828; --calm: #57606a; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: break-word; }
.scroll { overflow-x: auto; }
.pass { color: var(--good); } .fail, .insufficient { color: var(--bad); font-weight: 600; }
.info { color: var(--calm); }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8a80; --calm: #9da7b1; } }
"""
ORDER = {"fail": 0, "insufficient": 1, "info": 2, "pass": 3}


def verdict_page(verdict: ContractVerdict, folder: Path, contract_path: Path) -> str:
    """The page: outcome, every rule with what was seen, and examples of rows set aside.

    Args:
        verdict: what was decided.
        folder: the published folder with the quarantine.
        contract_path: says which columns are masked: values of columns tagged pii are never shown.
    """
    contract = load(contract_path)
    word = "holds" if verdict.passed else "is broken"
    tone = "pass" if verdict.passed else "fail"
    title = f"Contract {verdict.contract} {verdict.version} {word}"
    facts = (
        f"{verdict.rows} rows: {verdict.clean} clean, {verdict.quarantined} set aside. Engine: {verdict.engine}. "
        f"Snapshot {verdict.snapshot_digest[:12]}, contract {verdict.contract_digest[:12]}."
    )
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1 class='{tone}'>{html.escape(title)}</h1>",
        f"<p>{html.escape(verdict.reason)}</p>" if verdict.reason else "",
        f"<p>{html.escape(facts)}</p>",
        checks_table(verdict.checks),
        _examples_table(contract, folder / QUARANTINE, verdict.quarantined),
        "</body></html>",
    ]
    return "".join(parts)


def masked_examples(folder: Path, contract_path: Path) -> list[dict[str, Any]]:
    """The first rows set aside as {"rule", "row", "values"}, values of pii columns masked; for the run's report."""
    masked = {column.name for column in load(contract_path).columns if column.masked}
    rows = _first_rows(folder / QUARANTINE).to_pylist()
    return [
        {
            "rule": row[RULE],
            "row": row[ROW] + 1,
            "values": {name: _shown(name, row, masked) for name in row if name not in (ROW, RULE)},
        }
        for row in rows
    ]


def checks_table(checks: Sequence[RuleResult], caption: str = "Rules", about: str = "Column") -> str:
    """Rules as a table, what does not hold first; `about` heads the column of what each is about."""
    rows = []
    for check in sorted(checks, key=lambda check: ORDER[check.outcome]):
        observed = f"{check.observed:g}" if isinstance(check.observed, int | float) else check.observed
        cells = (check.subject, check.rule, observed, check.limit, check.reason)
        rows.append(f"<tr><td class='{check.outcome}'>{check.outcome}</td>{_cells(cells)}</tr>")
    heads = ("Outcome", about, "Rule", "Seen", "Asked", "Note")
    return _table(caption, heads, rows)


def _examples_table(contract: DataContract, path: Path, count: int) -> str:
    quarantine = _first_rows(path)
    if not quarantine.num_rows:
        return ""
    masked = {column.name for column in contract.columns if column.masked}
    names = [RULE, REASON, *(name for name in quarantine.column_names if name not in (ROW, RULE, REASON))]
    rows = [
        f"<tr>{_cells([row[ROW] + 1, *(_shown(name, row, masked) for name in names)])}</tr>"
        for row in quarantine.to_pylist()
    ]
    caption = f"Rows set aside: {quarantine.num_rows} of {count}; personal data is masked"
    return _table(caption, ["Row", "Rule", "What it asks", *names[2:]], rows)


def _first_rows(path: Path) -> pa.Table:
    """The first rows set aside, whatever the size of the file."""
    file = pq.ParquetFile(path)
    return pa.Table.from_batches(itertools.islice(file.iter_batches(EXAMPLES), 1), file.schema_arrow)


def _shown(name: str, row: Mapping[str, str | None], masked: set[str]) -> str:
    value = row[name]
    if value is None:
        return "null"
    if name in masked:
        return f"{MASK} ({len(value)} characters)"
    longest = SHOWN_CHARACTERS * (4 if name == REASON else 1)
    return value if len(value) <= longest else f"{value[:longest]}…"


def _cells(values: Sequence[object]) -> str:
    return "".join(f"<td>{html.escape('' if value is None else str(value))}</td>" for value in values)


def _table(caption: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th scope='col'>{html.escape(text)}</th>" for text in heads)
    body = "".join(rows)
    return (
        f"<div class='scroll' tabindex='0'><table><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
