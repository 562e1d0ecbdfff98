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
VARIANT = re.compile(
    r"[-_ ](instruct|chat|it|hf|base|pt|bf16|fp16|fp8|awq|gptq|gguf|bnb|int[48]|[48]bit|w4a16|w8a8|quantized|dynamic"
    r"|v0\.\d|\d{4}|bnb-4bit|gptq-int[48]|2507|q[2-8](_[0-9a-z_]+)?)(?=$|[-_ .])"
)
SAME_SHAPE = (  # pattern of a name -> the name in the table
    (r"^llama[-_ ]?3\.3[-_ ]70b$", "llama-3.1-70b"),
    (r"^llama[-_ ]?2?[-_ ]?13b$", "llama-2-13b"),
    (r"^code-?llama[-_ ](7b|13b|70b)$", r"llama-2-\1"),
    (r"^qwen2\.5[-_ ]?(?:coder|math)[-_ ](.*)$", r"qwen2.5-\1"),
    (r"^qwen3[-_ ]coder[-_ ](30b-a3b)$", r"qwen3-\1"),
    (r"^deepseek[-_ ](?:r1|v3\.1)$", "deepseek-v3"),
    (r"^deepseek[-_ ]coder[-_ ]v2[-_ ]lite$", "deepseek-v2-lite"),
    (r"^qwen1\.5[-_ ](7b|14b|72b)$", r"qwen-\1"),
)
NOT_SHAPE = ("name", "params_b", "source")


def model_named(name: str) -> Architecture:
    """The architecture of a public model such as `llama-3-8b`; UserError with the nearest name where unknown.

    A name as its publisher gives it, with owner, version of the chat tuning or quantisation, names the same shape.
    """
    keys = (_key(name), _key(VARIANT.sub("", name.lower())), _key(_without_owner(VARIANT.sub("", name.lower()))))
    found = next((_table()[key] for key in keys if key in _table()), None)
    if found is None:
        near = difflib.get_close_matches(keys[1], list(_table()), n=1, cutoff=0.6)
        hint = f" (did you mean {_table()[near[0]].name}?)" if near else ""
        raise UserError(f"model {name!r} is not in the planner's table{hint}: give a config.json or plain numbers")
    return found


def _without_owner(name: str) -> str:
    """`meta-llama-3-8b` is `llama-3-8b`; a line's later version with the same shape is its first."""
    plain = re.sub(r"^(meta|microsoft|google|nvidia|mistralai)[-_]", "", name.rpartition("/")[2])
    for pattern, same in SAME_SHAPE:
        plain = re.sub(pattern, same, plain)
    return plain


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
