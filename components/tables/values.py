"""Values of typed sources as text."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import numpy as np
import pyarrow as pa

from components.core.errors import UserError


def as_text(value: Any) -> str | None:
    """A value as text: None for null; true/false; ISO 8601 for times; shortest exact digits; canonical JSON if nested.

    Raises:
        ValueError: bytes that are not UTF-8, or a type without a text form.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return repr(float(value))
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return str(value.isoformat())
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8")
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=as_text)
    if type(value).__module__.partition(".")[0] in ("uuid", "datetime", "ipaddress", "asyncpg", "psycopg"):
        return str(value)
    raise ValueError(f"a {type(value).__name__} has no text form")


def text_array(values: Any, column: str, where: str) -> pa.Array:
    """A text column from Python values; UserError names the column."""
    try:
        return pa.array([as_text(value) for value in values], pa.string())
    except (ValueError, UnicodeError) as error:
        raise UserError(f"{where}: column {column!r} has no text form ({error}); cast it in the source") from error
