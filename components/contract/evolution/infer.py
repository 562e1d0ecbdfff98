"""Draft an Open Data Contract from a file: what holds in its rows, with room, as a start for a person to go on from."""

from __future__ import annotations

import itertools
import math
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from components.contract.evolution.infer_columns import Draft, draft_column
from components.core.errors import UserError
from components.tables.read import read_files

WIDTH = 108
KEY_COLUMNS = 8  # of which pairs are tried as a key
ORDER = (
    *("name", "logicalType", "logicalTypeOptions", "required", "unique", "primaryKey", "primaryKeyPosition"),
    *("tags", "classification", "examples", "enum", "quality"),
)
HEADER = """\
# Drafted by `pilotline contract infer` from {source}: {rows} rows, {columns} columns.
# Every rule below holds in those rows; whether it must hold in others, only the data's owner knows. Go through it from
# the top: what a column means, what is promised, who answers for it. Then set status to active and version to 1.0.0."""


@dataclass(frozen=True)
class Drafted:
    """The text of a contract and what it was drafted from."""

    text: str
    rows: int
    columns: int
    key: tuple[str, ...]


def infer(uri: str) -> Drafted:
    """The draft for a file, folder, glob or URI.

    Raises:
        UserError: it cannot be read, or holds no row or a column without a name.
    """
    table = read_files(uri).table
    if not table.num_rows:
        raise UserError(f"{uri}: holds no row; a contract is drafted from rows")
    if "" in table.column_names:
        raise UserError(f"{uri}: a column has no name; name it")
    drafts = [draft_column(name, table.column(name)) for name in table.column_names]
    key = _key(drafts, table)
    for draft in drafts:
        draft.entry |= _keys(draft, key)
    name = re.sub(r"\.(csv|tsv|jsonl|ndjson|json|parquet|pq|gz)\b", "", Path(uri.partition("?")[0]).name.lower())
    name = re.sub(r"[^a-z0-9]+", "_", name).strip("_") or "rows"
    text = _render(name, Path(uri.partition("?")[0]).name, drafts, key, table.num_rows)
    return Drafted(text, table.num_rows, table.num_columns, key)


def write_new(path: Path, text: str) -> None:
    """Write a file whole; UserError where there is one already, which is never replaced, or none can be written."""
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.absolute().parent, encoding="utf-8", suffix=".tmp") as staging:
            staging.write(text)
            staging.flush()
            os.fsync(staging.fileno())
            os.link(staging.name, path)
    except FileExistsError as error:
        raise UserError(f"{path}: is there already and is not overwritten; name a new file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); name another file") from error


def _key(drafts: list[Draft], table: pa.Table) -> tuple[str, ...]:
    """The column that tells all rows apart, one called like an identifier first; else the pair that does."""
    single = sorted((draft for draft in drafts if draft.is_key and _may_be_key(draft)), key=_rank)
    if single:
        return (single[0].name,)
    complete = sorted((draft for draft in drafts if draft.complete and _may_be_key(draft)), key=_rank)
    for one, other in itertools.combinations(complete[:KEY_COLUMNS], 2):
        if one.distinct * other.distinct >= table.num_rows > 1 and _tells_apart(table, one.name, other.name):
            return (one.name, other.name)
    return ()


def _rank(draft: Draft) -> tuple[bool, bool, int]:
    """Identifiers first, those of persons last, then what tells more rows apart."""
    return "pii" in draft.entry.get("tags", []), not draft.identifier, -draft.distinct


def _may_be_key(draft: Draft) -> bool:
    return draft.entry["logicalType"] not in ("number", "boolean") and (
        draft.identifier or "pii" not in draft.entry.get("tags", [])
    )


def _tells_apart(table: pa.Table, *names: str) -> bool:
    counted = table.select(list(names)).group_by(list(names)).aggregate([([], "count_all")])
    return bool(pc.max(counted.column("count_all")).as_py() == 1)


def _keys(draft: Draft, key: tuple[str, ...]) -> dict[str, Any]:
    if draft.name in key:
        about: dict[str, Any] = {"primaryKey": True, "primaryKeyPosition": key.index(draft.name) + 1}
        draft.notes.insert(
            0, "tells all rows apart" if len(key) == 1 else f"with {' and '.join(key)} tells all rows apart"
        )
        return about | ({"unique": True} if len(key) == 1 else {})
    if draft.is_key and draft.identifier:
        draft.notes.insert(0, "no value comes twice")
        return {"unique": True}
    return {}


def _render(name: str, source: str, drafts: list[Draft], key: tuple[str, ...], rows: int) -> str:
    head: dict[str, Any] = {
        "apiVersion": "v3.2.0",
        "kind": "DataContract",
        "id": name.replace("_", "-"),
        "name": name.replace("_", " ").capitalize(),
        "version": "0.1.0",
        "status": "draft",
        "description": {
            "purpose": f"Rows as in {source}. Say what they are for.",
            "limitations": "A draft, not agreed.",
        },
    }
    quality = {
        "id": "enough-rows",
        "metric": "rowCount",
        "mustBeGreaterOrEqualTo": max(1, rows // 2),
        "dimension": "completeness",
        "description": f"Half of the {rows} rows that were seen.",
    }
    table: dict[str, Any] = {"name": name, "physicalType": "file"}
    if key:
        table["dataGranularityDescription"] = f"One row per {' and '.join(key)}"
    lines = [HEADER.format(source=_commented(source), rows=rows, columns=len(drafts)), *_entries(head, 0)]
    lines += _levels(name, drafts)
    lines += ["schema:", *_item(table | {"quality": [quality]}, 2), "    properties:"]
    for draft in drafts:
        lines += [f"      # {_commented(note)}" for note in draft.notes]
        lines += _item({name: draft.entry[name] for name in ORDER if draft.entry.get(name) not in (None, [], {})}, 6)
    return "\n".join(lines) + "\n"


def _levels(name: str, drafts: list[Draft]) -> list[str]:
    """Service levels to fill in: no file tells them."""
    times = [draft.name for draft in drafts if draft.entry["logicalType"] in ("date", "timestamp")]
    if not times:
        return []
    element = _flow(f"{name}.{times[0]}")
    return [
        "# What one file cannot tell: how fresh the rows are, how often they come.",
        "# slaProperties:",
        f"#   - {{property: freshness, value: 2, unit: d, element: {element}}}",
        f"#   - {{property: frequency, value: 1, unit: d, element: {element}}}",
    ]


def _item(values: dict[str, Any], indent: int) -> list[str]:
    """A mapping as an item of a list."""
    lines = _entries(values, indent + 2)
    return [f"{' ' * indent}- {lines[0].lstrip()}", *lines[1:]]


def _entries(values: dict[str, Any], indent: int) -> list[str]:
    """A mapping with what fits on a line written on one."""
    lines: list[str] = []
    for key, value in values.items():
        start = f"{' ' * indent}{_flow(key)}:"
        short = f"{start} {_flow(value)}"
        if not isinstance(value, dict | list) or len(short) <= WIDTH:
            lines.append(short)
        elif isinstance(value, dict):
            lines += [start, *_entries(value, indent + 2)]
        else:
            lines.append(start)
            for entry in value:
                whole = f"{' ' * (indent + 2)}- {_flow(entry)}"
                lines += [whole] if len(whole) <= WIDTH or not isinstance(entry, dict) else _item(entry, indent + 2)
    return lines


def _flow(value: Any) -> str:
    """A value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").strip("\n")


def _commented(text: str) -> str:
    """A text that stays within its comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
