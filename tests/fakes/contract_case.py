"""Small contracts and an engine of our own, written apart from the real one, for the tests of the contract."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from components.contract.standard.rules import Observation, Rule
from components.ingestion.ingest import ingest
from tests.fakes.ingestion_case import recipe_for, write_csv


def contract_file(
    path: Path, properties: Sequence[Mapping[str, Any]], levels: Sequence[Mapping[str, Any]] = (), **table: Any
) -> Path:
    """A contract of these properties; `levels` are its slaProperties, `table` keys of the schema object."""
    document: dict[str, Any] = {
        "apiVersion": "v3.2.0",
        "kind": "DataContract",
        "id": "case",
        "version": "1.0.0",
        "status": "active",
        "schema": [{"name": "rows", "properties": list(properties), **table}],
    }
    document |= {"slaProperties": list(levels)} if levels else {}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def snapshot_of(folder: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ("id", "day", "text")) -> Path:
    """A published snapshot of these rows."""
    ingest(recipe_for(write_csv(folder / "rows.csv", rows, header)), folder / "snapshot")
    return folder / "snapshot"


def slow_engine(rules: Sequence[Rule], table: pa.Table) -> dict[int, Observation]:
    """Every rule by a loop over rows: the oracle for the real engine."""
    rows = table.to_pylist()
    return {number: _observe(rule, rows) for number, rule in enumerate(rules)}


def _observe(rule: Rule, rows: Sequence[Mapping[str, str | None]]) -> Observation:
    if rule.kind == "column":
        return Observation(1.0, looked_at=len(rows))
    if rule.kind == "rows":
        return Observation(float(len(rows)), looked_at=len(rows))
    cells = [tuple(None if row[name] in (None, *rule.missing) else row[name] for name in rule.columns) for row in rows]
    if rule.kind == "present":
        bad = [number for number, cell in enumerate(cells) if cell[0] is None]
        return Observation(float(len(bad)), tuple(bad), len(rows))
    filled = [(number, cell) for number, cell in enumerate(cells) if any(part is not None for part in cell)]
    if rule.kind == "unique":
        counts = Counter(cell for _, cell in filled)
        bad = [number for number, cell in filled if counts[cell] > 1]
    else:
        bad = [number for number, cell in filled if not _fits(rule, str(cell[0]))]
    return Observation(float(len(bad)), tuple(bad), len(filled))


def _fits(rule: Rule, text: str) -> bool:
    if rule.kind == "values":
        return text in rule.values
    if rule.kind == "length":
        return (rule.low or 0) <= len(text) and (rule.high is None or len(text) <= rule.high)
    if rule.kind == "pattern":
        return re.search(rule.pattern.replace("$", r"\Z"), text, re.ASCII) is not None
    assert rule.reading is not None
    if rule.reading.kind == "time":
        return any(_reads(text, time_format) for time_format in rule.reading.formats)
    shape = r"[+-]?[0-9]+" if rule.reading.kind == "integer" else r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    if not re.fullmatch(shape, text):
        return False
    low, high = rule.reading.low or "-inf", rule.reading.high or "inf"
    return float(low) <= float(text) <= float(high)


def _reads(text: str, time_format: str) -> bool:
    """By strptime, which knows the same day formats; two digits where the pattern has two letters."""
    strptime_format = {"MM/dd/yy": "%m/%d/%y", "yyyy-MM-dd": "%Y-%m-%d"}[time_format]
    try:
        read = datetime.strptime(text, strptime_format)
    except ValueError:
        return False
    return read.strftime(strptime_format) == text
