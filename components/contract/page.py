"""The verdict as one HTML page that needs no server and no network."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from components.contract.engines.split import QUARANTINE, REASON, ROW, RULE, THE_BATCH
from components.contract.judge import SET_ASIDE, observed_text
from components.contract.standard.contract import load
from components.contract.standard.rules import DataContract
from components.core.records import ContractVerdict, RuleResult

EXAMPLES, A_RULE = 20, 3
SHOWN_CHARACTERS = 80
MASK = "•••"
STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1a7f37; --bad: #c62828; --calm: #57606a; --warn: #9a5b00; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: break-word; }
.scroll { overflow-x: auto; }
.pass { color: var(--good); } .fail, .insufficient { color: var(--bad); font-weight: 600; }
.info { color: var(--calm); } .warning { color: var(--warn); font-weight: 600; }
th[scope=rowgroup] { padding-top: 1rem; font-size: 1.05em; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8a80; --calm: #9da7b1; --warn: #f0b429; } }
"""
ORDER = {"fail": 0, "insufficient": 1, "info": 3, "pass": 4}
ASIDE = 2  # its place: a warning whose rows left
OUTCOMES = {ASIDE: ("warning: rows set aside", "warning")}


def verdict_page(verdict: ContractVerdict, folder: Path, contract_path: Path) -> str:
    """The page: outcome, the rules of each column with what was seen, and examples of rows set aside.

    Args:
        verdict: what was decided.
        folder: the published folder with the quarantine.
        contract_path: says which columns are masked: values of columns tagged pii are never shown.
    """
    return page_of(verdict, load(contract_path), _picked_rows(folder / QUARANTINE))


def page_of(verdict: ContractVerdict, contract: DataContract, examples: Sequence[Mapping[str, Any]]) -> str:
    """The page with given examples: rows as the quarantine has them, not masked yet."""
    word = "holds" if verdict.passed else "is broken"
    tone = "pass" if verdict.passed else "fail"
    title = f"Contract {verdict.contract} {verdict.version} {word}"
    digest = f"Data {verdict.snapshot_digest[:12]}, contract" if verdict.snapshot_digest else "Contract"
    facts = (
        f"{verdict.rows} rows: {verdict.clean} clean, {verdict.quarantined} set aside. Engine: {verdict.engine}. "
        f"{digest} {verdict.contract_digest[:12]}."
    )
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1 class='{tone}'>{html.escape(title)}</h1>",
        f"<p>{html.escape(verdict.reason)}</p>" if verdict.reason else "",
        f"<p>{html.escape(facts)}</p>",
        _rules_table(verdict.checks, contract),
        _examples_table(contract, examples),
        "</body></html>",
    ]
    return "".join(parts)


def masked_examples(folder: Path, contract_path: Path) -> list[dict[str, Any]]:
    """Rows set aside as {"rule", "row" (from 0), "values"}, values of pii columns masked; for the run's report."""
    masked = {column.name for column in load(contract_path).columns if column.masked}
    return [
        {
            "rule": row[RULE],
            "row": row[ROW],
            "values": {name: _shown(name, row, masked) for name in row if name not in (ROW, RULE)},
        }
        for row in _picked_rows(folder / QUARANTINE)
    ]


def _rules_table(checks: Sequence[RuleResult], contract: DataContract) -> str:
    """One group of rows a column, in the contract's order, after what is asked of the batch as a whole."""
    order = {column.name: place for place, column in enumerate(contract.columns)}
    told = {(rule.subject, rule.name): rule.description for rule in contract.rules}
    groups: dict[str, list[RuleResult]] = {}
    for check in checks:
        groups.setdefault(check.subject, []).append(check)

    def place(subject: str) -> tuple[int, int]:
        if not subject:
            return -1, 0
        first = subject if subject in order else subject.partition(", ")[0]
        return order.get(first, len(order)), subject != first

    rows = []
    for subject in sorted(groups, key=place):
        rows.append(f"<tr><th colspan='5' scope='rowgroup'>{html.escape(subject or 'The batch')}</th></tr>")
        for check in sorted(groups[subject], key=_urgency):
            word, tone = OUTCOMES.get(_urgency(check), (check.outcome, check.outcome))
            note = (
                f"<br><span class='info'>{html.escape(about)}</span>"
                if (about := told.get((subject, check.rule)))
                else ""
            )
            asked = _cells((observed_text(check.observed), check.limit, check.reason))
            rows.append(f"<tr><td class='{tone}'>{word}</td><td>{html.escape(check.rule)}{note}</td>{asked}</tr>")
    return _table("Rules", ("Outcome", "Rule", "Seen", "Asked", "Note"), rows)


def _urgency(check: RuleResult) -> int:
    """The place of a result within its column: what refuses first, then what sets rows aside."""
    return ASIDE if check.outcome == "info" and check.reason.endswith(SET_ASIDE) else ORDER[check.outcome]


def checks_table(checks: Sequence[RuleResult], caption: str = "Rules", about: str = "Column") -> str:
    """Rules as a table, what does not hold first; `about` heads the column of what each is about."""
    rows = []
    for check in sorted(checks, key=lambda check: ORDER[check.outcome]):
        cells = (check.subject, check.rule, observed_text(check.observed), check.limit, check.reason)
        rows.append(f"<tr><td class='{check.outcome}'>{check.outcome}</td>{_cells(cells)}</tr>")
    heads = ("Outcome", about, "Rule", "Seen", "Asked", "Note")
    return _table(caption, heads, rows)


def _examples_table(contract: DataContract, examples: Sequence[Mapping[str, Any]]) -> str:
    if not examples:
        return ""
    masked = {column.name for column in contract.columns if column.masked}
    names = [RULE, REASON, *(name for name in examples[0] if name not in (ROW, RULE, REASON))]
    rows = [
        f"<tr>{_cells([f'row {row[ROW]}', *(_shown(name, row, masked) for name in names)])}</tr>" for row in examples
    ]
    caption = f"Rows set aside, {len(examples)} examples: row N of the snapshot, from 0; personal data is masked"
    return _table(caption, ["Row", "Rule", "What it asks", *names[2:]], rows)


def _picked_rows(path: Path) -> list[dict[str, Any]]:
    """Rows set aside: the first few of each combination of rules, before rows that only left with their batch."""
    file = pq.ParquetFile(path)
    taken: Counter[str] = Counter()
    picked: list[int] = []
    start = 0
    for batch in file.iter_batches(columns=[RULE]):
        for place, rule in enumerate(batch.column(0).to_pylist()):
            if rule != THE_BATCH and taken[rule] < A_RULE and len(picked) < EXAMPLES:
                taken[rule] += 1
                picked.append(start + place)
        start += batch.num_rows
        if len(picked) == EXAMPLES:
            break
    return _rows_at(file, picked or list(range(min(EXAMPLES, file.metadata.num_rows))))


def _rows_at(file: pq.ParquetFile, places: Sequence[int]) -> list[dict[str, Any]]:
    """The rows at these places, ascending, of a file of any size."""
    found: list[dict[str, Any]] = []
    start = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        here = [place - start for place in places if start <= place < start + rows]
        found += file.read_row_group(group).take(here).to_pylist() if here else []
        start += rows
    return found


def _shown(name: str, row: Mapping[str, Any], masked: set[str]) -> str:
    value: str | None = row[name]
    if value is None:
        return "null"
    if name in masked:
        return MASK  # as wide for any value
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
