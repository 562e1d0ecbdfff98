"""Values that break a rule, for people: the first few, and none of columns with personal data."""

# ruff: noqa: S608 - what goes into a query is a generated name or an escaped literal

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from components.contract.engines.batch import Batch
from components.contract.engines.duckdb_connection import connected
from components.contract.engines.measured import Measured
from components.contract.engines.split import REASON, ROW, RULE
from components.contract.judge import label
from components.contract.standard.rules import DataContract

ROWS, SHOWN, CHARACTERS = 50, 3, 60
EXAMPLES = 20


def broken_values(contract: DataContract, batch: Batch, seen: Measured) -> dict[int, str]:
    """By the rule's number: up to SHOWN different values among the first ROWS rows that break it."""
    rows: dict[int, np.ndarray] = {}
    for number, observation in seen.observations.items():
        rule = contract.rules[number]
        shown = not any(contract.column(name).masked for name in rule.columns)
        if rule.of_rows and rule.columns and shown and not observation.error and observation.value:
            rows[number] = seen.marks.rows(number, ROWS)
    names = list(dict.fromkeys(name for number in rows for name in contract.rules[number].columns))
    wanted = np.unique(np.concatenate(list(rows.values()))) if rows else np.zeros(0, np.int64)
    if not len(wanted):
        return {}
    cells = _cells(batch, wanted, names)
    return {
        number: _told([tuple(cells[int(row)][name] for name in contract.rules[number].columns) for row in found])
        for number, found in rows.items()
        if len(found)
    }


def broken_rows(contract: DataContract, batch: Batch, seen: Measured, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """As rows of the quarantine: the first few that break each of the numbered rules, EXAMPLES at most."""
    broken: dict[int, list[int]] = {}
    for number in numbers:
        for row in seen.marks.rows(number, SHOWN).tolist():
            broken.setdefault(row, []).append(number)
    wanted = sorted(broken)[:EXAMPLES]
    cells = _cells(batch, np.array(wanted, np.int64), batch.names) if wanted else {}
    rules = contract.rules
    return [
        {
            ROW: row,
            **cells[row],
            RULE: "; ".join(label(rules[number]) for number in broken[row]),
            REASON: "; ".join(f"{rules[number].subject}: {rules[number].asks}" for number in broken[row]),
        }
        for row in wanted
    ]


def _cells(batch: Batch, rows: np.ndarray, names: Sequence[str]) -> dict[int, dict[str, str | None]]:
    """By the row's number: its cells of the named columns."""
    columns = ", ".join(batch.column(name) for name in names)
    listed = ", ".join(map(str, rows.tolist()))
    with connected(None) as connection:
        query = f"SELECT row, {columns} FROM {batch.relation} WHERE row IN ({listed})"
        found = connection.execute(query).fetchall()
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in found}


def _told(values: Sequence[tuple[str | None, ...]]) -> str:
    texts = (", ".join("null" if cell is None else repr(cell[:CHARACTERS]) for cell in value) for value in values)
    return ", ".join(list(dict.fromkeys(texts))[:SHOWN])
