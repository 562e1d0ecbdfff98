"""Public models by name: their shapes as in their published configurations."""

from __future__ import annotations

import csv
import difflib
import re
from functools import cache
from pathlib import Path

from components.core.errors import UserError
from components.planner.architecture import Architecture

TABLE = Path(__file__).parent / "facts" / "architectures.csv"
NOT_SHAPE = ("name", "params_b", "source")


def model_named(name: str) -> Architecture:
    """The architecture of a public model such as `llama-3-8b`; UserError with the nearest name where unknown."""
    found = _table().get(_key(name))
    if found is None:
        near = difflib.get_close_matches(_key(name), list(_table()), n=1, cutoff=0.5)
        hint = f"; did you mean {_table()[near[0]].name}?" if near else ""
        raise UserError(f"model {name!r} is not in the planner's table{hint}: give a config.json or plain numbers")
    return found


def known_models() -> list[str]:
    """Names in the table."""
    return [architecture.name for architecture in _table().values()]


@cache
def _table() -> dict[str, Architecture]:
    with TABLE.open(newline="") as stream:
        return {_key(row["name"]): _read(row) for row in csv.DictReader(stream)}


def _read(row: dict[str, str]) -> Architecture:
    given = {key: float(value) for key, value in row.items() if value and key not in NOT_SHAPE}
    given["gated"], given["tied_embeddings"] = row["gated"] == "1", given.pop("tied") == 1.0
    return Architecture.from_numbers(row["name"], params=float(row["params_b"]) * 1e9, **given)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower().rpartition("/")[2])
